"""The native problem format: JSON Lines, one problem per object, optionally compressed (`.gz`;
`.zst` only for reading).

`{"id", "statement", "tests", "starter_code", "fn_name", "time_limit_s", "memory_limit_mb",
"compare", "solutions", "source", "date", "meta", "language"}`; all but the first three are
optional. Reading is strict: anything else is a DataError that names file, line, field, value and
remedy. Tests by `kind`:

| `kind` | fields |
|---|---|
| `stdin` | `input`, `expected` |
| `call` | `args`, `kwargs`, `expected` or `raises`, `fn_name` |
| `sequence` | `class`, `calls`: `[[name, [argument, …]], …]`, `expected` |

Each also has optional `public`, `abs_tol` and `rel_tol`. Values are plain JSON or the `{"__type__":
…}` forms of `grading.values`.
"""

from __future__ import annotations

import contextlib
import datetime
import gzip
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from code_rl.grading.languages import PYTHON
from code_rl.grading.problem import (
    CallTest,
    Compare,
    Problem,
    SequenceTest,
    StdinTest,
    TestCase,
    check_parts,
)
from code_rl.grading.sandbox.executor import encodable
from code_rl.grading.values import ValueCodecError, decode, encode
from code_rl.util.data_files import read_object, short
from code_rl.util.errors import DataError
from code_rl.util.files import write_lines_atomically, writes
from code_rl.util.suggestion import suggestion

REQUIRED = ("id", "statement", "tests")
MOST_SECONDS, MOST_MEGABYTES = 3600.0, 1 << 20
"""The largest limits of a problem: an hour, a terabyte. Kernels refuse larger numbers."""
_USUAL = Compare()


@dataclass(frozen=True, slots=True)
class Form:
    """A condition on a field, as a test and as text, and the field's conversion."""

    fits: Callable[[Any], bool]
    wanted: str
    kept: Callable[[Any], Any] = lambda value: value


def _is_number(value: Any) -> bool:
    """Return True for a finite int or float of at least 0; a bool is none."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and 0 <= value <= sys.float_info.max
    )


def _is_filled(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _written(form: Form) -> Form:
    """Return the form for text that files, digests and prompts can hold: no lone surrogate."""
    return Form(
        lambda value: form.fits(value) and (value is None or encodable(value)),
        f"{form.wanted}, of characters that UTF-8 has",
    )


def _is_date(value: Any) -> bool:
    """Return True for an existing date as YYYY-MM-DD, and for no other of ISO 8601's forms."""
    try:
        return bool(datetime.date.fromisoformat(value).isoformat() == value)
    except (TypeError, ValueError):
        return False


TEXT = Form(lambda value: isinstance(value, str), "a string")
FILLED = Form(_is_filled, "a string that is not blank")
OPTIONAL = Form(
    lambda value: value is None or _is_filled(value), "null or a string that is not blank"
)
NAME = Form(lambda value: isinstance(value, str) and value.isidentifier(), "a name in Python")
ITEMS = Form(lambda value: isinstance(value, list), "a list")
TEXTS = Form(
    lambda value: ITEMS.fits(value) and all(map(TEXT.fits, value)), "a list of strings", tuple
)
OBJECT = Form(lambda value: isinstance(value, dict), "an object")
FLAG = Form(lambda value: isinstance(value, bool), "true or false")
NUMBER = Form(_is_number, "a finite number, 0 or more", float)
TOLERANCE = Form(
    lambda value: value is None or _is_number(value),
    NUMBER.wanted,
    lambda value: value if value is None else float(value),
)
DATE = Form(lambda value: value is None or _is_date(value), "null or a date as YYYY-MM-DD")
SECONDS = Form(
    lambda value: _is_number(value) and 0 < value <= MOST_SECONDS,
    f"a number of seconds above 0, at most {MOST_SECONDS:g}",
    float,
)
MEGABYTES = Form(
    lambda value: isinstance(value, int) and _is_number(value) and 0 < value <= MOST_MEGABYTES,
    f"a whole number of megabytes above 0, at most {MOST_MEGABYTES}",
)

