"""When a test has had its time. Standard library only, Python 3.9 and later: it travels to remote servers as text.

The rule: a test ends when it has used its CPU seconds; past its wall cap it goes on only while, in one of any four seconds, its processes together
get at least a quarter of what one thread would get if the processors were shared fairly among all threads that are runnable on the machine; and
never beyond eight times the cap.
"""

from __future__ import annotations

import contextlib
import os

CEILING = 8
"""No test outlasts so many of its wall caps, whatever the load."""
FAIR_PART = 0.25
"""The part of one thread's fair share that keeps a test past its cap alive."""
WINDOW_S = 1.0
LEAN_WINDOWS = 4
"""So many windows in a row without that part, and the test is idle, not starved."""
UNKNOWN_PART = 1 / 64
"""Where the kernel does not tell how many threads are runnable, this part of a processor suffices."""
LONGEST_LOOK_S = 0.25
SHORTEST_LOOK_S = 0.01


class Clock:
    """The rule for one test. It knows nothing but what it is told.

    The windows before the cap are looked at as well, so that an idle test ends at its cap and not four windows after it.
    """

    def __init__(self, cpu_s: float, wall_s: float, strict: bool = False) -> None:
        """`strict`: the cap stops every test, a starved one too."""
        self.cpu_s, self.wall_s, self.strict = cpu_s, wall_s, strict
        self._window_s = min(WINDOW_S, wall_s / LEAN_WINDOWS)
        self._next_s = max(wall_s - LEAN_WINDOWS * self._window_s, 0.0)
        """When the open window closes; the first one, which is long, counts for nothing."""
        self._opened_s = self._cpu_before_s = 0.0
        self._runnable: int | None = None
        self._lean = -1

    def over(self, elapsed_s: float, cpu_s: float, runnable: int | None, processors: float) -> bool:
        """Whether the test has to end now: `cpu_s` is what all its processes used so far, `runnable` and `processors` are the machine's."""
        if cpu_s > self.cpu_s or elapsed_s >= CEILING * self.wall_s:
            return True
        if self.strict:
            return elapsed_s >= self.wall_s
        if elapsed_s < self._next_s:
            return False
        self._close(elapsed_s, cpu_s, runnable, processors)
        return elapsed_s >= self.wall_s and self._lean >= LEAN_WINDOWS

    def next_look(self, elapsed_s: float, cpu_s: float) -> float:
        """In how many seconds `over` may come to another answer."""
        end_s = self.wall_s if self.strict else min(self._next_s, CEILING * self.wall_s)
        return max(min(self.cpu_s - cpu_s, end_s - elapsed_s, LONGEST_LOOK_S), SHORTEST_LOOK_S)

    def _close(self, elapsed_s: float, cpu_s: float, runnable: int | None, processors: float) -> None:
        wanted = fair_part(processors, self._runnable, runnable)
        lean = cpu_s - self._cpu_before_s < wanted * (elapsed_s - self._opened_s)
        self._lean = 0 if self._lean < 0 or not lean else self._lean + 1
        self._opened_s, self._cpu_before_s, self._runnable = elapsed_s, cpu_s, runnable
        self._next_s = elapsed_s + self._window_s


def fair_part(processors: float, *runnable: int | None) -> float:
    """How many seconds of a processor in one second keep a test from being idle, by the greatest of some counts of runnable threads."""
    known = [count for count in runnable if count is not None]
    return FAIR_PART * min(1.0, processors / max(*known, 1)) if known else UNKNOWN_PART


class Load:
    """How many threads of the machine are runnable, from a /proc/loadavg that was opened while it could be."""

    def __init__(self) -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open("/proc/loadavg", os.O_RDONLY | os.O_CLOEXEC)
        self.processors = processors()

    def runnable(self) -> int | None:
        """Those on a processor or waiting for one, the calling one among them; None where the kernel does not tell."""
        try:
            return int(os.pread(self._fd, 128, 0).split()[3].partition(b"/")[0])
        except (OSError, ValueError, IndexError):
            return None


def processors() -> float:
    """How many processors this process may use: those it is bound to, fewer where a control group says so."""
    count = float(len(os.sched_getaffinity(0)))
    for paths in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        words: list[str] = []
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            for path in paths:
                with open(f"/sys/fs/cgroup/{path}", encoding="ascii") as file:
                    words += file.read().split()
            quota, period = map(int, words)
            if quota > 0:
                count = min(count, quota / period)
    return count
