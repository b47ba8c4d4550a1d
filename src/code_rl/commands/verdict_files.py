"""Files of verdicts: rows appended as they come and put in order at the end."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from code_rl.errors import DataError
from code_rl.files import drop_torn_line, lock_file
from code_rl.judging.verdict import VerdictKind

PARTIAL = ".partial"
"""Rows are appended to a file of this ending as they are given; the output itself appears when all are there."""


class VerdictLog:
    """The rows of `out`, appended as they come, found again by the `key` of what was judged, and put in order at the end.

    Rows that an earlier run left, there or in a finished `out`, count: a cut costs the programs in flight. Those of other programs, which `names`, fields of
    every row, tell apart, stay. One process at a time: the file of rows is locked. Only places are in memory.
    """

    def __init__(self, out: str, names: Sequence[str] = ("problem_id", "program_id")) -> None:
        """Raises DataError when the file cannot be written, holds other things than such rows, or is being written."""
        if not out or os.path.isdir(out):
            raise DataError(f"out={out} must be a file; name one")
        # A device or a pipe has no file beside it to be renamed.
        self._beside = not os.path.exists(out) or os.path.isfile(out)
        self._out, self._names, self.path = out, names, os.path.realpath(out) + PARTIAL
        self._places: dict[str, tuple[int, int]] = {}
        self._held: dict[tuple[str, str | None], tuple[int, int]] = {}
        self._files: list[IO[bytes]] = []
        with contextlib.ExitStack() as opened:
            try:
                self._rows: IO[bytes] = open(self.path, "ab+") if self._beside else tempfile.TemporaryFile()  # noqa: SIM115
                opened.enter_context(self._rows)
                if self._beside:
                    lock_file(self._rows.fileno())
                    if not os.fstat(self._rows.fileno()).st_nlink:
                        raise BlockingIOError  # another process has just finished it
                    drop_torn_line(Path(self.path))
                self._files.append(self._rows)
                if self._beside and os.path.isfile(out):
                    self._files.append(opened.enter_context(open(out, "rb")))
            except BlockingIOError as error:
                raise DataError(f"out={out} is being written by another process; wait for it, or name another") from error  # fmt: skip
            except OSError as error:
                raise DataError(f"out={out} cannot be written: {error.strerror}") from error
            try:
                for number in reversed(range(len(self._files))):
                    self._find(number)
            except DataError:
                self._tidy()
                raise
            self._opened = opened.pop_all()
        self.earlier = len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def put(self, row: Mapping[str, Any]) -> None:
        """Keep one row; it survives a kill of this process once this returns."""
        self._places[row["key"]] = 0, self._rows.seek(0, os.SEEK_END)
        self._rows.write(json.dumps(row).encode() + b"\n")
        self._rows.flush()

    def row(self, key: str) -> dict[str, Any]:
        """The row under a key."""
        row: dict[str, Any] = json.loads(self._line(*self._places[key]))
        return row

    def _line(self, number: int, place: int) -> bytes:
        self._files[number].seek(place)
        return self._files[number].readline()

    def finish(self, rows: Iterator[dict[str, Any]]) -> None:
        """Write all rows, in order, to the output, and after them those of other programs that were there."""
        target, written = os.path.realpath(self._out), set[str]()
        with open(target + ".tmp" if self._beside else self._out, "wb") as stream:
            for row in rows:
                written.add(self._name(row))
                stream.write(json.dumps(row).encode() + b"\n")
            if self._beside:
                stream.writelines(self._line(*at) for (name, _), at in self._held.items() if name not in written)
        if self._beside:
            os.replace(target + ".tmp", target)
            os.unlink(self.path)

    def __enter__(self) -> VerdictLog:
        return self

    def __exit__(self, *_: object) -> None:
        self._tidy()
        self._opened.close()

    def _tidy(self) -> None:
        if self._beside and os.path.exists(self.path) and not os.path.getsize(self.path):
            os.unlink(self.path)

    def _name(self, row: Mapping[str, Any]) -> str:
        return json.dumps([row[name] for name in self._names])

    def _find(self, number: int) -> None:
        """Places of the rows, and of those that are verdicts about their programs."""
        file, place = self._files[number], 0
        file.seek(0)
        for count, line in enumerate(file, 1):
            try:
                row = json.loads(line)
                if row["verdict"] is not None and not VerdictKind(row["verdict"]).undecided:
                    self._places[row["key"]] = number, place
                self._held[self._name(row), row["key"]] = number, place
            except (ValueError, TypeError, KeyError) as error:
                if number:
                    raise DataError(f"out={self._out} holds something else than such verdicts (line {count}); name another file") from error  # fmt: skip
            place += len(line)


def counted(rows: Iterable[dict[str, Any]], counts: Counter[VerdictKind]) -> Iterator[dict[str, Any]]:
    """The rows, which `counts` counts by verdict as they pass."""
    for row in rows:
        counts[VerdictKind(row["verdict"])] += 1
        yield row
