"""Files that survive an interruption: atomic replacement, durable appends, reading lines back, and
a lock for one process at a time."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from code_rl.util.errors import ConfigError, DataError, InputError

TAIL_BYTES = 1 << 16
LOCK = "lock"
"""The lock file in a folder that one process at a time writes."""
TEMPORARY = ".tmp"
Key = TypeVar("Key", bound=Hashable)


@contextlib.contextmanager
def writes(
    out: object,
    kind: str = "folder",
    error: type[InputError] = ConfigError,
    setting: str = "out",
) -> Iterator[None]:
    """Turn an OSError of the block, which writes the path `out` of a setting, into `error`, which
    names the setting and suggests another `kind` of path."""
    try:
        yield
    except OSError as refused:
        raise error(
            f"{setting}={out} cannot be written: {refused.strerror or refused}; "
            f"choose another {kind}"
        ) from refused


def make_folder(out: Path) -> Path:
    """Make the folder of `out=` with its parents, test that it can be written, and return it. An
    existing one stays as it is. Raises ConfigError."""
    with writes(out):
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    return out


def check_out(out: Path, holds: Callable[[Path], bool], what: str) -> None:
    """Raise ConfigError for an `out=` that is a file, or a non-empty folder for which `holds` is
    false: it has no earlier `what`. Nothing is written."""
    with writes(out):
        if out.exists() and not out.is_dir():
            raise ConfigError(f"out={out} is a file; give a folder")
        occupied = out.is_dir() and any(out.iterdir())
    if occupied and not holds(out):
        raise ConfigError(f"out={out} is not empty and holds no {what}; choose another folder")


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text` in UTF-8, for its owner only: temporary name in the same folder,
    fsync, rename, directory fsync. Readers see the old file or the whole new one. Raises
    OSError."""
    write_lines_atomically(path, (text,))


def write_lines_atomically(path: Path, parts: Iterable[str | bytes], *, mode: int = 0o600) -> None:
    """Do the same as `write_atomically`, with text or bytes in parts, without line ends between
    them, and permissions `mode`. If the file cannot be written completely, the old one stays.
    Raises OSError that names `path`."""
    handle, name = tempfile.mkstemp(TEMPORARY, f".{path.name}.", path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(part.encode() if isinstance(part, str) else part for part in parts)
            file.flush()
            os.fsync(file.fileno())
            if hasattr(os, "fchmod"):  # Windows does not have such modes
                os.fchmod(file.fileno(), mode)
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)


def open_private(path: Path) -> TextIO:
    """Open a text file (UTF-8) for appending; the caller closes it. If it is new, only its owner
    may read and write it. Raises OSError."""
    return os.fdopen(_private(path), "a", encoding="utf-8")


def open_private_bytes(path: Path) -> io.FileIO:
    """Do the same as `open_private` for bytes, read and appended without a buffer: a failed write
    is not tried again, and every write is with the operating system when it returns."""
    return io.FileIO(path, "a+", opener=lambda *_: _private(path))


def append_whole(file: io.FileIO, data: bytes) -> int:
    """Append all of `data` and return the offset at which it begins. It is not synced. On failure
    (a full disk) restore the file's length if possible, and raise OSError. The file has one
    writer."""
    start, left = file.seek(0, os.SEEK_END), memoryview(data)
    try:
        while left:
            left = left[file.write(left) or 0 :]
    except OSError as error:
        error.filename = str(file.name)
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), start)
        raise
    return start


def _private(path: Path) -> int:
    """Open a file for reading and appending and return its descriptor; if it is new, only its owner
    may read and write it. Raises OSError."""
    system = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | system, 0o600)


@contextlib.contextmanager
def only_writer(
    path: Path, what: str, error: type[InputError] = ConfigError, *, stays: bool = True
) -> Iterator[None]:
    """Hold the lock file `path`, which is made, during the block, and delete it afterwards unless
    it `stays`. `what` is the setting, for messages.

    Raises `error` if it cannot be locked, or if another process still holds it after half a second.
    The kernel frees the lock of a process that is killed.
    """
    from filelock import FileLock, Timeout  # here, so that judging alone loads nothing

    # `is_held` takes the lock for a moment, which is no reason to refuse.
    lock = FileLock(path, timeout=0.5, mode=0o600, thread_local=False)
    try:
        os.close(_private(path))  # filelock waits where there can be no file
        lock.acquire()
    except Timeout as held:
        raise error(
            f"{what} is in use by another process; wait for it, or choose another"
        ) from held
    except OSError as refused:
        raise error(f"{what} cannot be locked: {refused.strerror}; choose another") from refused
    try:
        yield
    finally:
        if not stays:
            path.unlink(missing_ok=True)
        lock.release()


def is_held(path: Path) -> bool:
    """Return True if a process holds the lock file `path`, this one included, or if that cannot be
    found out: without the file, and on Windows."""
    try:
        import fcntl  # Windows does not have it

        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (ImportError, OSError):
        return True
    return False


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable. It does nothing on Windows. Raises
    OSError."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows cannot open directories
        return
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def size_of(path: Path) -> int:
    """Return the bytes of a file. A missing one has 0."""
    return path.stat().st_size if path.exists() else 0


