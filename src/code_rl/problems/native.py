"""The native problem format: JSON Lines, one problem an object, optionally compressed (`.gz`, to be read also `.zst`).

`{"id", "statement", "tests", "starter_code", "fn_name", "time_limit_s", "memory_limit_mb", "compare", "solutions", "source", "date",
"meta", "interactor"}`; all but the first three may be left out. Reading is strict: anything else is a DataError that names file, line, field, value and remedy. Tests by `kind`:

| `kind` | fields |
|---|---|
| `stdin` | `input`, `expected` |
| `call` | `args`, `kwargs`, `expected` or `raises`, `fn_name` |
| `sequence` | `class`, `calls`: `[[name, [argument, …]], …]`, `expected` |

and `public`, `abs_tol`, `rel_tol` on each. Values are plain JSON or the `{"__type__": …}` forms of `problems.values`.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from code_rl.errors import DataError
from code_rl.problems.files import read_object, read_rows, short
from code_rl.problems.problem import (
    INTERACT,
    WITH_TOLERANCE,
    CallTest,
    Compare,
    Problem,
    SequenceTest,
    StdinTest,
    TestCase,
    check_compare,
    check_source,
    check_tolerance,
)
from code_rl.problems.rows import Row, check_fields
from code_rl.problems.sources.records import Origin, RowError, from_json
from code_rl.problems.values import ValueCodecError, decode, encode

REQUIRED = ("id", "statement", "tests")
_DEFAULTS = Problem(id="", statement="", tests=())
NATIVE_FIELDS = (
    "id", "statement", "starter_code", "fn_name", "tests", "time_limit_s", "memory_limit_mb", "compare", "solutions", "source", "date", "meta", "interactor",
)  # fmt: skip
NESTED = {
    "tests": "a list of objects",
    "compare": "a rule's name or an object with 'rule'",
    "solutions": "a list of strings",
    "meta": "an object",
}
"""Fields that hold JSON text in a table, where every field is a column, and what they are."""
_HEAD = NATIVE_FIELDS[: NATIVE_FIELDS.index("tests") + 1]
_COMPARE_FIELDS = tuple(field.name for field in dataclasses.fields(Compare))
_USUAL = Compare()


def read_problems(path: str | os.PathLike[str]) -> Iterator[Problem]:
    """Stream the problems of a native file, in order. Blank lines are skipped.

    Raises DataError for a file that cannot be read, a malformed row, or an id that came before.
    """
    seen: set[str] = set()
    for where, row in read_rows(path):
        problem = problem_from_json(row, where)
        if problem.id in seen:
            raise DataError(f"{where}: id {problem.id!r} came before; ids must be unique")
        seen.add(problem.id)
        yield problem


def write_problems(path: str | os.PathLike[str], problems: Iterable[Problem]) -> int:
    """Write problems as a native file (compressed when `path` ends in .gz), all or nothing; returns how many.

    The same problems give the same bytes.
    """
    target, count = Path(path), 0
    try:
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as temporary:
            try:
                packed = gzip.GzipFile("", "wb", fileobj=temporary, mtime=0) if target.suffix == ".gz" else None
                for problem in problems:
                    count += 1
                    (packed or temporary).write(format_problem(problem).encode("ascii") + b"\n")
                if packed is not None:
                    packed.close()
                temporary.flush()
                os.fsync(temporary.fileno())
                os.chmod(temporary.name, 0o644)
                os.replace(temporary.name, target)
            except BaseException:
                os.unlink(temporary.name)
                raise
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror or error}") from error
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
    check_fields(data, NATIVE_FIELDS, REQUIRED, where)
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


_COMMON = ("kind", "public", "abs_tol", "rel_tol")
_FIELDS = {
    "stdin": ("input", "expected"),
    "call": ("args", "kwargs", "expected", "raises", "fn_name"),
    "sequence": ("class", "calls", "expected"),
}
_NEEDED = {"stdin": ("input", "expected"), "call": ("args",), "sequence": ("class", "calls", "expected")}
NOT_FOR_RAISES = ("BaseException", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "MemoryError")


def test_to_json(test: TestCase) -> dict[str, Any]:
    """One test as a JSON object; inverse of `tests_from_json`."""
    if isinstance(test, StdinTest):
        row: dict[str, Any] = {"kind": "stdin", "input": test.input, "expected": test.expected}
    elif isinstance(test, SequenceTest):
        calls = [[name, [encode(item) for item in args]] for name, args in test.calls]
        expected = [encode(item) for item in test.expected]
        row = {"kind": "sequence", "class": test.class_name, "calls": calls, "expected": expected}
    else:
        kwargs = {name: encode(item) for name, item in test.kwargs.items()}
        row = {"kind": "call", "args": [encode(item) for item in test.args], "kwargs": kwargs}
        row |= {"expected": encode(test.expected)} if test.raises is None else {"raises": test.raises}
        row |= {} if test.fn_name is None else {"fn_name": test.fn_name}
    row["public"] = test.public
    for name in ("abs_tol", "rel_tol"):
        if getattr(test, name) is not None:
            row[name] = getattr(test, name)
    return row


def tests_from_json(items: Sequence[Any], fn_name: str | None, where: str) -> tuple[TestCase, ...]:
    """The tests of a problem whose function is `fn_name`. Raises DataError, beginning with `where`."""
    return tuple(_test_from_json(item, fn_name, f"{where}: tests[{index}]") for index, item in enumerate(items))


def check_tests(problem: Problem, where: str) -> None:
    """Raise DataError where tests, rule and interactor do not go together."""
    calls = problem.calls
    for index, test in enumerate(problem.tests):
        here = f"{where}: tests[{index}]"
        if isinstance(test, StdinTest) is calls:
            kind = "stdin" if isinstance(test, StdinTest) else "call"
            raise DataError(
                f"{here}: kind={kind!r} does not go with fn_name={problem.fn_name!r} and a first test that is "
                f"{'no ' if calls else ''}script; a problem's tests are all scripts or all calls"
            )
        if (test.abs_tol, test.rel_tol) != (None, None) and problem.compare.rule not in ("lcb", *WITH_TOLERANCE):
            raise DataError(
                f"{here}: a tolerance does not go with the rule {problem.compare.rule!r}; use float or contest"
            )
        check_tolerance(test.abs_tol, test.rel_tol, here)
    if problem.interactor is not None:
        if calls or problem.compare.rule == "checker":
            raise DataError(f"{where}: an interactor goes with stdin tests and without a checker")
        check_source(problem.interactor, "interactor", where, needs=INTERACT)


def _test_from_json(data: Any, fn_name: str | None, where: str) -> TestCase:
    if not isinstance(data, dict):
        raise DataError(f"{where}: an object was expected, not {short(data)}")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise DataError(f"{where}: kind={short(kind)} must be one of {', '.join(map(repr, _FIELDS))}")
    check_fields(data, (*_COMMON, *_FIELDS[kind]), _NEEDED[kind], where)
    row = Row(data, where)
    common = {name: row.tolerance(name) for name in ("abs_tol", "rel_tol")}
    public = row.flag("public")
    try:
        if kind == "stdin":
            return StdinTest(row.text("input", ""), row.text("expected", ""), public, **common)
        if kind == "sequence":
            return _sequence(row, public, common)
        return _call(row, fn_name, public, common)
    except ValueCodecError as error:
        raise DataError(f"{where}: a value cannot be read: {error}") from error


def _call(row: Row, fn_name: str | None, public: bool, common: Mapping[str, float | None]) -> CallTest:
    data = row.data
    own = _identifier(row, "fn_name") if data.get("fn_name") is not None else None
    if own is None and fn_name is None:
        raise DataError(
            f"{row.where}: kind='call' does not go with fn_name=None; name the function in the problem's fn_name or the test's"
        )
    raises = _identifier(row, "raises") if data.get("raises") is not None else None
    if raises in NOT_FOR_RAISES:
        raise DataError(f"{row.where}: raises={raises!r} cannot be expected of a program; name another exception")
    if ("expected" in data) == (raises is not None):
        raise DataError(f"{row.where}: expected is missing; a call test needs either expected or raises")
    args = data["args"]
    if not isinstance(args, list):
        raise row.wrong("args", "a list, one item per argument")
    kwargs = data.get("kwargs", {})
    if not isinstance(kwargs, dict) or not all(name.isidentifier() for name in kwargs):
        raise row.wrong("kwargs", "an object whose keys are argument names")
    return CallTest(
        args=tuple(decode(item) for item in args),
        kwargs={name: decode(item) for name, item in kwargs.items()},
        expected=decode(data.get("expected")),
        public=public,
        raises=raises,
        fn_name=own,
        **common,
    )


def _sequence(row: Row, public: bool, common: Mapping[str, float | None]) -> SequenceTest:
    name = _identifier(row, "class")
    calls, expected = row.items("calls"), row.items("expected")
    for call in calls:
        if not (isinstance(call, list) and len(call) == 2 and isinstance(call[0], str) and isinstance(call[1], list)):
            raise DataError(
                f"{row.where}: calls: {short(call)} must be a pair: a method's name and a list of arguments"
            )
        if not call[0].isidentifier():
            raise DataError(f"{row.where}: calls: {short(call[0])} must be the name of a method")
    if not calls or calls[0][0] != name:
        raise DataError(
            f"{row.where}: calls must begin with the class itself, {name!r}, and the arguments of its construction"
        )
    if len(expected) != len(calls) or expected[0] is not None:
        raise DataError(
            f"{row.where}: expected must have one value for each of the {len(calls)} calls, null for the first"
        )
    made = tuple((method, tuple(decode(item) for item in args)) for method, args in calls)
    return SequenceTest(name, made, tuple(decode(item) for item in expected), public, **common)


def _identifier(row: Row, name: str) -> str:
    value = row.data.get(name)
    if not isinstance(value, str) or not value.isidentifier():
        raise row.wrong(name, "a name in Python")
    return value


def read_native(row: Mapping[str, Any], origin: Origin) -> Problem:
    """A row of a file or a table in our own format: nested fields parsed where they are JSON text, absent (None) ones left out. Raises RowError."""
    fields = {name: value for name, value in row.items() if value is not None or name not in NATIVE_FIELDS}
    try:
        for name, wanted in NESTED.items():
            value = fields.get(name)
            if isinstance(value, str) and (name != "compare" or value.lstrip()[:1] in ('"', "{")):
                try:
                    fields[name] = from_json(value, name)
                except RowError as error:
                    raise Row(fields, origin.where).wrong(name, f"{wanted} (or JSON text of it)") from error
        return problem_from_json(fields, origin.where)
    except DataError as error:
        raise RowError("bad_native_row", str(error)) from error
