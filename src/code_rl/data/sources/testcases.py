"""Test cases of public rows and course code, converted to typed tests and to LiveCodeBench's row
shape.

| shape | from |
|---|---|
| list of `{"input", "output", "testtype"[, "metadata": {"func_name"}]}` | LiveCodeBench, lcbv5 |
| list of `{"type", "fn_name", "input", "output"}` | DeepCoder primeintellect |
| list of `{"input", "output"}` | DeepCoder codeforces |
| `{"inputs": [...], "outputs": [...][, "fn_name"]}` | TACO, APPS |

Each may be JSON text. Stdin tests and LiveCodeBench's calls (one JSON value per line, the result as
JSON text) are unambiguous. The other call shapes hold values, and do not say how arguments and
results are wrapped. `read_tests` reads a list as the arguments, and a result that is a list of one
item as that item. `with_tests_of` returns every `Reading` that fits all tests of a row, and
`data.resolve` decides by running the row's own solutions.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from code_rl.data.sources.records import Ambiguous, Reading, RowError, from_json
from code_rl.grading import (
    CallTest,
    Compare,
    Problem,
    SequenceTest,
    StdinTest,
    TestCase,
    extract_code,
)
from code_rl.grading.values import ValueCodecError, decode, dumps, loads
from code_rl.util import syntax
from code_rl.util.data_files import parse_json, short

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def call_tiers(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[tuple[Reading, ...], ...]:
    """Return every reading of raw call tests, the documented ones first; tiers are not empty.
    Raises RowError for values that fit no reading."""
    wanted = _fitting(_RESULTS, outputs)
    tiers = tuple(
        tuple(
            Reading(
                arguments,
                result,
                tuple(CallTest(a, v, k) for (a, k), v in zip(calls, values, strict=True)),
            )
            for arguments, calls in _fitting(ways, inputs)
            for result, values in wanted
        )
        for ways in (_DOCUMENTED, _SEEN)
    )
    if not any(tiers):
        raise RowError(
            "unknown_call_shape",
            f"input of type {type(inputs[0]).__name__}" if inputs else "no tests",
        )
    return tuple(tier for tier in tiers if tier)


def _fitting(
    ways: dict[str, Callable[[Any], Any]], raw: Sequence[Any]
) -> list[tuple[str, list[Any]]]:
    """Return each way of reading that fits every value, by name and in order, with its results.
    Ways with the same results count once."""
    found: list[tuple[str, list[Any]]] = []
    for name, way in ways.items():
        try:
            values = [way(value) for value in raw]
        except (TypeError, ValueError):  # it does not fit
            continue
        # Compared as text, since 1 == True == 1.0.
        if repr(values) not in {repr(earlier) for _, earlier in found}:
            found.append((name, values))
    return found


def _line_each(value: Any) -> Arguments:
    """Return one argument, a JSON value, from each line that is not blank. Raises TypeError or
    ValueError for anything else."""
    return tuple(parsed(line) for line in typed(value, str).split("\n") if line.strip()), {}


def _json_items(value: Any) -> Arguments:
    """Return the arguments in a list of JSON texts: one per text, or one per line if there is one
    text. Raises TypeError or ValueError for anything else."""
    items = typed(value, list)
    return _line_each(items[0]) if len(items) == 1 else (tuple(map(parsed, items)), {})


def _named(value: Any) -> Arguments:
    """Return arguments by name. Raises TypeError for anything but an object, and ValueError if a
    name is no identifier."""
    names = typed(value, dict)
    if not names or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise ValueError("no names of arguments")
    return (), dict(names)


def only_item(value: Any) -> Any:
    """Return the item of a list of one. Raises TypeError or ValueError for anything else."""
    (item,) = typed(value, list)
    return item


def typed(value: Any, kind: type) -> Any:
    """Return a value of this type, unchanged. Raises TypeError for any other."""
    if not isinstance(value, kind):
        raise TypeError(f"no {kind.__name__}")
    return value


def parsed(text: Any) -> Any:
    """Return the value of a JSON text. Raises TypeError or ValueError for anything else."""
    return parse_json(typed(text, str))


def _with_integer_keys(value: Any) -> Any:
    """Return the value with integers as keys of dicts whose keys are all numerals, at any depth,
    since JSON has no integer keys. The value itself is unchanged."""
    if isinstance(value, list):
        return [_with_integer_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    entries = {key: _with_integer_keys(item) for key, item in value.items()}
    if entries and all(isinstance(key, str) and key.lstrip("-").isdecimal() for key in entries):
        return {int(key): item for key, item in entries.items()}
    return entries


_DOCUMENTED: dict[str, Callable[[Any], Arguments]] = {
    "argument list": lambda value: (tuple(typed(value, list)), {}),
    "argument a line": _line_each,
    "argument list, integer keys": lambda value: (
        tuple(map(_with_integer_keys, typed(value, list))),
        {},
    ),
}
DOCUMENTED = frozenset(_DOCUMENTED)
"""The ways of reading arguments that some set documents."""

_SEEN: dict[str, Callable[[Any], Arguments]] = {
    "argument list in a list": lambda value: (tuple(typed(only_item(value), list)), {}),
    "argument list as JSON texts": _json_items,
    "arguments by name": _named,
    "one argument": lambda value: ((value,), {}),
}
_RESULTS: dict[str, Callable[[Any], Any]] = {
    "result": lambda value: value,
    "result in a list": only_item,
    "result as JSON text": parsed,
    "result as JSON text in a list": lambda value: parsed(only_item(value)),
    "result, integer keys": _with_integer_keys,
    "result in a list, integer keys": lambda value: _with_integer_keys(only_item(value)),
}

ALLCLOSE = Compare("lcb", abs_tol=1e-8, rel_tol=1e-5, exact_integers=True)
"""The rule of the validators of APPS, TACO and PRIME, which fall back on `numpy.allclose`. Theirs
takes -1000001 for -1000000; here integers are exact."""
STDIN_TYPES = ("stdin", "stdin_stdout")
CALL_TYPES = ("functional", "function_call")
MAX_SOLUTIONS = 10
"""The number of a row's solutions that are kept, the first ones; some rows have hundreds."""

