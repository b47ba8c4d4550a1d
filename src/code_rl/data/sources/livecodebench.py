"""LiveCodeBench `code_generation_lite`: shards and releases, date windows, raw row to problem.

A release is several shards: `release_v5` is shards 1 to 5, `v5` only the fifth, and `v3_v5` the
third to the fifth. A window selects rows by `contest_date`, both ends inclusive.
"""

from __future__ import annotations

import base64
import contextlib
import io
import pickle
import re
import zlib
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, NoReturn

from code_rl.data.sources.records import Origin, Row, RowError, Skipped, field, from_json
from code_rl.data.sources.testcases import CALL_PRELUDE, read_tests
from code_rl.grading import Problem, TestCase
from code_rl.util.data_files import parse_json
from code_rl.util.errors import ConfigError

REPOSITORY = "livecodebench/code_generation_lite"
SHARDS = ("test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl", "test6.jsonl")

OUTSIDE_WINDOW = "outside_window"
"""The reason code of valid rows that were not selected."""

_BEFORE_BUILTINS = (
    "string",
    "re",
    "datetime",
    "collections",
    "heapq",
    "bisect",
    "copy",
    "math",
    "random",
    "statistics",
    "itertools",
    "functools",
    "operator",
    "io",
    "sys",
    "json",
)

LCB_PRELUDE = (
    "".join(f"from {name} import *\n" for name in (*_BEFORE_BUILTINS, "builtins", "typing"))
    + f"import {', '.join(_BEFORE_BUILTINS)}\nsys.setrecursionlimit(50000)\n"
)
"""LiveCodeBench's preamble of every program: all names of these modules (later modules win), then
the modules themselves."""

MAX_PRIVATE_BYTES = 1 << 30
_RELEASE = re.compile(r"release_v([1-9])|v([1-9])(?:_v([1-9]))?")


@dataclass(frozen=True, slots=True)
class Window:
    """Contest dates from `start` to `end`, both inclusive; None: open."""

    start: date | None = None
    end: date | None = None

    def __contains__(self, day: date) -> bool:
        """Return True for a day within the window, both ends included."""
        return (self.start is None or day >= self.start) and (self.end is None or day <= self.end)

    def __str__(self) -> str:
        """Return the window in words, for users and records."""
        if self.start is None and self.end is None:
            return "all dates"
        return f"{self.start or 'the first'} to {self.end or 'the last'} inclusive"


def parse_window(start: str | None, end: str | None) -> Window:
    """Return a window from `YYYY-MM-DD` texts (None: open at that end). Raises ConfigError for
    another form, and for an end before the start."""
    days: list[date | None] = []
    for name, text in (("start_date", start), ("end_date", end)):
        try:
            days.append(None if text is None else date.fromisoformat(text))
        except ValueError as error:
            raise ConfigError(f"{name}={text!r} is not a date; write YYYY-MM-DD") from error
    window = Window(*days)
    if window.start is not None and window.end is not None and window.end < window.start:
        raise ConfigError(f"end_date={end} is before start_date={start}; both ends are inclusive")
    return window


def release_shards(version: str) -> tuple[str, ...]:
    """Return the shard files of `release_vN` (the first N), `release_latest`, `vN` (only that one)
    or `vM_vN`.

    Raises ConfigError for anything else.
    """
    if version == "release_latest":
        return SHARDS
    match = _RELEASE.fullmatch(version)
    if match is not None:
        release, single, last = (int(part) if part else None for part in match.groups())
        low, high = (1, release) if release else (single or 1, last or single or 1)
        if low <= high <= len(SHARDS):
            return SHARDS[low - 1 : high]
    raise ConfigError(
        f"version={version!r} is no LiveCodeBench release; use release_v1 to "
        f"release_v{len(SHARDS)} (the shards so far), "
        f"release_latest, v1 to v{len(SHARDS)} (one shard) or vM_vN"
    )


def shard_paths(folder: Path, version: str) -> list[Path]:
    """Return the shard files of a release in a local folder, in order. Raises ConfigError for an
    unknown version, or naming the first missing file."""
    paths = [folder / name for name in release_shards(version)]
    if missing := [path.name for path in paths if not path.is_file()]:
        raise ConfigError(
            f"{folder} has no {missing[0]}, which version={version} needs; get it from {REPOSITORY}"
        )
    return paths


