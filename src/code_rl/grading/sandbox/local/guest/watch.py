"""The CPU time used so far by all processes of a running test, read from a /proc that tests cannot
see."""

from __future__ import annotations

import contextlib
import os
import time

from code_rl.grading.sandbox.local.guest import kernel
from code_rl.grading.sandbox.local.guest.confinement import confine

_TICKS = os.sysconf("SC_CLK_TCK")


class Tree:
    """The processes below a supervisor. `proc` is the directory of a /proc, or -1 without one."""

    def __init__(self, proc: int, level: str) -> None:
        self._proc = proc
        self._all_below = level == confine.FULL
        """True if /proc shows only the worker, the supervisor and its descendants."""

    def cpu_s(self, test: int) -> float:
        """Return the CPU seconds of all processes below the calling one, and of those that they
        have waited for, with the kernel's tick as precision.

        Without a /proc, return those of the process `test` only.
        """
        if self._proc >= 0:
            return sum(sum(map(int, self._stat(pid)[11:15])) for pid in self._below()) / _TICKS
        try:
            return time.clock_gettime(
                (~test << 3) | 2
            )  # the CPU clock of a process with all its threads
        except OSError:
            return 0.0

    def _below(self) -> list[str]:
        me = os.readlink("self", dir_fd=self._proc)
        if self._all_below:
            return [pid for pid in os.listdir(self._proc) if pid.isdigit() and pid not in ("1", me)]
        found: list[str] = []
        waiting = [me]
        while waiting:
            pid = waiting.pop()
            children = self._text(f"{pid}/task/{pid}/children").split()
            found += children
            waiting += children
        return found

    def _stat(self, pid: str) -> list[str]:
        """The fields after the name: state, parent, ..., from the twelfth on user, system,
        children's user and children's system ticks."""
        fields = self._text(f"{pid}/stat").rpartition(")")[2].split()
        return fields if len(fields) > 14 else ["0"] * 15

    def _text(self, path: str) -> str:
        """Return the file's text, empty if its process has just ended."""
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
            try:
                return os.read(fd, 1 << 16).decode("utf-8", "replace")
            finally:
                os.close(fd)
        return ""


def open_tree(level: str) -> Tree:
    """Return the tree for the supervisors forked from here. At `full` it uses an unmounted /proc of
    the calling worker's PID namespace."""
    try:
        if level == confine.FULL:
            return Tree(kernel.detached_proc(), level)
        return Tree(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), level)
    except OSError:
        return Tree(-1, level)
