"""The native problem format: JSON Lines, one problem an object, optionally compressed (`.gz`, to be read also `.zst`).

`{"id", "statement", "tests", "starter_code", "fn_name", "time_limit_s", "memory_limit_mb", "compare", "solutions", "source", "date",
"meta"}`; all but the first three may be left out. Values of call tests are plain JSON or the `{"__type__": …}` forms of
`problems.values`. Reading is strict: anything else is a DataError that names file, line, field, value and remedy.
"""

from __future__ import annotations

import datetime
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from code_rl.errors import DataError
from code_rl.problems.files import read_lines, read_object, short
from code_rl.problems.problem import CallTest, Compare, Problem, StdinTest, TestCase
from code_rl.problems.rules import check_compare
from code_rl.problems.values import ValueCodecError, decode, encode

_REQUIRED = ("id", "statement", "tests")
_DEFAULTS = Problem(id="", statement="", tests=())
NATIVE_FIELDS = (
    "id",
    "statement",
    "starter_code",
    "fn_name",
    "tests",
    "time_limit_s",
    "memory_limit_mb",
    "compare",
    "solutions",
    "source",
    "date",
    "meta",
)
_HEAD = NATIVE_FIELDS[: NATIVE_FIELDS.index("tests") + 1]
_TEST_FIELDS = {
    "stdin": ("kind", "input", "expected", "public"),
    "call": ("kind", "args", "kwargs", "expected", "public"),
}
_COMPARE_FIELDS = ("rule", "abs_tol", "rel_tol", "checker")


def read_problems(path: str | os.PathLike[str]) -> Iterator[Problem]:
    """Stream the problems of a native file, in order. Blank lines are skipped.

    Raises DataError for a file that cannot be read, a malformed row, or an id that came before.
    """
    seen: set[str] = set()
    for number, line in read_lines(path):
        problem = parse_problem(line, f"{path}, line {number}")
        if problem.id in seen:
            raise DataError(f"{path}, line {number}: id {problem.id!r} came before; ids must be unique")
        seen.add(problem.id)
        yield problem


def write_problems(path: str | os.PathLike[str], problems: Iterable[Problem]) -> int:
    """Write problems as a native file (compressed when `path` ends in .gz), all or nothing; returns how many.

    The same problems give the same bytes.
    """
    target = Path(path)
    count = 0
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as temporary:
            try:
                count = _write_all(temporary, problems, compress=target.suffix == ".gz")
                os.chmod(temporary.name, 0o644)
                os.replace(temporary.name, target)
            except BaseException:
                os.unlink(temporary.name)
                raise
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
    return count


def _write_all(stream: IO[bytes], problems: Iterable[Problem], *, compress: bool) -> int:
    packed = gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) if compress else None
    count = 0
    for problem in problems:
        (packed or stream).write(format_problem(problem).encode("ascii") + b"\n")
        count += 1
    if packed is not None:
        packed.close()
    stream.flush()
    os.fsync(stream.fileno())
    return count


def parse_problem(line: bytes, where: str) -> Problem:
    """One line of a native file; `where` begins every error message."""
    return problem_from_json(read_object(line, where), where)


def format_problem(problem: Problem) -> str:
    """One line of a native file, without the line end; ASCII only."""
    return ",".join(format_halves(problem))


def format_halves(problem: Problem) -> tuple[str, str]:
    """The line of `format_problem` in two: up to the tests, which are nearly all of it, and from behind the comma after them."""
    row = problem_to_json(problem)
    return format_fields({name: row.pop(name) for name in _HEAD})[:-1], format_fields(row)[1:]


def format_fields(row: Mapping[str, Any]) -> str:
    """Fields of a native row as JSON, the way `format_problem` writes them."""
    sys.set_int_max_str_digits(0)
    return json.dumps(row, ensure_ascii=True, separators=(",", ":"))


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """The problem as a JSON object with every field; inverse of `problem_from_json`."""
    return {
        "id": problem.id,
        "statement": problem.statement,
        "starter_code": problem.starter_code,
        "fn_name": problem.fn_name,
        "tests": [_test_to_json(test) for test in problem.tests],
        "time_limit_s": problem.time_limit_s,
        "memory_limit_mb": problem.memory_limit_mb,
        "compare": _compare_to_json(problem.compare),
        "solutions": list(problem.solutions),
        "source": problem.source,
        "date": problem.date,
        "meta": dict(problem.meta),
    }


def problem_from_json(data: Mapping[str, Any], where: str = "problem") -> Problem:
    """Build a problem from a native JSON object. Raises DataError, beginning with `where`, for anything malformed."""
    _check_fields(data, NATIVE_FIELDS, _REQUIRED, where)
    row = _Row(data, where)
    fn_name = row.optional_text("fn_name")
    tests = row.items("tests")
    if not tests:
        raise DataError(f"{where}: tests is empty; a problem needs at least one test")
    return Problem(
        id=row.filled_text("id"),
        statement=row.text("statement", ""),
        tests=tuple(_test_from_json(item, fn_name, f"{where}: tests[{index}]") for index, item in enumerate(tests)),
        starter_code=row.optional_text("starter_code"),
        fn_name=fn_name,
        time_limit_s=row.positive("time_limit_s", _DEFAULTS.time_limit_s),
        memory_limit_mb=row.positive_integer("memory_limit_mb", _DEFAULTS.memory_limit_mb),
        compare=_compare_from_json(data.get("compare", "lcb"), where),
        solutions=tuple(row.texts("solutions")),
        source=row.text("source", ""),
        date=row.date("date"),
        meta=row.meta("meta"),
    )