def read_livecodebench(
    row: Row, _origin: Origin, window: Window | None = None
) -> Problem | Skipped:
    """Return a row as a problem. A row outside `window` (None: all dates) is Skipped, and its tests
    are not decoded.

    Raises RowError: `missing_field`, `wrong_field_type`, `bad_date`, `bad_private_tests`,
    `pickle_refused`, `not_json`, `bad_tests`.
    """
    day = _contest_day(row)
    if window is not None and day not in window:
        return Skipped(field(row, "question_id", str), OUTSIDE_WINDOW, str(day))
    public = _tests(row, "public_test_cases", field(row, "public_test_cases", str))
    private = _tests(
        row, "private_test_cases", decode_private_tests(field(row, "private_test_cases", str))
    )
    kinds = {called for tests, called in (public, private) if tests}
    if len(kinds) != 1:
        raise RowError("bad_tests", "no tests, or public and private ones of different kinds")
    starter, called = field(row, "starter_code", str), kinds.pop()
    meta = {name: field(row, name, str) for name in ("platform", "difficulty", "contest_id")}
    meta |= {"preamble": CALL_PRELUDE} if called else {}
    return Problem(
        id=field(row, "question_id", str),
        statement=field(row, "question_content", str),
        tests=(*(replace(test, public=True) for test in public[0]), *private[0]),
        starter_code=starter if starter.strip() else None,
        fn_name=called,
        source="livecodebench",
        date=day.isoformat(),
        meta={"title": field(row, "question_title", str), **meta},
    )


def decode_private_tests(text: str) -> Any:
    """Return the JSON value of `private_test_cases`: JSON, or base64 of zlib of a pickled string of
    JSON, as upstream stores it.

    The pickle may hold only a string, or `{"input_output": string}` as in copies of the set. No
    name in it is ever looked up or called. Raises RowError for anything else, and for more than 1
    GiB.
    """
    with contextlib.suppress(ValueError):
        return parse_json(text)
    try:
        unpacked = _inflate(base64.b64decode(text, validate=True))
    except (zlib.error, ValueError) as error:
        raise RowError("bad_private_tests", f"neither JSON nor base64 of zlib: {error}") from error
    try:
        return parse_json(_unpickle_text(unpacked))
    except ValueError as error:
        raise RowError("bad_private_tests", f"the pickled text is not JSON: {error}") from error


class _TextUnpickler(pickle.Unpickler):
    """Builds only plain values: every reference to a name is refused."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse every class, so that unpickling runs no code. Raises RowError."""
        raise RowError(
            "pickle_refused",
            f"the pickled tests refer to {module}.{name}; only a string is allowed",
        )


def _unpickle_text(data: bytes) -> str:
    """Return the string in a pickle, without importing any class. Raises RowError for anything
    else."""
    try:
        value = _TextUnpickler(io.BytesIO(data)).load()
    except RowError:
        raise
    except Exception as error:  # unpickling broken bytes may raise almost any exception
        detail = f"not a pickle: {type(error).__name__}: {error}"
        raise RowError("bad_private_tests", detail) from error
    if isinstance(value, dict) and value.keys() == {"input_output"}:
        value = value["input_output"]
    if not isinstance(value, str):
        detail = f"the pickle holds a {type(value).__name__}, expected a string of JSON"
        raise RowError("bad_private_tests", detail)
    return value


def _inflate(packed: bytes) -> bytes:
    """Decompress at most MAX_PRIVATE_BYTES. Raises ValueError for more, or for data that ends
    early."""
    stream = zlib.decompressobj()
    data = stream.decompress(packed, MAX_PRIVATE_BYTES)
    if not stream.eof:
        over = f"more than {MAX_PRIVATE_BYTES} bytes when unpacked"
        raise ValueError(over if stream.unconsumed_tail else "the compressed data ends early")
    return data


def _tests(row: Row, name: str, raw: Any) -> tuple[tuple[TestCase, ...], str | None]:
    """Return the tests of one field, from its value or JSON text `raw`, and the function that they
    call (None: stdin); nothing for an empty list. Raises RowError (`bad_tests`) that names the
    field."""
    try:
        found = from_json(raw, name)
        return ((), None) if found == [] else read_tests(found, row.get("metadata"))
    except RowError as error:
        raise RowError("bad_tests", f"{name}: {error}") from error


def _contest_day(row: Row) -> date:
    """Return the day of a row's contest. Raises RowError if it has none, or if it is not an ISO
    date."""
    value = row.get("contest_date")
    if isinstance(value, datetime):  # of a Parquet file
        return value.date()
    try:
        return datetime.fromisoformat(field(row, "contest_date", str)).date()
    except ValueError as error:
        raise RowError("bad_date", str(value)[:40]) from error
