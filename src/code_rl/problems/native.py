"""The native problem format: JSON Lines, one problem an object, optionally compressed (`.gz`, to be read also `.zst`).

`{"id", "statement", "tests", "starter_code", "fn_name", "time_limit_s", "memory_limit_mb", "compare", "solutions", "source", "date",
"meta", "interactor"}`; all but the first three may be left out. Tests are read by `problems.native_tests`. Reading is strict: anything else is a DataError that names file, line, field, value and remedy.
"""

from __future__ import annotations

import dataclasses
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
from code_rl.problems.native_tests import check_tests, test_to_json, tests_from_json
from code_rl.problems.problem import Compare, Problem
from code_rl.problems.rows import Row, check_fields
from code_rl.problems.rules import check_compare

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
    "interactor",
)
_HEAD = NATIVE_FIELDS[: NATIVE_FIELDS.index("tests") + 1]
_COMPARE_FIELDS = tuple(field.name for field in dataclasses.fields(Compare))
_USUAL = Compare()


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
        "tests": [test_to_json(test) for test in problem.tests],
        "time_limit_s": problem.time_limit_s,
        "memory_limit_mb": problem.memory_limit_mb,
        "compare": _compare_to_json(problem.compare),
        "solutions": list(problem.solutions),
        "source": problem.source,
        "date": problem.date,
        "meta": dict(problem.meta),
        **({} if problem.interactor is None else {"interactor": problem.interactor}),
    }


def problem_from_json(data: Mapping[str, Any], where: str = "problem") -> Problem:
    """Build a problem from a native JSON object. Raises DataError, beginning with `where`, for anything malformed."""
    check_fields(data, NATIVE_FIELDS, _REQUIRED, where)
    row = Row(data, where)
    fn_name = row.optional_text("fn_name")
    tests = row.items("tests")
    if not tests:
        raise DataError(f"{where}: tests is empty; a problem needs at least one test")
    problem = Problem(
        id=row.filled_text("id"),
        statement=row.text("statement", ""),
        tests=tests_from_json(tests, fn_name, where),
        starter_code=row.optional_text("starter_code"),
        fn_name=fn_name,
        time_limit_s=row.seconds("time_limit_s", _DEFAULTS.time_limit_s),
        memory_limit_mb=row.megabytes("memory_limit_mb", _DEFAULTS.memory_limit_mb),
        compare=_compare_from_json(data.get("compare", "lcb"), where),
        solutions=tuple(row.texts("solutions")),
        source=row.text("source", ""),
        date=row.date("date"),
        meta=row.meta("meta"),
        interactor=row.optional_text("interactor"),
    )
    check_tests(problem, where)
    return problem


def _compare_to_json(compare: Compare) -> str | dict[str, Any]:
    if compare == Compare(compare.rule):
        return compare.rule
    named = {name: getattr(compare, name) for name in _COMPARE_FIELDS}
    return {name: value for name, value in named.items() if name == "rule" or value != getattr(_USUAL, name)}


def _compare_from_json(data: Any, where: str) -> Compare:
    if isinstance(data, str):
        data = {"rule": data}
    if not isinstance(data, dict):
        raise DataError(f"{where}: compare={short(data)} must be a rule's name or an object with 'rule'")
    check_fields(data, _COMPARE_FIELDS, ("rule",), f"{where}: compare")
    row = Row(data, f"{where}: compare")
    compare = Compare(
        rule=row.text("rule", ""),
        abs_tol=row.number("abs_tol", 0.0),
        rel_tol=row.number("rel_tol", 0.0),
        ignore_case=row.flag("ignore_case"),
        integers_as_floats=row.flag("integers_as_floats"),
        checker=row.optional_text("checker"),
        checker_time_limit_s=row.seconds("checker_time_limit_s", _USUAL.checker_time_limit_s),
        checker_memory_limit_mb=row.megabytes("checker_memory_limit_mb", _USUAL.checker_memory_limit_mb),
    )
    check_compare(compare, where)
    return compare
