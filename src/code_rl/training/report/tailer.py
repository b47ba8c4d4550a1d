"""Reads a run's JSON lines while they are written, cut off, resumed or rewritten."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson


@dataclass(slots=True)
class JsonlTailer:
    """The JSON objects of a growing file. A line without its newline is left for later; a damaged
    one is counted and left out."""

    path: Path
    damaged: int = 0
    _identity: tuple[int, int] | None = None
    _offset: int = 0

    def rewound(self) -> bool:
        """Return True if the file became shorter or was replaced since it was read (a resumed run
        cuts its logs). The next `read` then starts from the beginning."""
        try:
            status = self.path.stat()
            known = status.st_size if (status.st_dev, status.st_ino) == self._identity else -1
        except FileNotFoundError:
            known = -1
        if self._identity is None or known >= self._offset:
            return False
        self._identity, self._offset, self.damaged = None, 0, 0
        return True

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
                return  # replaced since the last call; `rewound` will notice
            self._identity = identity
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                row = _object(line)
                if isinstance(row, dict):
                    yield row
                else:
                    self.damaged += 1
                self._offset += len(line)


def _object(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass  # Python writes NaN, infinity and lone surrogates, which JSON does not allow.
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
