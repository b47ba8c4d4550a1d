"""The processes of a running test, as their supervisor sees them: how much processor time they have used together."""

from __future__ import annotations

import contextlib
import os
import time

from code_rl.sandbox.embedded.guest import confine, kernel

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
            return time.clock_gettime(kernel.process_cpu_clock(supervisor))
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


class Load:
    """How many threads of the machine are runnable, from a /proc/loadavg that was opened while it could be."""

    def __init__(self) -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        self.processors = len(os.sched_getaffinity(0))

    def runnable(self) -> int | None:
        """None where the kernel does not tell."""
        try:
            return int(os.pread(self._fd, 128, 0).split()[3].partition(b"/")[0])
        except (OSError, ValueError, IndexError):
            return None
