"""The watch over a test that takes longer: its time, and whether it does anything.

It is a process of its own, forked from the attendant when the supervisor asks for it: what it sees of a test stays out of the memory of both, and no test can
reach it. It tells the supervisor by a signal that a test is over its time, and the host that one is idle.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from typing import NoReturn

from code_rl.sandbox.embedded.guest import wire
from code_rl.sandbox.embedded.guest.tree import Load, Tree
from code_rl.sandbox.starvation import FAIR_PART, Clock

WATCH_AFTER_S = 0.25
LIMITS = struct.Struct("=dd?")
"""CPU seconds, wall seconds, strictness."""
_TIME = struct.Struct("=qq")


def watch(supervisor: int, limits: int, channel: socket.socket, tree: Tree, load: Load) -> NoReturn:
    """Watch the test of the supervisor with this process id until killed. `limits`: from where to read them."""
    given = os.read(limits, LIMITS.size + _TIME.size)
    cpu_s, wall_s, strict = LIMITS.unpack_from(given)
    seconds, nanoseconds = _TIME.unpack_from(given, LIMITS.size)
    began = seconds + nanoseconds / 1e9
    clock = Clock(cpu_s, wall_s, strict)
    looked = (0.0, 0.0)
    idle = False
    while True:
        elapsed, cpu, runnable = time.monotonic() - began, tree.cpu_s(supervisor), load.runnable()
        if clock.over(elapsed, cpu, runnable, load.processors):
            os.kill(supervisor, signal.SIGUSR1 if cpu > cpu_s else signal.SIGUSR2)
        if not idle and elapsed - looked[0] >= WATCH_AFTER_S:
            share = FAIR_PART * min(1.0, load.processors / max(runnable or 1, 1))
            idle = cpu - looked[1] < share * (elapsed - looked[0])
            looked = (elapsed, cpu)
            if idle:
                with contextlib.suppress(BrokenPipeError):  # the host has what it wanted
                    channel.send(wire.pack(wire.Record(wire.IDLE)))
        time.sleep(clock.next_look(elapsed, cpu))
