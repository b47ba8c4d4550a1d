"""Rows that come in any order and are written in theirs; what is ahead waits on disk."""

from __future__ import annotations

import os
import tempfile
from types import TracebackType
from typing import IO

from code_rl.errors import DataError

PARTIAL = ".partial"
"""Rows are written to a file of this ending until all are there: a run that is cut leaves whole rows there, and an older file as it was."""


class OrderedOutput:
    """Writes row after row to a file that takes its name when the block ends well.

    Rows ahead of the first one missing lie in a nameless file beside it, of which only the positions are in memory.
    """

    def __init__(self, path: str) -> None:
        """Raises DataError when the file cannot be written."""
        # A device or a pipe has no file beside it to be renamed.
        self._renamed = not os.path.exists(path) or os.path.isfile(path)
        self._path = os.path.realpath(path)
        self.written_to = self._path + PARTIAL if self._renamed else path
        self.rows = 0
        """How many rows are written, in order and without a gap."""
        self._ahead: dict[int, int] = {}
        try:
            self._stream: IO[bytes] = open(self.written_to, "wb")  # noqa: SIM115 - closed by __exit__
            directory = os.path.dirname(self._path) if self._renamed else None
            self._spill: IO[bytes] = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115
        except OSError as error:
            raise DataError(f"out={path} cannot be written: {error.strerror}") from error

    def put(self, index: int, row: str) -> None:
        """The row with this number, counted from 0, each once."""
        line = row.encode() + b"\n"
        if index != self.rows:
            self._ahead[index] = self._spill.seek(0, os.SEEK_END)
            self._spill.write(line)
            return
        self._stream.write(line)
        self.rows += 1
        while (position := self._ahead.pop(self.rows, None)) is not None:
            self._spill.seek(position)
            self._stream.write(self._spill.readline())
            self.rows += 1
        if not self._ahead:
            self._spill.truncate(0)
        self._stream.flush()

    def __enter__(self) -> OrderedOutput:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spill.close()
        self._stream.close()
        if not self._renamed:
            return
        if kind is None:
            os.replace(self.written_to, self._path)
        elif not self.rows:
            os.unlink(self.written_to)
