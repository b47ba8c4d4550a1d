"""Test cases in the shapes that public rows and course code use, to typed tests and to LiveCodeBench's row shape.

| shape | from |
|---|---|
| list of `{"input", "output", "testtype": "stdin" or "functional"[, "metadata": {"func_name"}]}` | LiveCodeBench, DeepCoder lcbv5 |
| list of `{"type": "stdin_stdout" or "function_call", "fn_name", "input", "output"}` | DeepCoder primeintellect |
| list of `{"input", "output"}` | DeepCoder codeforces |
| `{"inputs": [...], "outputs": [...][, "fn_name"]}` | TACO, APPS |

Each may come as JSON text. LiveCodeBench writes the arguments of a call as one JSON value a line and the result as JSON text. The other
call shapes hold values: a list is the arguments, and a result that is a list of one item stands for that item. Rows
that mean it otherwise cannot be told apart without running a solution; the readers of `problems.sources` do that.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from code_rl.errors import DataError
from code_rl.problems.problem import CallTest, Problem, SequenceTest, StdinTest, TestCase
from code_rl.problems.sources.readings import call_tiers
from code_rl.problems.sources.records import RowError, Unsettled
from code_rl.problems.values import ValueCodecError, decode, dumps, loads

STDIN_TYPES = ("stdin", "stdin_stdout")
CALL_TYPES = ("functional", "function_call")


def read_tests(raw: Any, metadata: Any = None) -> tuple[tuple[TestCase, ...], str | None]:
    """Typed tests and the function's name (None: stdin tests). Raises DataError for a shape that is not in the table."""
    fallback_name = _function_name(_mapping(metadata, "metadata"))
    raw = _from_json(raw, "tests")
    rows = _pair_up(raw) if isinstance(raw, Mapping) and "inputs" in raw else raw
    if isinstance(rows, Mapping):
        rows = [rows]
    if not isinstance(rows, Sequence) or isinstance(rows, str | bytes) or not rows:
        raise DataError(
            f"tests: a list of at least one test or an object with inputs and outputs was expected, not {_short(raw)}"
        )
    tests: list[TestCase] = []
    names: set[str | None] = set()
    for index, row in enumerate(rows):
        test, name = _read_row(row, fallback_name, f"tests[{index}]")
        tests.append(test)
        names.add(name)
    if len(names) > 1:
        raise DataError(f"tests: all must be of one kind and call one function; found {sorted(map(str, names))}")
    return tuple(tests), names.pop()


def normalize_tests(raw_tests: Any, metadata: Any = None) -> list[dict[str, Any]]:
    """Any shape of the table as LiveCodeBench rows: `{"input", "output", "testtype", "metadata": {"func_name"}}`, all strings.

    Idempotent. Raises DataError as `read_tests` does.
    """
    tests, fn_name = read_tests(raw_tests, metadata)
    return [_to_row(test, fn_name) for test in tests]


def _to_row(test: TestCase, fn_name: str | None) -> dict[str, Any]:
    if isinstance(test, StdinTest):
        return {"input": test.input, "output": test.expected, "testtype": "stdin", "metadata": {"func_name": None}}
    if isinstance(test, SequenceTest) or test.raises is not None or test.kwargs:
        raise DataError(
            "tests: a sequence of calls, an expected exception or arguments by name have no place in LiveCodeBench's rows"
        )
    return {
        "input": "\n".join(map(dumps, test.args)),
        "output": dumps(test.expected),
        "testtype": "functional",
        "metadata": {"func_name": fn_name},
    }


def _pair_up(raw: Mapping[str, Any]) -> list[dict[str, Any]]:
    """TACO's columns as rows."""
    inputs, outputs = raw.get("inputs"), raw.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise DataError("tests: inputs and outputs must be lists of one length")
    name = raw.get("fn_name")
    kind = "stdin_stdout" if name is None else "function_call"
    return [{"input": i, "output": o, "type": kind, "fn_name": name} for i, o in zip(inputs, outputs, strict=True)]


