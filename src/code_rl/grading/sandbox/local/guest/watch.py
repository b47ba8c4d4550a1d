"""The CPU time, memory and state of all processes of a running test or command, read from a /proc
that these cannot see."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from typing import TypeVar

from code_rl.grading.sandbox.local.guest import kernel
from code_rl.grading.sandbox.local.guest.confinement import confine

T = TypeVar("T")
_TICKS = os.sysconf("SC_CLK_TCK")


class Tree:
    """The processes below a supervisor, or below the init of a box. `proc` is the directory of a
    /proc, or -1 without one."""

    def __init__(self, proc: int, level: str) -> None:
        """Use the directory `proc`, which stays open (-1: there is none), at an isolation level."""
        self._proc = proc
        self._all_below = level == confine.FULL
        """True if /proc shows only PID 1, the calling process and its descendants."""

    def look(self, test: int) -> tuple[float, bool]:
        """Return the CPU seconds of all processes below the calling one, and of those that they
        have waited for, with the kernel's tick as precision; and True if one of their threads has a
        processor or waits for one.

        Without a /proc, return the seconds of the process `test` only, and False. Never raises for
        a process that has just ended.
        """
        if self._proc >= 0:
            pids = self._descendants()
            ticks = sum(sum(map(int, self._stat(pid)[11:15])) for pid in pids)
            threads = (thread for pid in pids for thread in self._threads(pid))
            return ticks / _TICKS, any(self._stat(thread)[0] == "R" for thread in threads)
        try:
            # The CPU clock of a process with all its threads
            return time.clock_gettime((~test << 3) | 2), False
        except OSError:
            return 0.0, False

    def memory_bytes(self) -> int:
        """Return the bytes of private and shared memory of all processes below the calling one.
        Needs a /proc."""
        # Any thread of a process shows its memory, until that thread has ended.
        each = (map(self._memory_of, self._threads(pid)) for pid in self._descendants())
        return sum(next(filter(None, threads), 0) for threads in each)

    def _memory_of(self, thread: str) -> int:
        """Return the bytes of private and shared memory that a thread's status shows; 0 if it has
        ended."""
        held, status = 0, self._text(f"{thread}/status")
        for kind in ("\nRssAnon:", "\nRssShmem:"):
            words = status.partition(kind)[2].split(maxsplit=1)
            held += int(words[0]) << 10 if words else 0
        return held

    def _descendants(self) -> list[str]:
        """Return the ids of all descendants of this process, itself left out."""
        me = os.readlink("self", dir_fd=self._proc)
        if self._all_below:
            return [pid for pid in os.listdir(self._proc) if pid.isdigit() and pid not in ("1", me)]
        found: list[str] = []
        waiting = [me]
        while waiting:
            for thread in self._threads(waiting.pop()):
                children = self._text(f"{thread}/children").split()
                found += children
                waiting += children
        return found

    def _threads(self, pid: str) -> list[str]:
        """Return the /proc paths of a process's threads; none if it has ended."""
        tasks = f"{pid}/task"
        return [f"{tasks}/{thread}" for thread in self._read(tasks, _names) or ()]

    def _stat(self, pid: str) -> list[str]:
        """Return the fields after the name: state, parent, ..., from the twelfth on user, system,
        children's user and children's system ticks. They are "0" for a process that has ended."""
        fields = self._text(f"{pid}/stat").rpartition(")")[2].split()
        return fields if len(fields) > 14 else ["0"] * 15

    def _text(self, path: str) -> str:
        return (self._read(path, _bytes) or b"").decode("utf-8", "replace")

    def _read(self, path: str, read: Callable[[int], T]) -> T | None:
        """Return `read` of the opened path, or None if its process has just ended."""
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            try:
                return read(fd)
            finally:
                os.close(fd)
        return None


def _bytes(file: int) -> bytes:
    return os.read(file, 1 << 16)


def _names(directory: int) -> list[str]:
    return os.listdir(directory)


def open_tree(level: str) -> Tree:
    """Return the tree for the processes forked from here; it keeps a descriptor of /proc. At `full`
    it uses an unmounted /proc of the caller's PID namespace. Raises OSError."""
    if level == confine.FULL:
        return Tree(kernel.detached_proc(), level)
    return Tree(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), level)
