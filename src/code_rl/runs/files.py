"""Files that survive a cut: atomic replacement, appended lines that reach the disk, and reading lines back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TextIO

TAIL_BYTES = 1 << 16


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`: temporary name, fsync, rename, directory fsync."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open_private(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def open_private(path: Path, mode: Literal["w", "a"]) -> TextIO:
    """Open a text file, which only its owner may read and write when it is made here."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if mode == "w" else os.O_APPEND)
    return os.fdopen(os.open(path, flags, 0o600), mode, encoding="utf-8")


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class JsonLines:
    """An append-only file of JSON objects, one a line. `durable` lines are on disk when `append` returns."""

    def __init__(self, path: Path, durable: bool = False) -> None:
        self.path = path
        self._durable = durable
        self._file: TextIO = open_private(path, "a")

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and hand it to the operating system."""
        self._file.write(json.dumps(record, ensure_ascii=True) + "\n")
        self._file.flush()
        if self._durable:
            self.sync()

    def sync(self) -> None:
        """Everything appended is on disk when this returns."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole JSON objects of a file, in order; a line that a cut left torn ends it. Nothing if the file is missing."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                record = json.loads(line)
            except ValueError:
                return
            if not line.endswith("\n") or not isinstance(record, dict):
                return
            yield record


def keep_lines(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrite a JSON lines file with only the whole lines that are wanted."""
    if path.exists():
        kept = [json.dumps(record, ensure_ascii=True) + "\n" for record in read_lines(path) if wanted(record)]
        write_atomically(path, "".join(kept))


def drop_torn_line(path: Path) -> None:
    """Cut off what a cut run left of a last line, so that the next append begins a line of its own."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - TAIL_BYTES)
            file.seek(start)
            newline = file.read(end - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            end = start
        file.truncate(0)
