"""How long a test has been idle: neither on a processor nor waiting for one.

The kernel counts for each thread the time on a processor and the time on a run queue (/proc/<pid>/task/<tid>/schedstat). What is left of the
wall time is idleness, however busy the machine is. A process tree is idle when all its threads are.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

from code_rl.sandbox.embedded.guest import confine, kernel

_TICKS = os.sysconf("SC_CLK_TCK")


class View(NamedTuple):
    """What a supervisor sees of the processes below it. -1: it is not to be had."""

    proc: int
    """A directory that shows them as /proc does."""
    births: int
    """A file like /proc/loadavg, whose last field is the last process or thread number that was given away."""


NO_VIEW = View(-1, -1)


class _Task(NamedTuple):
    """A thread as seen at one look: seconds on a processor or in a queue for one, and whether it is in one of the two now."""

    busy_s: float
    runnable: bool


class IdleTime:
    """The idle time of the processes below this one, from one look to the next.

    Between two looks, idle is what the busy time of all threads, added up, leaves of the wall time. The sum, not the largest, because of threads
    that wait for each other: while one stands in the queue, the others sleep. A wait is counted only when it is over; so while a
    runnable thread's counters stand still, the window stays open and nothing is called idle. Threads that ended, or came and went, between two
    looks may have waited all the while: that time is not called idle either.

    No program can pose as starved for ever: it would have to be runnable, so it gets some processor time, and ends at its CPU limit. Threads in
    each other's way stretch that by at most half their number; looks that are not lenient take this away as well.
    """

    def __init__(self, view: View) -> None:
        """`view`: from `open_view`."""
        self._proc, self._births = view
        self.begin()

    def begin(self) -> None:
        """A new test starts."""
        self.seconds = 0.0
        """Idle seconds in all closed windows."""
        self.cpu_s = 0.0
        """CPU seconds of the whole tree at the last look, in the kernel's ticks, rounded down."""
        self.open = False
        """Whether a thread may be waiting for a processor, so that it is worth looking again soon."""
        self._since = self._looked = self._missed_s = 0.0
        self._born = self._last_number()
        self._base: dict[str, _Task] = {}
        self._last: dict[str, _Task] = {}

    def look(self, elapsed: float, lenient: bool) -> bool:
        """Bring the figures up to date, `elapsed` seconds after the start. Returns False, and changes nothing, where the kernel does not tell.

        Not `lenient`: only the busiest thread counts, and threads that come and go count for nothing.
        """
        tasks = self._read()
        if tasks is None:
            return False
        last, since_look = self._last, elapsed - self._looked
        self._last, self._looked = tasks, elapsed
        self._miss(last, tasks, since_look, elapsed - self._since)
        self.open = any(
            task.runnable and (last[name].busy_s == task.busy_s if name in last else lenient)
            for name, task in tasks.items()
        )
        if self.open:
            return True
        window = elapsed - self._since
        # A runnable thread whose counters have moved can have been waiting no longer than since the last look.
        gained = [
            max(task.busy_s - (self._base[name].busy_s if name in self._base else 0.0), 0.0)
            + since_look * task.runnable
            for name, task in tasks.items()
        ]
        busy = sum(gained) + self._missed_s if lenient else max(gained, default=0.0)
        self.seconds += max(window - busy, 0.0)
        self._base, self._since, self._missed_s = tasks, elapsed, 0.0
        return True

    def _miss(self, last: dict[str, _Task], tasks: dict[str, _Task], since_look: float, window: float) -> None:
        """Note for how long threads that are gone, or were never seen, may have waited."""
        before, self._born = self._born, self._last_number()
        gone = last.keys() - tasks.keys()
        if any(last[name].runnable for name in gone):
            self._missed_s += window  # it may have stood in the queue since the window opened
        elif gone or self._born - before > len(tasks.keys() - last.keys()):
            self._missed_s += since_look

    def _last_number(self) -> int:
        return int(os.pread(self._births, 128, 0).split()[-1]) if self._births >= 0 else 0

    def _read(self) -> dict[str, _Task] | None:
        try:
            me = os.readlink("self", dir_fd=self._proc)
            if self._text(f"{me}/schedstat").split()[2] == "0":  # a kernel that shows zeros instead of counting
                return None
        except OSError:
            return None
        below: dict[str, list[str]] = {}
        cpu: dict[str, int] = {}
        for pid in os.listdir(self._proc):
            if pid.isdigit():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    fields = self._stat(pid)
                    below.setdefault(fields[1], []).append(pid)
                    cpu[pid] = sum(map(int, fields[11:15]))
        tasks: dict[str, _Task] = {}
        ticks, waiting = 0, below.pop(me, [])
        while waiting:
            pid = waiting.pop()
            ticks += cpu[pid]
            waiting += below.pop(pid, [])
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for thread in self._threads(pid):
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                        tasks[thread] = self._task(f"{pid}/task/{thread}")
        self.cpu_s = ticks / _TICKS
        return tasks

    def _task(self, path: str) -> _Task:
        # The state first: a thread that gets a processor in between then counts as runnable and its wait as counted.
        runnable = self._stat(path)[0] == "R"
        ran, waited, _ = self._text(f"{path}/schedstat").split()
        return _Task((int(ran) + int(waited)) / 1e9, runnable)

    def _threads(self, pid: str) -> list[str]:
        directory = os.open(f"{pid}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            return os.listdir(directory)
        finally:
            os.close(directory)

    def _stat(self, path: str) -> list[str]:
        """The fields after the name: state, parent, ..., from the twelfth on user, system, children's user and children's system ticks."""
        return self._text(f"{path}/stat").rpartition(")")[2].split()

    def _text(self, path: str) -> str:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._proc)
        try:
            return os.read(fd, 4096).decode("utf-8", "replace")
        finally:
            os.close(fd)


def open_births() -> int:
    """The file for `View.births`. Open it while /proc can be reached: who reads it is told of their own PID namespace."""
    try:
        return os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def open_view(level: str, births: int) -> View:
    """The view for the supervisors forked from here; `births` is from `open_births`.

    At `full` it is a /proc of the calling worker's PID namespace that is mounted nowhere; tests have it closed with everything else. Numbers
    are counted where a submission has a namespace of its own. A supervisor under Landlock may open nothing in /proc.
    """
    if level == confine.FULL:
        try:
            return View(kernel.detached_proc(), births)
        except (kernel.KernelError, OSError):
            return NO_VIEW
    return View(os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) if level == confine.NONE else -1, -1)
