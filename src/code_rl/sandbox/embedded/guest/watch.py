"""The watch over a test that takes longer: its time, and whether it does anything.

It is done by the worker's keeper when a supervisor asks for it: what it sees of a test stays out of the memory that tests are forked from, and no test can
reach it. It tells the supervisor by a signal that a test is over its time, and the host that one is idle.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import time

from code_rl.sandbox.embedded.guest import kernel, wire
from code_rl.sandbox.embedded.guest.confinement import confine
from code_rl.sandbox.starvation import Clock, Load, fair_part

WATCH_AFTER_S = 0.25
LIMITS = struct.Struct("=dd?")
"""CPU seconds, wall seconds, strictness."""
_TIME = struct.Struct("=qq")
_CREDENTIALS = struct.Struct("=iII")
_TICKS = os.sysconf("SC_CLK_TCK")


class Tree:
    """The processes below a supervisor, by way of a /proc (`proc`: its directory, or -1 where none can be had)."""

    def __init__(self, proc: int, level: str) -> None:
        self._proc = proc
        self._all_below = level == confine.FULL
        """That /proc shows the worker, its keeper, the supervisor and what is below it, and nothing else."""
        self.sees = proc >= 0

    def cpu_s(self, supervisor: int) -> float:
        """CPU seconds so far: of all processes below, and of those below them that have ended and were waited for. In the kernel's ticks.

        Where /proc is not to be had, what the supervisor's own clock tells: nothing of tests that still run.
        """
        if self.sees:
            return sum(sum(map(int, self._stat(pid)[11:15])) for pid in self._below(supervisor)) / _TICKS
        try:
            return time.clock_gettime((~supervisor << 3) | 2)  # the CPU clock of a process, all its threads together
        except OSError:
            return 0.0

    def _below(self, supervisor: int) -> list[str]:
        if self._all_below:
            known = ("1", str(supervisor), str(os.getpid()))
            return [pid for pid in os.listdir(self._proc) if pid.isdigit() and pid not in known]
        found: list[str] = []
        waiting = [str(supervisor)]
        while waiting:
            pid = waiting.pop()
            children = self._text(f"{pid}/task/{pid}/children").split()
            found += children
            waiting += children
        return found

    def _stat(self, pid: str) -> list[str]:
        """The fields after the name: state, parent, ..., from the twelfth on user, system, children's user and children's system ticks."""
        fields = self._text(f"{pid}/stat").rpartition(")")[2].split()
        return fields if len(fields) > 14 else ["0"] * 15

    def _text(self, path: str) -> str:
        """The file, empty when its process has just ended."""
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            try:
                return os.read(fd, 1 << 16).decode("utf-8", "replace")
            finally:
                os.close(fd)
        return ""


def open_tree(level: str) -> Tree:
    """For the supervisors forked from here. At `full` a /proc of the calling worker's PID namespace that is mounted nowhere."""
    try:
        if level == confine.FULL:
            return Tree(kernel.detached_proc(), level)
        return Tree(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), level)
    except OSError:
        return Tree(-1, level)


def serve(asked: socket.socket, tree: Tree, load: Load) -> None:
    """Watch the tests of whichever supervisor asks for it, one at a time, until there can be none."""
    asked.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    room = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(8)
    while True:
        given, ancillary, _, _ = asked.recvmsg(LIMITS.size + _TIME.size, room)
        if not given:
            return
        told = {kind: data for _, kind, data in ancillary}
        pid, _, _ = _CREDENTIALS.unpack(told[socket.SCM_CREDENTIALS])
        channel, pidfd = struct.unpack("=ii", told[socket.SCM_RIGHTS])
        ended = contextlib.suppress(ProcessLookupError)
        with socket.socket(fileno=channel) as heard, open(pidfd, "rb", buffering=0), ended:
            _watch(given, pid, pidfd, heard, tree, load)


def _watch(given: bytes, supervisor: int, pidfd: int, channel: socket.socket, tree: Tree, load: Load) -> None:
    """Watch the test of this supervisor to the supervisor's end."""
    end = select.poll()
    end.register(pidfd, select.POLLIN)
    cpu_s, wall_s, strict = LIMITS.unpack_from(given)
    seconds, nanoseconds = _TIME.unpack_from(given, LIMITS.size)
    began = seconds + nanoseconds / 1e9
    clock = Clock(cpu_s, wall_s, strict)
    looked = (0.0, 0.0)
    idle = False
    while True:
        elapsed, cpu, runnable = time.monotonic() - began, tree.cpu_s(supervisor), load.runnable()
        if clock.over(elapsed, cpu, runnable, load.processors):
            signal.pidfd_send_signal(pidfd, signal.SIGUSR1 if cpu > cpu_s else signal.SIGUSR2)
        if not idle and elapsed - looked[0] >= WATCH_AFTER_S:
            idle = cpu - looked[1] < fair_part(load.processors, runnable) * (elapsed - looked[0])
            looked = (elapsed, cpu)
            if idle:
                with contextlib.suppress(BrokenPipeError):  # the host has what it wanted
                    channel.send(wire.record(wire.IDLE))
        if end.poll(1000 * clock.next_look(elapsed, cpu)):
            return
