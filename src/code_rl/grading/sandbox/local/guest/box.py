"""The guest's side of a box: commands that run below its init, and end with their owner.

Three kinds of processes form it. The keeper enters the walls (`boxfs`), waits, and clears what is
left. The init takes requests from the host and never runs foreign code. Each command has a leader,
at `full` PID 1 of a nested PID namespace, with which the kernel ends all its processes.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import resource
import select
import signal
import socket
import struct
import time
from typing import Any, NoReturn

from code_rl.grading.sandbox.commands import REQUEST_BYTES, SHELL, WRITE
from code_rl.grading.sandbox.local.guest import kernel
from code_rl.grading.sandbox.local.guest.confinement import boxfs, confine
from code_rl.grading.sandbox.local.guest.watch import Tree, open_tree

FAILED, KEPT, READY, ENDED = "failed", "kept", "ready", "ended"
CPU, WALL, MEMORY, OUTPUT = "cpu", "wall", "memory", "output"
STOP = b"stop"
# Runtimes take this for each thread; a command that recurses deeply raises it (`ulimit -s hard`).
_STACK_BYTES = 64 << 20
_LOOK_S = 0.02
_LONGEST = 4
"""Times its wall seconds that a command may take on the clock, on a machine however busy."""
_REPORT = struct.Struct("<i")
_OPEN_FILES = 1024
_CHUNK = 1 << 20
_FAILED_EXIT = 125
_SPECIAL = os.O_NONBLOCK | os.O_CLOEXEC

Walls = boxfs.Rooted | boxfs.Landlocked


def main(control: socket.socket, config: dict[str, Any]) -> NoReturn:
    """Run the keeper: enter the walls, fork the init, and end, with everything of the box removed,
    when it ends. Never returns. The host is told KEPT with the init's id, or FAILED with the
    refused step."""
    proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    wanted = confine.Confinement(config["level"], (), config["scratch"], True, proc)
    try:
        wanted = confine.confine_zygote(wanted, lambda: boxfs.enter_root(config))
        number = int.from_bytes(os.urandom(4), "big") % confine.UIDS
        uid = confine.FIRST_UID + number if wanted.own_uids else None
        full = wanted.level == confine.FULL
        walls: Walls = boxfs.Rooted(config) if full else boxfs.Landlocked(config, uid)
        pid = confine.fork_worker(wanted, uid if full else None)
        if pid == 0:
            _start_init(control, walls, wanted.level)
    except OSError as error:
        _fail(control, error)
    with contextlib.suppress(OSError):  # the owner may have ended already
        control.send(marshal.dumps((KEPT, pid)))
    control.close()
    os.waitpid(pid, 0)
    walls.remove()
    os._exit(0)


def _start_init(control: socket.socket, walls: Walls, level: str) -> NoReturn:
    """Be the box's init: raise the walls, tell the host READY (or FAILED), then run a request per
    message until the owner ends. Never returns. All processes of a command are dead before its
    answer is sent."""
    try:
        kernel.die_with_parent()
        walls.start()
        tree = open_tree(level)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0, step="prctl(PR_SET_DUMPABLE)")
        _limit(resource.RLIMIT_CORE, 0)
    except OSError as error:
        _fail(control, error)
    control.send(marshal.dumps((READY,)))
    while True:
        message, ancillary, _, _ = control.recvmsg(REQUEST_BYTES, socket.CMSG_SPACE(12))
        if not message:  # the owner has ended
            os._exit(0)
        if message == STOP:  # its command ended by itself just before
            continue
        descriptors = list(memoryview(ancillary[0][2]).cast("i"))
        # From the host, which no command can reach
        request = marshal.loads(message)  # noqa: S302
        request["environment"] = {**walls.variables(), **request["environment"]}
        watch = _Watch(control, request, tree)
        ended = _run(control, request, descriptors, walls, watch)
        walls.end_command()
        control.send(marshal.dumps((ENDED, *ended)))


def _fail(control: socket.socket, error: OSError) -> NoReturn:
    """Tell the host the step that was refused and its errno, and end this process."""
    step = getattr(error, "step", "") or str(error)
    with contextlib.suppress(OSError):  # the owner may have ended already
        control.send(marshal.dumps((FAILED, step, error.errno or 0)))
    os._exit(1)


def _run(
    control: socket.socket,
    request: dict[str, Any],
    descriptors: list[int],
    walls: Walls,
    watch: _Watch,
) -> tuple[int, float, float, int, str]:
    """Run one request and close its `descriptors` here. Return exit code (negative for a signal),
    CPU and wall seconds, peak bytes, and the limit that ended it ("" if none)."""
    reader, writer = os.pipe()
    pid, pidfd = kernel.clone3(walls.namespaces)
    if pid == 0:
        os.close(reader)
        control.close()
        _lead(walls, request, descriptors, writer)
    for fd in (writer, *descriptors):
        os.close(fd)
    limit = watch.until_end(pid, pidfd)
    _, status, usage = os.wait4(pid, 0)
    report = os.read(reader, _REPORT.size)
    os.close(reader)
    os.close(pidfd)
    code = os.waitstatus_to_exitcode(status)
    if not limit and report:
        (code,) = _REPORT.unpack(report)
    cpu_s = max(usage.ru_utime + usage.ru_stime, watch.cpu_s)
    peak = max(usage.ru_maxrss << 10, watch.peak_bytes)
    if not limit and cpu_s > request["cpu_s"]:
        limit = CPU
    return code, cpu_s, watch.wall_s, peak, limit


class _Watch:
    """Looks at a running command until it ends, or ends it at a limit.

    Wall time does not count while the command waits for a processor: between two looks, at the
    second of which a thread could run, only the CPU time counts.
    """

    def __init__(self, control: socket.socket, request: dict[str, Any], tree: Tree) -> None:
        """Begin to measure now. `request` has the limits, `tree` shows the command's processes."""
        self._control, self._request, self._tree = control, request, tree
        self._began = self._looked = time.monotonic()
        self.cpu_s, self.wall_s, self.peak_bytes = 0.0, 0.0, 0

    def until_end(self, pid: int, pidfd: int) -> str:
        """Return the limit at which the leader `pid` was killed, or "" if it ended by itself; the
        caller reaps it. A message of the host means that the output is too long; if the host is
        gone, this process ends."""
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.register(self._control, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(_LOOK_S * 1000)}
            if pidfd in ready:
                self._count_time(0.0, runnable=False)
                return ""
            limit = self._exceeded()
            if self._control.fileno() in ready:
                if not self._control.recv(REQUEST_BYTES):
                    os._exit(0)
                limit = OUTPUT
            if limit:
                os.kill(pid, signal.SIGKILL)
                return limit

    def _exceeded(self) -> str:
        """Measure the command's processes; return the limit that they exceed now, or "". CPU time
        and peak memory never decrease."""
        request, memory, (cpu_s, runnable) = (
            self._request,
            self._tree.memory_bytes(),
            self._tree.look(0),
        )
        self._count_time(cpu_s - self.cpu_s, runnable)
        self.cpu_s = max(self.cpu_s, cpu_s)
        self.peak_bytes = max(self.peak_bytes, memory)
        if self.cpu_s > request["cpu_s"]:
            return CPU
        if memory > request["memory_bytes"]:
            return MEMORY
        # A command can hide its CPU time, and so seem to wait for a processor.
        longest_s = _LONGEST * request["wall_s"]
        late = self.wall_s > request["wall_s"] or self._looked - self._began > longest_s
        return WALL if late else ""

    def _count_time(self, cpu_s: float, runnable: bool) -> None:
        """Count the time since the last look, in which `cpu_s` of CPU time were used: all of it as
        wall time, but only `cpu_s` if the command is `runnable`, that is, could be waiting for a
        processor."""
        now = time.monotonic()
        passed, self._looked = now - self._looked, now
        self.wall_s += min(max(cpu_s, 0.0), passed) if runnable else passed


