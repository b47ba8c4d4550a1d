"""Keeps a command running until standard input closes, which happens however its owner ends.

    python guard.py COMMAND...

A command that ends is started again, unless it ended `_TRIES` times within `_WITHIN_S`. Nothing
that it started is left afterwards; SIGTERM to this process also ends it. Run by path, this module
needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

_TRIES, _WITHIN_S = 3, 3600.0
_POLL_S, _GRACE_S = 0.2, 10.0
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def main(command: list[str]) -> int:
    """Run the command, and run it again each time that it ends. Return 0 if the owner ended or by
    SIGTERM, 1 if the command has ended three times within an hour. The command and its descendants
    are ended first."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ends: list[float] = []
    while len(ends) < _TRIES or ends[-1] - ends[-_TRIES] > _WITHIN_S:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_guard
        )
        try:
            while child.poll() is None:
                if stopped or _owner_ended(_POLL_S):
                    return 0
        finally:
            _end(child)
        print(f"code-rl: ended with status {child.returncode}", flush=True)
        ends.append(time.monotonic())
    return 1


def _end_with_guard() -> None:
    """Have the kernel send this process SIGTERM when the guard is killed. It runs in the child
    before the command."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    """Set a process attribute of Linux, for the calling process. Does nothing elsewhere, and
    ignores refusals."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def _owner_ended(wait_s: float) -> bool:
    """Wait at most `wait_s` seconds, and return True if nobody holds the other end of standard
    input any more. A byte of input is discarded."""
    readable, _, _ = select.select([sys.stdin.fileno()], [], [], wait_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the command's process group, by force after ten seconds, and kill processes that left the
    group. Return when all have ended."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(child.pid, signal.SIGTERM)
        child.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    with contextlib.suppress(OSError):
        while left := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            for pid in left:
                os.kill(int(pid), signal.SIGKILL)
            os.waitpid(-1, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
