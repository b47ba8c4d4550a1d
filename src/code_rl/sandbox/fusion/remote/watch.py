"""Watches one forked process: collects its output, stops it at its limits, kills what it leaves behind.

It runs in a supervisor, a fork that was made for this one test: what is collected here dies before the next test is born.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from code_rl.sandbox.fusion.remote.confine import become_program, take_account
from code_rl.sandbox.fusion.remote.processes import kill, look, open_pidfd, proportional, reap, resident
from code_rl.sandbox.starvation import Clock, Load

STDERR_BYTES = 64 << 10
QUIET_S = 1.0
"""Before this age only the first process of a test is looked at: most tests end sooner."""
MEMORY_RESERVE = 256 << 20
"""Beyond the memory limit, which holds for each, what all processes of a test may take together; as in the embedded sandbox's control groups."""
VALUE_FD = 3
VALUE_OVERHEAD = 16
DIRECTORY = "test"
"""The same for every test: its name tells nothing."""


class UnfinishedError(Exception):
    """The test was stopped because the time of its chunk is over, which says nothing about it."""


class Outcome:
    """What was seen of one forked process. `limit` names the limit at which it was stopped."""

    def __init__(self) -> None:
        self.stdout = bytearray()
        self.stderr = bytearray()
        self.record = bytearray()
        self.value: bytes | None = None
        self.limit: str | None = None
        self.exit_code = 0
        self.cpu_s = 0.0
        self.wall_s = 0.0
        self.peak_memory_bytes = 0


class Rules:
    """By what a process is watched."""

    def __init__(self, limits: dict[str, Any], deadline: float, load: Load, uid: int | None) -> None:
        """`deadline` on the monotonic clock; `uid`: the account of the process, None for this one's own."""
        self.limits, self.deadline, self.load, self.uid = limits, deadline, load, uid
        self.memory_bytes = limits["memory_mb"] << 20


def watch(rules: Rules, child: Callable[[], None], stdin: int, cpu_s: float, wall_s: float) -> Outcome:
    """Fork, run `child` confined with the descriptor `stdin`, collect what it writes until it ends or reaches a limit.

    Raises UnfinishedError.
    """
    outcome = Outcome()
    os.mkdir(DIRECTORY, 0o700)
    if rules.uid is not None:
        os.chown(DIRECTORY, rules.uid, rules.uid)
    pipes = [os.pipe() for _ in range(3)]
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        become_program(
            child,
            DIRECTORY,
            [stdin, *(write_end for _, write_end in pipes)],
            {**rules.limits, "cpu_s": cpu_s},
            rules.uid,
        )
    kept = (outcome.stdout, outcome.stderr, outcome.record)
    readers = {}
    for (read_end, write_end), buffer in zip(pipes, kept):  # noqa: B905 - Python 3.9 has no strict=
        os.close(write_end)
        os.set_blocking(read_end, False)
        readers[read_end] = buffer
    clock = Clock(cpu_s, wall_s, rules.limits["strict"])
    ended = collect(rules, outcome, pid, readers, (began, clock))
    kill_programs(rules.uid, pid)
    status = os.waitpid(pid, 0)[1] if ended is None else ended
    reap(pid)
    drain(outcome, readers, rules.limits["output_bytes"])
    all_of_them = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome.exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    outcome.wall_s = time.monotonic() - began
    outcome.cpu_s = all_of_them.ru_utime + all_of_them.ru_stime
    outcome.peak_memory_bytes = all_of_them.ru_maxrss * 1024
    if outcome.limit == "deadline":
        raise UnfinishedError
    return outcome


def collect(
    rules: Rules, outcome: Outcome, pid: int, readers: dict[int, bytearray], timing: tuple[float, Clock]
) -> int | None:
    """Read the pipes until the process ends (its wait status) or `outcome.limit` is set (None)."""
    began, clock = timing
    poller = select.poll()
    for read_end in readers:
        poller.register(read_end, select.POLLIN)
    death = open_pidfd(pid)
    if death is not None:
        poller.register(death, select.POLLIN)
    look_at = clock.next_look(0.0, 0.0)
    try:
        while True:
            elapsed = time.monotonic() - began
            if elapsed >= look_at:
                spent, memory = look(pid, elapsed > QUIET_S)
                if clock.over(elapsed, spent, rules.load.runnable(), rules.load.processors):
                    outcome.limit = "time_limit"
                elif too_much(memory, rules.memory_bytes):
                    outcome.limit = "memory_limit"
                look_at = elapsed + clock.next_look(elapsed, spent)
            if began + elapsed > rules.deadline:
                outcome.limit = outcome.limit or "deadline"
            if outcome.limit:
                return None
            pause = max(min(look_at - elapsed, rules.deadline - began - elapsed), 0.001)
            for fd, _ in poller.poll(1000 * (pause if death is not None else 0.005)):
                if fd in readers and not read_some(outcome, fd, readers[fd], rules.limits["output_bytes"]):
                    poller.unregister(fd)
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                return status
    finally:
        if death is not None:
            os.close(death)


def too_much(memory: dict[int, int], most: int) -> bool:
    """Whether one process, or all together, have more than they may; by `resident` bytes, and those that they share counted once."""
    if max(memory.values(), default=0) > most:
        return True
    together, born_with = most + MEMORY_RESERVE, resident(os.getpid())
    # A bomb of forks has no memory but what it was born with; to ask each for its part would give it many seconds.
    return (
        sum(max(size - born_with, 0) for size in memory.values()) > together
        and sum(map(proportional, memory)) > together
    )


def read_some(outcome: Outcome, fd: int, kept: bytearray, most: int) -> bool:
    """Read what is there. False at the end of the stream. Standard error is cut at a bound, the rest must fit."""
    try:
        data = os.read(fd, 1 << 18)
    except BlockingIOError:
        return True
    if kept is outcome.stderr:
        kept += data[: max(STDERR_BYTES - len(kept), 0)]
        return bool(data)
    kept += data
    if len(kept) > most + (VALUE_OVERHEAD if kept is outcome.record else 0):
        outcome.limit = "output_limit"
        del kept[most:]
    return bool(data)


def drain(outcome: Outcome, readers: dict[int, bytearray], most: int) -> None:
    """Read what the dead left in the pipes."""
    for fd, kept in readers.items():
        size = -1
        while size != len(kept) and outcome.limit is None:
            size = len(kept)
            read_some(outcome, fd, kept, most)
        os.close(fd)


def kill_programs(uid: int | None, pid: int) -> None:
    """Kill the test's process and, where it had an account of its own, all that runs under it."""
    kill(pid)
    if uid is None:
        return
    killer = os.fork()
    if killer == 0:
        try:
            take_account(uid)
            os.kill(-1, signal.SIGKILL)
        finally:
            os._exit(0)
    os.waitpid(killer, 0)