CALL_PRELUDE = """\
from typing import *
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import ceil, comb, factorial, floor, gcd, inf, isqrt, log, log2, prod, sqrt
import bisect, collections, functools, heapq, itertools, math, operator, random, re, string, sys
"""
"""Names that starter code of competition sites takes for granted, because judges import much of the
standard library first. In training only calls get them, and only names that shadow no builtin; a
program that reads stdin writes its own imports."""


class RawTests(NamedTuple):
    """Raw inputs and outputs of one row. `fn_name` None means stdin. If `exact`, calls are JSON
    text, one value per line; else they are values with unknown wrapping."""

    fn_name: str | None
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    exact: bool

    def typed(self) -> tuple[TestCase, ...]:
        """Return the tests in order, unwrapped in the usual way. Raises RowError for malformed
        ones."""
        make = _stdin_test if self.fn_name is None else _call_test
        pairs = zip(self.inputs, self.outputs, strict=True)
        return tuple(make(*pair, f"tests[{index}]") for index, pair in enumerate(pairs))


def read_tests(raw: Any, metadata: Any = None) -> tuple[tuple[TestCase, ...], str | None]:
    """Return typed tests, in order, and the function's name (None: stdin tests). `metadata` may
    name the function. Raises RowError for a shape that is not in the table."""
    found = _parse(raw, metadata)
    return found.typed(), found.fn_name


def normalize_tests(raw_tests: Any, metadata: Any = None) -> list[dict[str, Any]]:
    """Return tests of any shape in the table as LiveCodeBench rows: `{"input", "output",
    "testtype", "metadata": {"func_name"}}`.

    Idempotent. Raises RowError as `read_tests` does, and for tests that such rows cannot hold.
    """
    tests, fn_name = read_tests(raw_tests, metadata)
    return [to_row(test, fn_name) for test in tests]