def _read_row(row: Any, fallback_name: str | None, where: str) -> tuple[TestCase, str | None]:
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: an object was expected, not {_short(row)}")
    for field in ("input", "output"):
        if field not in row:
            raise DataError(f"{where}: {field} is missing")
    own_name = row.get("fn_name") or _function_name(_mapping(row.get("metadata"), f"{where}: metadata"))
    kind = row.get("testtype") or row.get("type") or ("function_call" if own_name else "stdin")
    if kind in STDIN_TYPES:
        return StdinTest(_lines(row["input"], f"{where}: input"), _lines(row["output"], f"{where}: output")), None
    if kind not in CALL_TYPES:
        raise DataError(f"{where}: type {_short(kind)} is unknown; known are {', '.join((*STDIN_TYPES, *CALL_TYPES))}")
    name = own_name or fallback_name
    if not isinstance(name, str) or not name.isidentifier():
        raise DataError(
            f"{where}: a call test needs the function's name, in fn_name or metadata.func_name; found {_short(name)}"
        )
    return _read_call(row["input"], row["output"], where), name


def _read_call(given: Any, wanted: Any, where: str) -> CallTest:
    try:
        if isinstance(given, str):
            args = tuple(loads(line) for line in given.split("\n")) if given.strip() else ()
            expected = loads(wanted) if isinstance(wanted, str) else _unwrapped(wanted)
        elif isinstance(given, list):
            args, expected = tuple(map(decode, given)), _unwrapped(wanted)
        else:
            raise DataError(
                f"{where}: input {_short(given)} must be a list of arguments, or JSON text, one value a line"
            )
    except ValueCodecError as error:
        raise DataError(f"{where}: input or output is not one JSON value a line: {error}") from error
    return CallTest(args=args, expected=expected)


