"""Keeps a command running until standard input closes, which happens however its owner ends.

    python guard.py COMMAND...

A command that ends is started again, unless it ended `_TRIES` times in a row within `_YOUNG_S`. It
runs in a process group of its own, of which nothing is left afterwards. Run by path, this module
needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

_TRIES, _YOUNG_S = 3, 120.0
_POLL_S, _GRACE_S = 0.2, 10.0


def main(command: list[str]) -> int:
    """Run the command. Return 0 if the owner ended, 1 if the command does not stay up."""
    failures = 0
    while failures < _TRIES:
        started = time.monotonic()
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            while child.poll() is None:
                if _owner_ended(_POLL_S):
                    return 0
        finally:
            _end(child)
        print(f"code-rl: ended with status {child.returncode}", flush=True)
        failures = failures + 1 if time.monotonic() - started < _YOUNG_S else 0
    return 1


def _owner_ended(wait_s: float) -> bool:
    """Return True if nobody holds the other end of standard input any more."""
    readable, _, _ = select.select([sys.stdin.fileno()], [], [], wait_s)
    return bool(readable) and not os.read(sys.stdin.fileno(), 1)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the command's process group, by force if it does not go."""
    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
        os.killpg(child.pid, signal.SIGTERM)
        child.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
