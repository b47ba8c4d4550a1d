"""Files that survive a cut: atomic replacement, appended lines that reach the disk, reading lines back; and one process at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from code_rl.errors import ConfigError

logger = logging.getLogger("code_rl")
TAIL_BYTES = 1 << 16
BLOCK = 1 << 20
TEMPORARY = ".tmp"
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
CRC = b'{"crc": "'
BODY = len(CRC) + 8 + len(b'", ')
"""Where the record of a sealed line goes on after its checksum."""


@contextlib.contextmanager
def writes(out: object, kind: str = "folder") -> Iterator[None]:
    """What the system says of an `out=` that the block cannot write is a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"out={out} cannot be written: {error.strerror or error}; choose another {kind}") from error


def make_folder(out: Path) -> Path:
    """The folder of `out=`, tried by writing. Raises ConfigError."""
    with writes(out):
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    return out


def check_out(out: Path, holds: Callable[[Path], bool], what: str) -> None:
    """Raise ConfigError for an `out=` that is a file, or a folder that is not empty and does not hold an earlier `what`."""
    with writes(out):
        if out.exists() and not out.is_dir():
            raise ConfigError(f"out={out} is a file; give a folder")
        occupied = out.is_dir() and any(out.iterdir())
    if occupied and not holds(out):
        raise ConfigError(f"out={out} is not empty and holds no {what}; choose another folder")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`: temporary name, fsync, rename, directory fsync."""
    write_lines_atomically(path, (text,))


def write_lines_atomically(path: Path, parts: Iterable[str | bytes], *, mode: int = 0o600) -> None:
    """`write_atomically`, with text, or bytes, that come in parts. Nothing is left of a file that cannot be written whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with os.fdopen(_private(temporary, os.O_TRUNC), "wb") as file:
            file.writelines(part.encode() if isinstance(part, str) else part for part in parts)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def open_private(path: Path) -> TextIO:
    """Open a text file to append to, which only its owner may read and write when it is made here."""
    return os.fdopen(_private(path, os.O_APPEND), "a", encoding="utf-8")


def open_private_bytes(path: Path) -> io.FileIO:
    """The same for bytes that are appended, without a buffer: what could not be written is not kept for a second try."""
    return io.FileIO(_private(path, os.O_APPEND), "a")


def append_whole(file: io.FileIO, data: bytes) -> None:
    """Append all of `data`, or (a full disk) leave the file as it was, as far as that can be done, and raise OSError."""
    start, left = file.seek(0, os.SEEK_END), memoryview(data)
    try:
        while left:
            left = left[file.write(left) or 0 :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), start)
        raise


def _private(path: Path, how: int) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)


def lock_file(handle: int, *, wait: bool = False) -> bool:
    """Hold a lock on an open file until it is closed; raises BlockingIOError where another process holds it, unless it is to `wait`.

    False on a file system without locks, which is said once for each folder.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in _WITHOUT_LOCKS:
            _warn_without_lock(os.path.dirname(os.readlink(f"/proc/self/fd/{handle}")), error.strerror)
            return False
        if error.errno == errno.EACCES:  # how NFS says it
            raise BlockingIOError(*error.args) from error
        raise
    return True


@cache
def _warn_without_lock(folder: str, why: str) -> None:
    logger.warning("%s cannot be locked (%s); going on without: see that no other process writes into it", folder, why)


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Mark:
    """How a growing file began: its first `size` bytes and their CRC-32."""

    size: int
    crc: int


def mark_of(path: Path, size: int | None = None) -> Mark | None:
    """The mark of a file's first `size` bytes (None: of all), in flat memory. None when it is shorter; a missing file is empty."""
    left, crc, whole = size, 0, 0
    if path.exists():
        with path.open("rb") as file:
            while left != 0 and (block := file.read(BLOCK if left is None else min(BLOCK, left))):
                crc, whole = zlib.crc32(block, crc), whole + len(block)
                left = None if left is None else left - len(block)
    return Mark(whole, crc) if not left else None


def truncate(path: Path, size: int) -> None:
    """Cut a file to its first `size` bytes, on disk when this returns. A missing file stays missing."""
    if path.exists() and path.stat().st_size > size:
        with path.open("rb+") as file:
            file.truncate(size)
            os.fsync(file.fileno())


class JsonLines:
    """An append-only file of JSON objects, one a line. `durable` lines are on disk when `append` returns.

    `sealed` lines begin with a CRC-32 of the rest; `unsealed` checks it.
    """

    def __init__(self, path: Path, durable: bool = False, sealed: bool = False) -> None:
        self.path = path
        self._durable, self._sealed = durable, sealed
        self._mark: Mark | None = None
        self._file = open_private_bytes(path)

    def append(self, record: Mapping[str, Any], durable: bool | None = None) -> None:
        """Write one line and hand it to the operating system."""
        line = (seal(record) if self._sealed else json.dumps(record, ensure_ascii=True) + "\n").encode()
        append_whole(self._file, line)
        if self._mark is not None:
            self._mark = Mark(self._mark.size + len(line), zlib.crc32(line, self._mark.crc))
        if self._durable if durable is None else durable:
            self.sync()

    def mark(self) -> Mark:
        """The mark of the file as it is now; the first call reads it."""
        if self._mark is None:
            self._mark = mark_of(self.path)
            assert self._mark is not None
        return self._mark

    def sync(self) -> None:
        """Everything appended is on disk when this returns."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._file.close()


def seal(record: Mapping[str, Any]) -> str:
    """A record, which must not be empty, as a line that begins with the CRC-32 of the rest."""
    body = json.dumps(record, ensure_ascii=True)
    return f'{{"crc": "{zlib.crc32(body.encode()):08x}", {body[1:]}\n'


def unseal(line: bytes) -> dict[str, Any] | None:
    """The record of a sealed line; None for a line that is torn, altered or not sealed."""
    if line[: len(CRC)] != CRC or line[len(CRC) + 8 : BODY] != b'", ' or line[-1:] != b"\n":
        return None
    body = b"{" + line[BODY:-1]
    if b"%08x" % zlib.crc32(body) != line[len(CRC) : len(CRC) + 8]:
        return None
    record: dict[str, Any] = json.loads(body)
    return record


def raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, with their ends. Nothing if it is missing."""
    if path.exists():
        with path.open("rb") as file:
            yield from file


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole JSON objects of a file, in order; a line that a cut left torn ends it. Nothing if the file is missing."""
    return (record for _, record in whole_lines(path))


def whole_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """`read_lines`, each with where its line ends."""
    end = 0
    for line in raw_lines(path):
        try:
            record = json.loads(line.decode(errors="replace"))
        except (ValueError, RecursionError):
            return
        if not line.endswith(b"\n") or not isinstance(record, dict):
            return
        end += len(line)
        yield end, record


def keep_lines(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Rewrite a JSON lines file with only the whole lines that are wanted, one at a time: a log of any length fits."""
    if path.exists():
        kept = (json.dumps(record, ensure_ascii=True) + "\n" for record in read_lines(path) if wanted(record))
        write_lines_atomically(path, kept)


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