def _unwrapped(output: Any) -> Any:
    value = decode(output)
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _lines(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise DataError(f"{where} {_short(value)} must be a string or a list of lines")


def _function_name(metadata: Mapping[str, Any]) -> str | None:
    return metadata.get("func_name") or metadata.get("fn_name")


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    value = (_from_json(value, where) if value else None) or {}
    if not isinstance(value, Mapping):
        raise DataError(f"{where}: an object was expected, not {_short(value)}")
    return value


def _from_json(value: Any, where: str) -> Any:
    if not isinstance(value, str):
        return value
    sys.set_int_max_str_digits(0)
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from error


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."


MAX_SOLUTIONS = 10
"""Solutions kept of a row, the first ones: some rows have hundreds."""


@dataclass(frozen=True, slots=True)
class Calls:
    """The raw inputs and outputs of call tests, as values."""

    fn_name: str
    inputs: list[Any]
    outputs: list[Any]


def finish(draft: Problem, raw: Any, metadata: Any = None, *, text_calls: bool = False) -> Problem | Unsettled:
    """`draft` (no tests yet) with the tests of `raw`. Raises RowError for a shape that is not known.

    `text_calls`: the set documents LiveCodeBench's JSON text for calls, so that there is nothing to find out.
    """
    raw = from_json(raw, "tests")
    calls = None if text_calls else _value_calls(raw, metadata)
    if calls is None:
        try:
            tests, fn_name = read_tests(raw, metadata)
        except DataError as error:
            raise RowError("bad_tests", str(error)) from error
        return _with(draft, fn_name, (*draft.tests, *tests))
    tiers = call_tiers(calls.inputs, calls.outputs)
    return Unsettled(dataclasses.replace(_with(draft, calls.fn_name, tiers[0][0].tests), tests=()), tiers)


def from_json(value: Any, name: str) -> Any:
    """`value`, parsed when it is text. Raises RowError for text that is not JSON."""
    if not isinstance(value, str):
        return value
    sys.set_int_max_str_digits(0)
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise RowError("not_json", f"{name}: {error}") from error


def solutions(value: Any) -> tuple[str, ...]:
    """The row's solutions without fences: a list, or JSON text of one; at most `MAX_SOLUTIONS`. None, blank and `[]` are none."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return ()
    if isinstance(value, str) and value.lstrip()[:1] == "[":
        value = from_json(value, "solutions")
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise RowError("wrong_field_type", "solutions must be a list of strings")
    return tuple(unfenced(text) for text in texts[:MAX_SOLUTIONS])


def unfenced(text: str) -> str:
    """The code inside the last fenced block, or the text itself where there is none."""
    if "```" not in text:
        return text
    block = text.rpartition("```")[0].rpartition("```")[2]
    first, newline, rest = block.partition("\n")
    return rest if newline and (not first.strip() or first.strip().isalnum()) else block


def starter_for(fn_name: str, given: str | None, references: Sequence[str], arguments: int) -> str:
    """The row's own starter code, else the header that its solution has, else one with as many parameters as the tests have."""
    if given is not None and given.strip():
        return given
    for code in references:
        header = _header(code, fn_name)
        if header is not None:
            return header
    return f"def {fn_name}({', '.join(f'arg{index + 1}' for index in range(arguments))}):\n    "


def _with(draft: Problem, fn_name: str | None, tests: tuple[TestCase, ...]) -> Problem:
    """The draft with its tests, with the starter code and the imports that a call needs."""
    if fn_name is None:
        return dataclasses.replace(draft, tests=tests)
    arguments = len(tests[0].args) if isinstance(tests[0], CallTest) else 0
    return dataclasses.replace(
        draft,
        tests=tests,
        fn_name=fn_name,
        starter_code=starter_for(fn_name, draft.starter_code, draft.solutions, arguments),
        meta={**draft.meta, "preamble": CALL_PRELUDE},
    )


def _value_calls(raw: Any, metadata: Any) -> Calls | None:
    """The calls of `raw` when it holds calls; None for stdin tests and for LiveCodeBench's text rows."""
    if isinstance(raw, Mapping) and "inputs" in raw:
        name = raw.get("fn_name") or _named(metadata)
        if name is None:
            return None
        inputs, outputs = raw["inputs"], raw.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
            raise RowError("bad_tests", "inputs and outputs must be lists of one length, at least 1")
        return Calls(_identifier(name), inputs, outputs)
    if not isinstance(raw, list) or not all(isinstance(row, Mapping) for row in raw):
        return None
    kinds = {row.get("type") for row in raw}
    if "function_call" not in kinds:
        return None
    if len(kinds) > 1:
        raise RowError("bad_tests", f"tests of several kinds in one row: {sorted(map(str, kinds))}")
    names = {row.get("fn_name") for row in raw}
    if len(names) > 1:
        raise RowError("bad_tests", f"one row calls several functions: {sorted(map(str, names))}")
    if not all("input" in row and "output" in row for row in raw):
        raise RowError("bad_tests", "a test lacks its input or output")
    return Calls(
        _identifier(names.pop() or _named(metadata)), [row["input"] for row in raw], [row["output"] for row in raw]
    )


def _named(metadata: Any) -> Any:
    found = from_json(metadata, "metadata") if metadata else None
    return found.get("func_name") if isinstance(found, Mapping) else None


def _identifier(name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise RowError("bad_fn_name", f"{str(name)[:60]!r} is not the name of a function")
    return name


def _header(code: str, fn_name: str) -> str | None:
    """The line of `code` that defines `fn_name` (in its class, if it is a method), without its body."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for part in body:
        if isinstance(part, ast.FunctionDef) and part.name == fn_name:
            return f"def {fn_name}({ast.unparse(part.args)}):\n    "
        if isinstance(part, ast.ClassDef) and part.name == "Solution":
            for method in part.body:
                if isinstance(method, ast.FunctionDef) and method.name == fn_name:
                    return f"class Solution:\n    def {fn_name}({ast.unparse(method.args)}):\n        "
    return None


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

_BEFORE_BUILTINS = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools", "functools", "operator",
    "io", "sys", "json",
)  # fmt: skip

LCB_PRELUDE = (
    "".join(f"from {name} import *\n" for name in (*_BEFORE_BUILTINS, "builtins", "typing"))
    + f"import {', '.join(_BEFORE_BUILTINS)}\nsys.setrecursionlimit(50000)\n"
)
"""What LiveCodeBench has before every program: the names of these modules, a later one before an earlier, then the modules themselves."""
