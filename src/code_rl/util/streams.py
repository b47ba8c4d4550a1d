"""Standard streams that end no work, whatever happens to the output."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import Any


class _Stream(io.FileIO):
    """A standard stream whose reader may stop early (`| head`), or whose disk may be full: later
    output is dropped, and the work continues. Without `last_words`, for stderr, the output is the
    work, and only a reader may stop it."""

    last_words = ""

    def write(self, data: Any) -> int:
        """Write, or drop the output. On the first failure the descriptor is turned to /dev/null for
        good, and `last_words` go to stderr. Raises OSError for a failure that is no missing reader,
        if there are no last words."""
        try:
            return super().write(data) or 0
        except OSError as error:
            if not (self.last_words or isinstance(error, BrokenPipeError)):
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            with contextlib.suppress(OSError):
                os.write(2, self.last_words.encode())
            return len(data)


def outlive_readers(*, quietly: bool = False) -> None:
    """Let the process continue without readers of its output (`quietly` omits the notice about
    this), and print `?` for a character that a stream cannot encode. Closed descriptors 0 to 2 are
    opened on /dev/null.

    It replaces `sys.stdout` and `sys.stderr`, unless they are another program's (a notebook, a
    test). Repeated calls change nothing.
    """
    for fd in range(3):
        with contextlib.suppress(OSError):
            os.fstat(fd)
            continue
        # It was closed (`2>&-`); this takes its number.
        os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue  # a notebook's
        if stream is not getattr(sys, f"__{name}__"):
            stream.reconfigure(errors="replace")  # a test's, or done already
            continue
        stream.flush()
        raw = _Stream(stream.fileno(), "w", closefd=False)
        if name == "stdout" and not quietly:
            raw.last_words = (
                "this command's output is cut off; the command goes on without (Ctrl-C ends it)\n"
            )
        at_once = stream.line_buffering or stream.write_through
        buffer = io.BufferedWriter(raw)
        text = io.TextIOWrapper(buffer, stream.encoding, "replace", line_buffering=at_once)
        setattr(sys, name, text)
