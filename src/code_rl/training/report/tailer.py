"""Reads a run's JSON lines while they are written, cut off, resumed or rewritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

MAX_LINE_BYTES = 256 << 20


@dataclass(slots=True)
class JsonlTailer:
    """The JSON objects of a growing file. A line without its newline is left for later; a line that
    is not an object is counted as damaged.

    `replaced` is True for a file that became shorter or was replaced (a resumed run rewrites its
    logs). `damaged` are the numbers, from 1, of the lines that could not be read.
    """

    path: Path
    damaged: list[int] = field(default_factory=list)
    _identity: tuple[int, int] | None = None
    _offset: int = 0
    line: int = 0

    def replaced(self) -> bool:
        """True if the file no longer begins with the part read so far."""
        if self._identity is None:
            return False
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return True
        return (status.st_dev, status.st_ino) != self._identity or status.st_size < self._offset

    def rewind(self) -> None:
        """Start again from the beginning."""
        self.damaged, self._identity, self._offset, self.line = [], None, 0, 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the complete objects that were appended since the last call, in order."""
        try:
            opened = self.path.open("rb", buffering=1 << 20)
        except FileNotFoundError:
            return
        with opened as file:
            status = os.fstat(file.fileno())
            identity = (status.st_dev, status.st_ino)
            if self._identity not in (None, identity):
                return  # replaced since the last call; `replaced` will be True
            self._identity = identity
            file.seek(self._offset)
            while line := file.readline(MAX_LINE_BYTES):
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                self.line += 1
                record = _object(line)
                if record is not None:
                    yield record
                elif line.strip():
                    self.damaged.append(self.line)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            # Python writes NaN, infinity and lone surrogates, which JSON does not allow.
            record = _encodable(json.loads(line))
        except (ValueError, RecursionError):
            return None
    return record if isinstance(record, dict) else None


def _encodable(value: Any) -> Any:
    """Return the same value with texts that can be encoded as UTF-8."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_encodable(each) for each in value]
    if isinstance(value, dict):
        return {_encodable(name): _encodable(each) for name, each in value.items()}
    return value
