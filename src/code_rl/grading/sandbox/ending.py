"""The status with which a test ended, for every sandbox. Standard library only, Python 3.9 and
later: this file is sent to remote servers as text.

It does not judge the output. Tests without a report are decided in `blame`.
"""

from __future__ import annotations

import signal
from typing import NamedTuple

DETAIL_CHARS = 300
_TRACEBACK = "Traceback (most recent call last):"
_MEMORY_ERRORS = (
    "MemoryError",
    "numpy.core._exceptions._ArrayMemoryError",
    "numpy._core._exceptions._ArrayMemoryError",
)


class Allowed(NamedTuple):
    """The limits of a test."""

    cpu_s: float
    wall_s: float
    memory_bytes: int


class Ended(NamedTuple):
    """Observations of a test's end. `overflow` names a stream that was too long; `unanswered` is
    the reason for a missing value."""

    exit_code: int
    cpu_s: float
    wall_s: float
    peak_bytes: int
    stderr: bytes
    over_time: bool
    killed_for_memory: bool
    overflow: str = ""
    unanswered: str = ""


def status_of(seen: Ended, allowed: Allowed) -> tuple[str, str]:
    """Return the value of the test's `Status`, and a short message: the limit, the program's own
    exception line, or how it ended. The first reason that holds counts, in this order: output, CPU
    time, wall time, memory, exit code, missing value."""
    megabytes = allowed.memory_bytes >> 20
    if seen.overflow:
        return "output_limit", f"more than {seen.overflow}"
    if seen.cpu_s > allowed.cpu_s:
        return "time_limit", f"{seen.cpu_s:.2f} s of CPU time, limit {allowed.cpu_s:g} s"
    if seen.over_time:
        return (
            "time_limit",
            f"{seen.wall_s:.1f} s of wall time, mostly idle, limit {allowed.wall_s:g} s",
        )
    if seen.killed_for_memory or seen.peak_bytes > allowed.memory_bytes:
        return "memory_limit", f"more than {megabytes} MB"
    if seen.exit_code != 0:
        line = exception_line(seen.stderr)
        if line.startswith(_MEMORY_ERRORS):
            return "memory_limit", f"memory was refused, limit {megabytes} MB"
        return "runtime_error", line or _exit_in_words(seen.exit_code)
    return ("runtime_error", seen.unanswered) if seen.unanswered else ("ok", "")


def exception_line(stderr: bytes) -> str:
    """Return the line of the last traceback that names the exception, else the last line, at most
    300 characters; empty without output. The program may forge it.

    The lines of a traceback's frames are indented. The first line that is not indented names the
    exception, whatever its message contains.
    """
    lines = stderr[-4096:].decode("utf-8", "replace").strip().splitlines()
    frames = max(
        (number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)), default=None
    )
    named = [] if frames is None else [line for line in lines[frames + 1 :] if line[:1].strip()][:1]
    return next(iter(named or lines[-1:]), "")[:DETAIL_CHARS]


def _exit_in_words(exit_code: int) -> str:
    """Return an exit code in words; a negative one is a signal."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"
