"""Data files by name: opened, decompressed and read row by row, one row in memory at a time.

JSON Lines and Parquet are streamed. A Parquet file is read page by page, so it needs the memory of
its largest page.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from code_rl.util.errors import ConfigError, DataError, install_command

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

LINES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".json.gz", ".json.zst")
ARRAY = ".json"
PARQUET = ".parquet"
DATA_SUFFIXES = (*LINES, ARRAY, PARQUET)
MAX_ARRAY_BYTES = 256 << 20
"""A JSON array cannot be streamed; larger ones are refused."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_BATCH_BYTES = 8 << 20
_MAX_BATCH_ROWS = 256


def cache_folder() -> Path:
    """Return the folder for files that can be made or fetched again: `$CODE_RL_CACHE`, or `code-rl`
    in the user's cache folder. It may not exist."""
    given = os.environ.get("CODE_RL_CACHE")
    if given:
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "code-rl"


def data_folder() -> Path:
    """Return the folder of public files: `$CODE_RL_DATA`, or `data` in the cache folder. It may not
    exist."""
    given = os.environ.get("CODE_RL_DATA")
    return Path(given).expanduser() if given else cache_folder() / "data"


@lru_cache
def sources_digest(*modules: str) -> str:
    """Return a hash of the source of these modules and packages of ours (`code_rl.…`), read once
    per process. A change invalidates their output."""
    digest = hashlib.sha256()
    for name in modules:
        place = Path(__file__).parents[1].joinpath(*name.split(".")[1:])
        for path in sorted(place.rglob("*.py")) if place.is_dir() else (place.with_suffix(".py"),):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal. Raises OSError."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def describe_files(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return name, size in bytes and SHA-256 of files for a manifest, in order, without their
    folders. Raises OSError."""
    return [
        {"name": path.name, "bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in paths
    ]


def is_data_file(name: str) -> bool:
    """Return True for a name that `stream_rows` can read, by its ending alone."""
    return name.endswith(DATA_SUFFIXES)


def open_binary(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading its bytes, decompressed if its name ends in .gz or .zst; the caller
    closes it. Raises OSError, and ConfigError for .zst without pyarrow."""
    name = os.fspath(path)
    if name.endswith(".gz"):
        return gzip.open(name, "rb")  # type: ignore[return-value]
    if not name.endswith(".zst"):
        return open(name, "rb")
    try:
        import pyarrow
    except ImportError as error:
        raise ConfigError(
            f"{name}: reading .zst needs pyarrow; {install_command('data')}"
        ) from error
    return io.BufferedReader(pyarrow.input_stream(name, compression="zstd"), 1 << 20)


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield line numbers (from 1, blank lines counted) and bytes of the lines that are not blank,
    with their ends, without a byte order mark, decompressed by the file's name.

    Raises DataError if the file cannot be opened, read or decompressed, also after some lines.
    """
    try:
        with open_binary(path) as stream:
            for number, line in enumerate(stream, start=1):
                stripped = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if stripped.strip():
                    yield number, stripped
    except (OSError, EOFError) as error:
        raise DataError(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


def scan_rows(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any] | DataError]]:
    """Yield the rows of a data file in order, each with its position as text. A row that cannot be
    read is an error in its place, not raised.

    Raises DataError for a file that cannot be read at all, ConfigError if a library for it is
    missing; both on the first `next`, or later for a damaged file.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{path}: there is no such file")
    with file.open("rb") as stream:
        if stream.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise DataError(f"{path} is a Git LFS pointer, not the data; run git lfs pull there")
    if file.name.endswith(PARQUET):
        yield from ((f"{path}, row {n}", row) for n, row in enumerate(_parquet_rows(file), start=1))
    elif file.name.endswith(ARRAY) and not _begins_with_object(file):
        yield from ((f"{path}, item {n}", row) for n, row in enumerate(_array_rows(file)))
    else:
        for number, line in read_lines(path):
            where = f"{path}, line {number}"
            try:
                yield where, read_object(line, where)
            except DataError as error:
                yield where, error