def with_tests_of(draft: Problem, raw: Any, metadata: Any = None) -> Problem | Ambiguous:
    """Return `draft` (without tests) with the tests of `raw`, or with every reading of call tests
    whose wrapping is unknown. Raises RowError for an unknown shape."""
    found = _parse(raw, metadata)
    if found.fn_name is None or found.exact:
        return with_calls(draft, found.fn_name, found.typed())
    tiers = call_tiers(found.inputs, found.outputs)
    return Ambiguous(replace(with_calls(draft, found.fn_name, tiers[0][0].tests), tests=()), tiers)


def solutions(value: Any) -> tuple[str, ...]:
    """Return the row's solutions without fences, from a list, one text, or JSON text of a list; at
    most `MAX_SOLUTIONS`. None, blank and `[]` give none. Raises RowError for anything else."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return ()
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        value = from_json(value, "solutions")
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RowError("wrong_field_type", "solutions must be a list of strings")
    return tuple(extract_code(text) or text for text in texts[:MAX_SOLUTIONS])


def _parse(raw: Any, metadata: Any) -> RawTests:
    """Return the raw tests of either layout: {inputs, outputs[, fn_name]}, or a list of single
    tests. Either may be JSON text. Raises RowError for anything else."""
    raw, named = from_json(raw, "tests"), _function_name(metadata, "metadata")
    if isinstance(raw, Mapping) and "inputs" in raw:
        inputs, outputs = raw["inputs"], raw.get("outputs")
        if (
            not isinstance(inputs, list)
            or not isinstance(outputs, list)
            or len(inputs) != len(outputs)
            or not inputs
        ):
            raise RowError(
                "bad_tests", "inputs and outputs must be lists of one length, at least 1"
            )
        name = raw.get("fn_name") or named
        called = None if name is None else _identifier(name, "tests")
        return RawTests(called, inputs, outputs, exact=False)
    rows = [raw] if isinstance(raw, Mapping) else raw
    if not isinstance(rows, list) or not rows:
        wanted = "a list of tests or an object with inputs and outputs was expected"
        raise RowError("bad_tests", f"{wanted}, not {short(raw)}")
    kinds = {_kind(row, named, f"tests[{index}]") for index, row in enumerate(rows)}
    if len(kinds) > 1:
        raise RowError("bad_tests", "all tests must be of one kind and call one function")
    kind, name = kinds.pop()
    exact = kind != "function_call"
    return RawTests(name, [row["input"] for row in rows], [row["output"] for row in rows], exact)


def _kind(row: Any, named: str | None, where: str) -> tuple[str, str | None]:
    """Return the form of one test, and the function that it calls (None: stdin); `named` is the
    function of the row's metadata. Raises RowError, which begins with `where`, for an unknown
    form."""
    if not isinstance(row, Mapping) or not {"input", "output"} <= row.keys():
        raise RowError("bad_tests", f"{where}: {short(row)} has no input and output")
    own = row.get("fn_name") or _function_name(row.get("metadata"), f"{where}: metadata")
    kind = row.get("testtype") or row.get("type") or ("function_call" if own else "stdin")
    if kind in STDIN_TYPES:
        return "stdin", None
    if kind not in CALL_TYPES:
        known = ", ".join((*STDIN_TYPES, *CALL_TYPES))
        raise RowError("bad_tests", f"{where}: type {short(kind)} is unknown; known are {known}")
    return kind, _identifier(own or named, where)


def _call_test(given: Any, wanted: Any, where: str) -> CallTest:
    """Return one call test: `given` is JSON text with one argument a line, or a list of arguments.
    Raises RowError, which begins with `where`."""
    try:
        if isinstance(given, str):
            args = tuple(loads(line) for line in given.split("\n") if line.strip())
            return CallTest(args, loads(wanted) if isinstance(wanted, str) else _unwrapped(wanted))
        if isinstance(given, list):
            return CallTest(tuple(map(decode, given)), _unwrapped(wanted))
    except ValueCodecError as error:
        raise RowError(
            "bad_tests", f"{where}: input or output is not one JSON value a line: {error}"
        ) from error
    wanted = "must be a list of arguments, or JSON text, one value a line"
    raise RowError("bad_tests", f"{where}: input {short(given)} {wanted}")


def _unwrapped(output: Any) -> Any:
    """Return the decoded value, or the only item if it is a list of one. Raises ValueCodecError for
    a value that cannot be decoded."""
    value = decode(output)
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _stdin_test(given: Any, wanted: Any, where: str) -> StdinTest:
    """Return a test of a program that reads `given`. Raises RowError, which begins with `where`,
    for anything but text or lines."""
    return StdinTest(_lines(given, f"{where}: input"), _lines(wanted, f"{where}: output"))


def _lines(value: Any, where: str) -> str:
    """Return text, or a list of lines joined to text. Raises RowError, which begins with `where`,
    for anything else."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise RowError("bad_tests", f"{where} {short(value)} must be a string or a list of lines")
    return value