FORMS = {
    "id": _written(FILLED),
    "statement": _written(TEXT),
    "starter_code": _written(OPTIONAL),
    "fn_name": Form(lambda value: value is None or NAME.fits(value), f"null or {NAME.wanted}"),
    "tests": Form(ITEMS.fits, "a list of objects"),
    "time_limit_s": SECONDS,
    "memory_limit_mb": MEGABYTES,
    "compare": Form(
        lambda value: isinstance(value, str | dict), "a rule's name or an object with 'rule'"
    ),
    "solutions": TEXTS,
    "source": TEXT,
    "date": DATE,
    "meta": OBJECT,
    "language": FILLED,
}
"""The fields of a problem, in the order in which they are written."""
NATIVE_FIELDS = tuple(FORMS)
OWN_FIELDS = ("id", "statement", "fn_name", "time_limit_s", "memory_limit_mb")
"""The fields of a problem that are checked on every judgment."""
NESTED = ("tests", "compare", "solutions", "meta")
"""Fields that are JSON text in a table, where every field is a column."""
_COMPARE = {
    "rule": TEXT,
    "abs_tol": NUMBER,
    "rel_tol": NUMBER,
    "ignore_case": FLAG,
    "exact_integers": FLAG,
    "checker": OPTIONAL,
    "checker_language": FILLED,
    "checker_time_limit_s": SECONDS,
    "checker_memory_limit_mb": MEGABYTES,
}


def read_fields(
    data: Mapping[str, Any], forms: Mapping[str, Form], required: Sequence[str], where: str
) -> dict[str, Any]:
    """Return the given fields in their stored form; a missing optional field stays missing. Raises
    DataError, beginning with `where`, for an unknown, missing or malformed field, and
    ValueCodecError for a value that `decode` refuses."""
    missing = [name for name in required if name not in data]
    unknown = [name for name in data if name not in forms]
    if unknown:
        raise DataError(
            f"{where}: field {short(unknown[0])} is unknown"
            f"{suggestion(unknown[0], missing or tuple(forms))}; known are {', '.join(forms)} "
            "(anything else goes in a problem's meta)"
        )
    if missing:
        raise DataError(f"{where}: {missing[0]} is missing")
    for name, value in data.items():
        if not forms[name].fits(value):
            raise wrong_field(name, value, forms[name].wanted, where)
    return {name: forms[name].kept(value) for name, value in data.items()}


def check_problem(problem: Problem, where: str) -> None:
    """Raise DataError, beginning with `where`, for a problem made in Python whose parts have the
    wrong types or do not fit together. Every judgment calls it.

    It checks the fields `OWN_FIELDS`, the types of `tests` and `compare`, the texts of stdin tests,
    and what `check_parts` checks; `date`, `source`, solutions and the values of call tests are not
    looked at.
    """
    for name in OWN_FIELDS:
        value = getattr(problem, name)
        if not FORMS[name].fits(value):
            raise wrong_field(name, value, FORMS[name].wanted, where)
    for name, kind, expected_form in (
        ("tests", Sequence, "a tuple of tests; (test,) has a comma"),
        ("compare", Compare, "a code_rl.Compare, such as Compare('contest')"),
    ):
        if not isinstance(value := getattr(problem, name), kind):
            raise wrong_field(name, value, expected_form, where)
    for index, test in enumerate(problem.tests):
        here = f"{where}: tests[{index}]"
        if not isinstance(test, TestCase):
            raise DataError(f"{here}={short(test)} must be a StdinTest, CallTest or SequenceTest")
        for name in ("input", "expected") if isinstance(test, StdinTest) else ():
            if not TEXT.fits(value := getattr(test, name)):
                raise wrong_field(name, value, TEXT.wanted, here)
    check_parts(problem, where)


def wrong_field(name: str, value: Any, wanted: str, where: str) -> DataError:
    """Return the error for a field of a row: `where: name=value must be wanted`. The caller raises
    it."""
    return DataError(f"{where}: {name}={short(value)} must be {wanted}")