class _Row:
    """Typed access to the fields of one JSON object; each method raises DataError for a value of another type."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self.data = data
        self.where = where

    def wrong(self, name: str, wanted: str) -> DataError:
        return DataError(f"{self.where}: {name}={short(self.data.get(name))} must be {wanted}")

    def text(self, name: str, default: str) -> str:
        value = self.data.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def filled_text(self, name: str) -> str:
        value = self.text(name, "")
        if not value.strip():
            raise self.wrong(name, "a string that is not blank")
        return value

    def optional_text(self, name: str) -> str | None:
        value = self.data.get(name)
        if value is not None and not (isinstance(value, str) and value.strip()):
            raise self.wrong(name, "null or a string that is not blank")
        return value

    def items(self, name: str) -> list[Any]:
        value = self.data.get(name, [])
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def texts(self, name: str) -> list[str]:
        value = self.items(name)
        if not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of strings")
        return value

    def positive(self, name: str, default: float) -> float:
        number = self.number(name, default)
        if number == 0:
            raise self.wrong(name, "a number above 0")
        return number

    def number(self, name: str, default: float) -> float:
        value = self.data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
            raise self.wrong(name, "a finite number, 0 or more")
        return float(value)

    def positive_integer(self, name: str, default: int) -> int:
        value = self.data.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise self.wrong(name, "a whole number above 0")
        return value

    def date(self, name: str) -> str | None:
        value = self.data.get(name)
        if value is None:
            return None
        try:
            if datetime.date.fromisoformat(value).isoformat() != value:
                raise ValueError
        except (TypeError, ValueError):
            raise self.wrong(name, "null or a date as YYYY-MM-DD") from None
        return str(value)

    def meta(self, name: str) -> dict[str, Any]:
        value = self.data.get(name, {})
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        for key in ("preamble", "setup"):
            if not isinstance(value.get(key, ""), str):
                raise DataError(f"{self.where}: meta.{key}={short(value[key])} must be source text")
        return value


def _test_to_json(test: TestCase) -> dict[str, Any]:
    if isinstance(test, StdinTest):
        return {"kind": "stdin", "input": test.input, "expected": test.expected, "public": test.public}
    return {
        "kind": "call",
        "args": [encode(item) for item in test.args],
        "kwargs": {name: encode(item) for name, item in test.kwargs.items()},
        "expected": encode(test.expected),
        "public": test.public,
    }


def _test_from_json(data: Any, fn_name: str | None, where: str) -> TestCase:
    if not isinstance(data, dict):
        raise DataError(f"{where}: an object was expected, not {short(data)}")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _TEST_FIELDS:
        raise DataError(f"{where}: kind={short(kind)} must be 'stdin' or 'call'")
    wanted = "stdin" if fn_name is None else "call"
    if kind != wanted:
        raise DataError(
            f"{where}: kind={kind!r} does not go with fn_name={fn_name!r}; fn_name is for call tests, and only them"
        )
    needed = ("input", "expected") if kind == "stdin" else ("args", "expected")
    _check_fields(data, _TEST_FIELDS[kind], needed, where)
    public = data.get("public", False)
    if not isinstance(public, bool):
        raise DataError(f"{where}: public={short(public)} must be true or false")
    if kind == "stdin":
        for name in ("input", "expected"):
            if not isinstance(data[name], str):
                raise DataError(f"{where}: {name}={short(data[name])} must be a string")
        return StdinTest(data["input"], data["expected"], public)
    return _call_from_json(data, public, where)


def _call_from_json(data: dict[str, Any], public: bool, where: str) -> CallTest:
    if not isinstance(data["args"], list):
        raise DataError(f"{where}: args={short(data['args'])} must be a list, one item per argument")
    kwargs = data.get("kwargs", {})
    if not isinstance(kwargs, dict) or not all(name.isidentifier() for name in kwargs):
        raise DataError(f"{where}: kwargs={short(kwargs)} must be an object whose keys are argument names")
    try:
        return CallTest(
            args=tuple(decode(item) for item in data["args"]),
            kwargs={name: decode(item) for name, item in kwargs.items()},
            expected=decode(data["expected"]),
            public=public,
        )
    except ValueCodecError as error:
        raise DataError(f"{where}: a value cannot be read: {error}") from error


def _compare_to_json(compare: Compare) -> str | dict[str, Any]:
    if compare == Compare(compare.rule):
        return compare.rule
    named = {name: getattr(compare, name) for name in _COMPARE_FIELDS}
    return {name: value for name, value in named.items() if value or name == "rule"}


def _compare_from_json(data: Any, where: str) -> Compare:
    if isinstance(data, str):
        data = {"rule": data}
    if not isinstance(data, dict):
        raise DataError(f"{where}: compare={short(data)} must be a rule's name or an object with 'rule'")
    _check_fields(data, _COMPARE_FIELDS, ("rule",), f"{where}: compare")
    row = _Row(data, f"{where}: compare")
    compare = Compare(
        rule=row.text("rule", ""),
        abs_tol=row.number("abs_tol", 0.0),
        rel_tol=row.number("rel_tol", 0.0),
        checker=row.optional_text("checker"),
    )
    check_compare(compare, where)
    return compare


def _check_fields(data: Mapping[str, Any], known: tuple[str, ...], required: tuple[str, ...], where: str) -> None:
    for name in required:
        if name not in data:
            raise DataError(f"{where}: {name} is missing")
    for name in data:
        if name not in known:
            raise DataError(
                f"{where}: field {short(name)} is unknown; known are {', '.join(known)} (anything else goes in a problem's meta)"
            )
