"""The watch over a test that takes longer: its time, and whether it does anything.

It is done by the worker's keeper when a supervisor asks for it: what it sees of a test stays out of the memory that tests are forked from, and no test can
reach it. It tells the supervisor by a signal that a test is over its time, and the host that one is idle.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import struct
import time

from code_rl.sandbox.embedded.guest import wire
from code_rl.sandbox.embedded.guest.tree import Load, Tree
from code_rl.sandbox.starvation import FAIR_PART, Clock

WATCH_AFTER_S = 0.25
LIMITS = struct.Struct("=dd?")
"""CPU seconds, wall seconds, strictness."""
_TIME = struct.Struct("=qq")


_CREDENTIALS = struct.Struct("=iII")


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
            share = FAIR_PART * min(1.0, load.processors / max(runnable or 1, 1))
            idle = cpu - looked[1] < share * (elapsed - looked[0])
            looked = (elapsed, cpu)
            if idle:
                with contextlib.suppress(BrokenPipeError):  # the host has what it wanted
                    channel.send(wire.pack(wire.Record(wire.IDLE)))
        if end.poll(1000 * clock.next_look(elapsed, cpu)):
            return