def read_rows(path: str | os.PathLike[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of `scan_rows` that can be read, each with its position as text. After the
    last one, raise one DataError that lists the others (the first five, and the number of the
    rest)."""
    errors: list[str] = []
    for where, row in scan_rows(path):
        if isinstance(row, DataError):
            errors.append(str(row))
        else:
            yield where, row
    if errors:
        raise DataError(listed(errors))


def stream_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of `read_rows` without their positions. Raises as that does."""
    return (row for _, row in read_rows(path))


def listed(errors: Sequence[str], most: int = 5) -> str:
    """Return the first `most` errors as one line, with the number of the others."""
    more = f"; and {len(errors) - most} more" if len(errors) > most else ""
    return "; ".join(errors[:most]) + more


def read_object(line: bytes, where: str) -> dict[str, Any]:
    """Return the JSON object on one line. Integers of any length are allowed. Raises DataError,
    beginning with `where`, for anything else."""
    array = "; a JSON array is read from a file named .json" if line.lstrip()[:1] == b"[" else ""
    data = _parse(line, where, f"each line must be one JSON object{array}")
    if not isinstance(data, dict):
        raise DataError(f"{where}: a JSON object was expected, not {short(data)}{array}")
    return data


def short(value: Any) -> str:
    """Return `value` as JSON text of at most 80 characters, for messages; the name of its type if
    it has no JSON form."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


def parse_json(text: str) -> Any:
    """Return the value of a JSON text, with integers of any length: it lifts this process's limit
    on their digits. Raises ValueError, also for values that are nested too deeply."""
    sys.set_int_max_str_digits(0)
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _parse(text: bytes, where: str, wanted: str) -> Any:
    """Parse JSON text in UTF-8. Raises DataError that begins with `where` and ends with
    `wanted`."""
    try:
        return parse_json(text.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: not UTF-8 text ({error.reason} at byte {error.start})"
        ) from error
    except ValueError as error:
        raise DataError(f"{where}: not JSON: {error}; {wanted}") from error


def _begins_with_object(path: Path) -> bool:
    """Return True for a `.json` file with one object per line."""
    with path.open("rb") as stream:
        return stream.read(1 << 16).lstrip()[:1] == b"{"


def _array_rows(path: Path) -> Iterator[dict[str, Any] | DataError]:
    """Yield the rows of a JSON array; an item that is no object is yielded as its error. Raises
    DataError for a file of more than 256 MiB or without an array."""
    size = path.stat().st_size
    if size > MAX_ARRAY_BYTES:
        raise DataError(
            f"{path}: a JSON array of {size >> 20} MiB cannot be streamed; write it as JSON "
            "Lines (.jsonl)"
        )
    rows = _parse(path.read_bytes(), str(path), "an array of objects was expected")
    if not isinstance(rows, list):
        raise DataError(f"{path}: an array of objects was expected, not {short(rows)}")
    for index, row in enumerate(rows):
        error = f"{path}, item {index}: a JSON object was expected, not {short(row)}"
        yield row if isinstance(row, dict) else DataError(error)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows in order, read in batches of at most 256 rows and about 8 MiB. Raises
    DataError for a damaged file, ConfigError without pyarrow."""
    from pyarrow import ArrowException

    with _open_parquet(path) as file:
        for group in range(file.metadata.num_row_groups):
            facts = file.metadata.row_group(group)
            per_row = facts.total_byte_size // max(1, facts.num_rows) + 1
            rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // per_row))
            try:
                for batch in file.iter_batches(
                    batch_size=rows, row_groups=[group], use_threads=False
                ):
                    for index in range(batch.num_rows):
                        yield batch.slice(index, 1).to_pylist()[0]
            except (ArrowException, OSError) as error:
                raise DataError(f"{path} cannot be read: {error}") from error


def _open_parquet(path: Path) -> ParquetFile:
    """Open a Parquet file for reading page by page. Raises ConfigError without pyarrow, DataError
    if the file cannot be opened."""
    try:
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise ConfigError(
            f"{path}: reading Parquet needs pyarrow; {install_command('data')}"
        ) from error
    try:
        return ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
    except (ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