def write_problems(path: str | os.PathLike[str], problems: Iterable[Problem]) -> int:
    """Write problems as a native file (compressed if `path` ends in .gz), all or nothing, in place
    of an earlier one. Return their number.

    The same problems give the same bytes. Raises DataError if `path` cannot be written, and
    ValueCodecError for a test's value that has no JSON form.
    """
    lines = [format_problem(problem).encode("ascii") + b"\n" for problem in problems]
    stored = io.BytesIO()
    # Not gzip.compress: its header differs between versions of Python.
    with (
        gzip.GzipFile("", "wb", fileobj=stored, mtime=0)
        if Path(path).suffix == ".gz"
        else contextlib.nullcontext(stored)
    ) as stream:
        stream.writelines(lines)
    with writes(path, "file", DataError):
        write_lines_atomically(Path(path), [stored.getvalue()], mode=0o644)
    return len(lines)


def parse_problem(line: bytes, where: str) -> Problem:
    """Return the problem on one line of a native file. Raises DataError, beginning with `where`,
    for anything malformed."""
    return problem_from_json(read_object(line, where), where)


def format_problem(problem: Problem) -> str:
    """Return a problem as one line of a native file, without the line end; ASCII only. Problems are
    identified by this text, so it must not change. Raises ValueCodecError for a test's value that
    has no JSON form."""
    sys.set_int_max_str_digits(0)
    return json.dumps(problem_to_json(problem), ensure_ascii=True, separators=(",", ":"))


def problem_to_json(problem: Problem) -> dict[str, Any]:
    """Return the problem as a JSON object with every field, except that `language` is left out for
    Python; inverse of `problem_from_json`. Fields have the order of `FORMS`. Raises
    ValueCodecError."""
    row = {name: getattr(problem, name) for name in NATIVE_FIELDS}
    if problem.language == PYTHON:
        # The text of a problem identifies it in runs and data sets made before there was a choice.
        del row["language"]
    row |= {
        "tests": list(map(test_to_json, problem.tests)),
        "compare": _compare_to_json(problem.compare),
    }
    return row | {"solutions": list(problem.solutions), "meta": dict(problem.meta)}


def problem_from_json(data: Mapping[str, Any], where: str = "problem") -> Problem:
    """Build a problem from a native JSON object; fields that are missing have the defaults of
    `Problem`. Raises DataError, beginning with `where`, for anything malformed."""
    row = read_fields(data, FORMS, REQUIRED, where)
    row["tests"] = tuple(
        _test_from_json(item, f"{where}: tests[{index}]") for index, item in enumerate(row["tests"])
    )
    compare = row.get("compare", "lcb")
    compare = {"rule": compare} if isinstance(compare, str) else compare
    row["compare"] = Compare(**read_fields(compare, _COMPARE, ("rule",), f"{where}: compare"))
    problem = Problem(**row)
    check_parts(problem, where)
    return problem


def _compare_to_json(compare: Compare) -> str | dict[str, Any]:
    """Return the rule's name alone, or with the fields that differ from their defaults."""
    if compare == Compare(compare.rule):
        return compare.rule
    named = asdict(compare)
    return {
        name: value
        for name, value in named.items()
        if name == "rule" or value != getattr(_USUAL, name)
    }


_COMMON = {"kind": TEXT, "public": FLAG, "abs_tol": TOLERANCE, "rel_tol": TOLERANCE}
_NAMED = Form(lambda value: value is None or NAME.fits(value), NAME.wanted)
_ANY = Form(lambda _: True, "a value", decode)
_VALUES = Form(ITEMS.fits, ITEMS.wanted, lambda values: tuple(map(decode, values)))
_ARGS = Form(ITEMS.fits, "a list, one item per argument", _VALUES.kept)
_KWARGS = Form(
    lambda value: isinstance(value, dict) and all(map(str.isidentifier, value)),
    "an object whose keys are argument names",
    lambda values: {name: decode(value) for name, value in values.items()},
)
_KINDS: dict[str, tuple[dict[str, Form], tuple[str, ...]]] = {
    "stdin": ({"input": TEXT, "expected": TEXT}, ("input", "expected")),
    "call": (
        {"args": _ARGS, "kwargs": _KWARGS, "expected": _ANY, "raises": _NAMED, "fn_name": _NAMED},
        ("args",),
    ),
    "sequence": (
        {"class": NAME, "calls": ITEMS, "expected": _VALUES},
        ("class", "calls", "expected"),
    ),
}
"""The fields of each kind of test, and those that are required."""
NOT_FOR_RAISES = (
    "BaseException",
    "SystemExit",
    "KeyboardInterrupt",
    "GeneratorExit",
    "MemoryError",
)