def truncate(path: Path, size: int) -> None:
    """Cut a file to its first `size` bytes, durably. A missing or shorter file stays as it is.
    Raises OSError."""
    if path.exists() and path.stat().st_size > size:
        with path.open("rb+") as file:
            file.truncate(size)
            os.fsync(file.fileno())


class JsonLines:
    """An append-only file of JSON objects, one per line. `durable` lines are on disk when `append`
    returns."""

    def __init__(self, path: Path, durable: bool = False) -> None:
        """Open the file for appending, and make it, for its owner only, if it is missing. A line
        that was cut off earlier is not repaired (`drop_torn_line`). Raises OSError."""
        self.path, self._durable = path, durable
        self._file = open_private_bytes(path)

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one line and pass it to the operating system, so that it survives a kill of this
        process; a `durable` one is synced. Raises OSError, and then leaves no part of the line if
        possible."""
        append_whole(self._file, line_of(record))
        if self._durable:
            self.sync()

    def sync(self) -> None:
        """Write everything that was appended to disk (fsync). Raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, without syncing it. Idempotent."""
        self._file.close()


class KeyedLog(Generic[Key]):
    """An append-only file of JSON objects, found by the key that `key_of` returns; the last row of
    a key counts.

    Once `put` returns, a row survives a kill of this process. Opening drops an incomplete last
    line. Only the rows' offsets are in memory.

    Raises DataError, naming the line, for a line that is not such a row.
    """

    def __init__(self, path: Path, key_of: Callable[[Mapping[str, Any]], Key]) -> None:
        """Read the whole file once, and open it. Raises DataError, and OSError."""
        self.path, self._key_of = path, key_of
        self._open()

    def _open(self) -> None:
        """Read where each key's last row is, and open the file, which is made if it is missing, for
        appending. Raises DataError."""
        drop_torn_line(self.path)
        self._places: dict[Key, tuple[int, int]] = {}
        end = 0
        for size, row in sized_lines(self.path):
            try:
                self._places[self._key_of(row)] = end, size
            except (KeyError, TypeError, ValueError) as error:
                raise DataError(
                    f"{self.path} holds a line that is not its own ({error})"
                ) from error
            end += size
        self._file = open_private_bytes(self.path)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[Key]:
        """Yield the keys, in the order of their first rows."""
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: Key) -> dict[str, Any] | None:
        """Return the last row under a key, read from the file, or None."""
        if key not in self._places:
            return None
        start, size = self._places[key]
        row: dict[str, Any] = json.loads(os.pread(self._file.fileno(), size, start))
        return row

    def put(self, row: Mapping[str, Any]) -> None:
        """Append one row; it replaces an earlier row of its key. Raises OSError if it cannot be
        written. `row` must have a key, which is read only after the row was written."""
        line = line_of(row)
        self._places[self._key_of(row)] = append_whole(self._file, line), len(line)

    def rewrite(self, keys: Iterable[Key]) -> None:
        """Keep only the rows under these keys, in this order, on disk: the file is replaced
        atomically. Unknown keys are left out. Raises OSError, and then keeps the old file."""
        kept = (line_of(row) for key in keys if (row := self.get(key)) is not None)
        write_lines_atomically(self.path, kept)
        self.close()
        self._open()

    def close(self) -> None:
        """Close the file, without syncing it; rows cannot be read afterwards. Idempotent."""
        self._file.close()


def digest(*parts: object) -> str:
    """Return a hash of JSON-able parts, 32 hexadecimal digits; equal parts give equal hashes in
    every process. Kept files are found by it, so it must not change. Raises TypeError for other
    parts."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def line_of(record: Mapping[str, Any]) -> bytes:
    """Return a record as one line of ASCII JSON with its line end. Raises TypeError for a value
    that has no JSON form."""
    return json.dumps(record, ensure_ascii=True).encode() + b"\n"


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file, in order; an incomplete last line is ignored. Nothing if
    the file is missing.

    Raises DataError, naming the line, for any other line that is not an object.
    """
    return (row for _, row in sized_lines(path))


def sized_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number of bytes of the line, object) for each object of `read_lines`, in order. Raises
    DataError as that does."""
    for number, (size, row) in enumerate(scanned_lines(path), 1):
        if row is None:
            raise DataError(f"{path}, line {number}, is damaged; restore it, or delete the line")
        yield size, row


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file that only records, in order; damaged lines are left out.
    Nothing if the file is missing."""
    return (row for _, row in scanned_lines(path) if row is not None)


def scanned_lines(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yield the number of bytes of each complete line, and its JSON object (None: damaged). An
    incomplete last line ends it; nothing if the file is missing."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            yield len(line), row if isinstance(row, dict) else None


def drop_torn_line(path: Path) -> None:
    """Cut off an incomplete last line, so that the next append begins a new one. A missing file
    stays missing. The file has no other writer."""
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