def _lead(walls: Walls, request: dict[str, Any], descriptors: list[int], report: int) -> NoReturn:
    """Confine this process, the leader; run the command; write its exit code, negative for a
    signal, to `report`. Never returns. With its end the kernel, or `end_command`, ends the
    command's other processes."""
    try:
        kernel.die_with_parent()
        # Then its command cannot signal it: the kernel drops signals to PID 1 that have no handler.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        walls.confine_leader(request["home_read_only"])
        pid = kernel.fork()
        if pid == 0:
            os.close(report)
            _become_command(walls, request, descriptors)
        for fd in descriptors:
            os.close(fd)
        status = 0
        while True:
            ended, status = os.wait()
            if ended == pid:
                break
        os.write(report, _REPORT.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    finally:
        os._exit(_FAILED_EXIT)


def _become_command(walls: Walls, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Confine this forked process and become the shell, or write or read a file. Never returns: it
    ends with 125 if a step fails, with the reason on stderr."""
    try:
        os.setsid()
        for target, fd in enumerate(descriptors):
            os.dup2(fd, target)
        os.closerange(len(descriptors), 256)
        _limit_command(request, walls.own_processes)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.umask(0o022)
        walls.confine_command(request["home_read_only"])
        kind, text = request["kind"], request["text"]
        if kind == SHELL:
            os.execve("/bin/sh", ["sh", "-c", text], request["environment"])  # noqa: S606
        (_write if kind == WRITE else _read)(text)
        os._exit(0)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(2, (error.strerror or str(error)).encode())
    finally:
        os._exit(_FAILED_EXIT)


def _limit_command(request: dict[str, Any], own_processes: int) -> None:
    """Set the kernel's limits for the command in this process, for good; `_Watch` counts CPU time
    and memory. `own_processes` of the box count as its user's."""
    # A backstop: the kernel counts by ticks, on a busy machine far more than was used.
    _limit(resource.RLIMIT_CPU, int(2 * request["cpu_s"]) + 2)
    _limit(resource.RLIMIT_NPROC, request["processes"] + own_processes)
    _limit(resource.RLIMIT_FSIZE, request["disk_bytes"])
    _limit(resource.RLIMIT_STACK, min(request["memory_bytes"], kernel.STACK_BYTES))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (min(_STACK_BYTES, hard), hard))
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _limit(resource.RLIMIT_MEMLOCK, 0)
    _limit(resource.RLIMIT_MSGQUEUE, 0)


def _limit(kind: int, value: int) -> None:
    """Set this process's soft and hard limit of a resource to `value`, or to the present hard limit
    if that is lower. The process cannot raise it again."""
    hard = resource.getrlimit(kind)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, value))


def _write(path: str) -> None:
    """Copy standard input to a new file in place of an earlier one, with its directories. A
    command's links lead only where the command itself can write, because this process has no more
    rights. Raises OSError."""
    if os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    _copy(0, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755))


def _read(path: str) -> None:
    """Copy a file to standard output. Raises OSError. A pipe does not block it."""
    fd = os.open(path, os.O_RDONLY | _SPECIAL)
    _copy(fd, 1)


def _copy(source: int, target: int) -> None:
    """Copy one descriptor to another until its end. Raises OSError."""
    while data := os.read(source, _CHUNK):
        view = memoryview(data)
        while view:
            view = view[os.write(target, view) :]