def to_row(test: TestCase, fn_name: str | None) -> dict[str, Any]:
    """Return a test as a row of LiveCodeBench; `fn_name` is the function of call tests. Raises
    RowError if such rows cannot hold it."""
    if isinstance(test, StdinTest):
        given, expected, kind = test.input, test.expected, "stdin"
    elif isinstance(test, SequenceTest) or test.raises is not None or test.kwargs:
        raise RowError(
            "bad_tests",
            "a sequence of calls, an expected exception or arguments by name have no place in "
            "LiveCodeBench's rows",
        )
    else:
        given, expected = "\n".join(map(dumps, test.args)), dumps(test.expected)
        kind = "functional"
    name = {"func_name": fn_name if kind == "functional" else None}
    return {"input": given, "output": expected, "testtype": kind, "metadata": name}


def _function_name(metadata: Any, where: str) -> str | None:
    """Return the function that metadata name, or None. Raises RowError for malformed metadata or no
    identifier."""
    found = from_json(metadata, where) or {}
    if not isinstance(found, Mapping):
        raise RowError("wrong_field_type", f"{where} is {type(found).__name__}, expected an object")
    name = found.get("func_name") or found.get("fn_name")
    return None if name is None else _identifier(name, where)


def _identifier(name: Any, where: str) -> str:
    """Return a name that is a Python identifier. Raises RowError (`bad_fn_name`), which begins with
    `where`, for anything else."""
    if not isinstance(name, str) or not name.isidentifier():
        wanted = "a call needs the function's name, in fn_name or metadata.func_name"
        raise RowError("bad_fn_name", f"{where}: {wanted}; found {short(name)}")
    return name


def with_calls(draft: Problem, fn_name: str | None, tests: tuple[TestCase, ...]) -> Problem:
    """Return the draft with its tests. If they call `fn_name` (None: stdin), it also gets starter
    code, unless it has some, and the imports that a call needs as preamble."""
    if fn_name is None:
        return replace(draft, tests=tests)
    starter = draft.starter_code
    if starter is None or not starter.strip():
        headers = filter(None, (_header(code, fn_name) for code in draft.solutions))
        count = len(tests[0].args) if isinstance(tests[0], CallTest) else 0
        plain = f"def {fn_name}({', '.join(f'arg{index + 1}' for index in range(count))}):\n    "
        starter = next(headers, plain)
    meta = {**draft.meta, "preamble": CALL_PRELUDE}
    return replace(draft, tests=tests, fn_name=fn_name, starter_code=starter, meta=meta)


def _header(code: str, fn_name: str) -> str | None:
    """Return the line of `code` that defines `fn_name` (with its class, if it is a method of
    Solution), without its body; None if there is none, or `code` is not Python."""
    try:
        body = syntax.parse(code).body
    except SyntaxError:
        return None
    for part in body:
        method = isinstance(part, ast.ClassDef) and part.name == "Solution"
        for node in part.body if isinstance(part, ast.ClassDef) and method else [part]:
            if isinstance(node, ast.FunctionDef) and node.name == fn_name:
                line = f"def {fn_name}({ast.unparse(node.args)}):\n    "
                return f"class Solution:\n    {line}    " if method else line
    return None
