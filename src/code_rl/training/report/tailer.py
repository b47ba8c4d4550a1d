"""Reads a run's JSON lines while they are written, cut off, resumed or rewritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from code_rl.util.errors import DataError


@dataclass(slots=True)
class JsonlTailer:
    """The JSON objects of a growing file. A line without its newline is left for later.

    `replaced` is True for a file that became shorter or was replaced (a resumed run rewrites its
    logs).
    """

    path: Path
    _identity: tuple[int, int] | None = None
    _offset: int = 0

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
        self._identity, self._offset = None, 0

    def read(self) -> Iterator[dict[str, Any]]:
        """Yield the complete objects that were appended since the last call, in order. Raises
        DataError for a damaged line."""
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
            for line in file:
                if not line.endswith(b"\n"):
                    return
                yield self._object(line)
                self._offset += len(line)

    def _object(self, line: bytes) -> Any:
        try:
            return orjson.loads(line)
        except orjson.JSONDecodeError:
            pass  # Python writes NaN, infinity and lone surrogates, which JSON does not allow.
        try:
            return json.loads(line)
        except ValueError as error:
            at = f"{self.path}, after {self._offset} bytes"
            raise DataError(f"{at}: a line is damaged ({error}); restore it") from error