def test_to_json(test: TestCase) -> dict[str, Any]:
    """Return one test as a JSON object; inverse of `_test_from_json`. `fn_name` and tolerances that
    are None are left out. Raises ValueCodecError for a value that has no JSON form."""
    if isinstance(test, StdinTest):
        row: dict[str, Any] = {"kind": "stdin", "input": test.input, "expected": test.expected}
    elif isinstance(test, SequenceTest):
        calls = [[name, [encode(item) for item in args]] for name, args in test.calls]
        expected = [encode(item) for item in test.expected]
        row = {"kind": "sequence", "class": test.class_name, "calls": calls, "expected": expected}
    else:
        kwargs = {name: encode(item) for name, item in test.kwargs.items()}
        row = {"kind": "call", "args": [encode(item) for item in test.args], "kwargs": kwargs}
        row |= (
            {"expected": encode(test.expected)} if test.raises is None else {"raises": test.raises}
        )
        row |= {} if test.fn_name is None else {"fn_name": test.fn_name}
    row["public"] = test.public
    for name in ("abs_tol", "rel_tol"):
        if getattr(test, name) is not None:
            row[name] = getattr(test, name)
    return row


def _test_from_json(data: Any, where: str) -> TestCase:
    """Read one test of any kind. Raises DataError that begins with `where` and names the field,
    also for a value that cannot be decoded."""
    if not isinstance(data, dict):
        raise DataError(f"{where}: an object was expected, not {short(data)}")
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise DataError(
            f"{where}: kind={short(kind)} must be one of {', '.join(map(repr, _KINDS))}"
        )
    fields, needed = _KINDS[kind]
    try:
        row = read_fields(data, {**_COMMON, **fields}, needed, where)
        del row["kind"]
        if kind == "stdin":
            return StdinTest(**row)
        return _sequence(row, where) if kind == "sequence" else _call(row, where)
    except ValueCodecError as error:
        raise DataError(f"{where}: a value cannot be read: {error}") from error


def _call(row: dict[str, Any], where: str) -> CallTest:
    """Read a call test from its stored fields. Raises DataError unless it has exactly one of
    `expected` and `raises`, and for an exception in `NOT_FOR_RAISES`, by which a process ends."""
    raises = row.get("raises")
    if raises in NOT_FOR_RAISES:
        raise DataError(
            f"{where}: raises={raises!r} cannot be expected of a program; name another exception"
        )
    if ("expected" in row) == (raises is not None):
        raise DataError(
            f"{where}: expected is missing; a call test needs either expected or raises"
        )
    return CallTest(**row)


def _sequence(row: dict[str, Any], where: str) -> SequenceTest:
    """Read a sequence test from its stored fields, of which `class` and `calls` are removed. Raises
    DataError unless the calls begin with the construction, and there is one expected value per
    call, None for the first."""
    name, calls = row.pop("class"), row.pop("calls")
    for call in calls:
        if not (ITEMS.fits(call) and len(call) == 2 and NAME.fits(call[0]) and ITEMS.fits(call[1])):
            raise DataError(
                f"{where}: calls: {short(call)} must be a pair: a method's name and a list of "
                "arguments"
            )
    if not calls or calls[0][0] != name:
        raise DataError(
            f"{where}: calls must begin with the class itself, {name!r}, and the arguments of "
            "its construction"
        )
    if len(row["expected"]) != len(calls) or row["expected"][0] is not None:
        raise DataError(
            f"{where}: expected must have one value for each of the {len(calls)} calls, null for "
            "the first"
        )
    return SequenceTest(name, tuple((method, _VALUES.kept(args)) for method, args in calls), **row)
