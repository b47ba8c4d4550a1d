"""Test cases in the shapes that public rows and course code use, to typed tests and to LiveCodeBench's row shape.

| shape | from |
|---|---|
| list of `{"input", "output", "testtype": "stdin" or "functional"[, "metadata": {"func_name"}]}` | LiveCodeBench, DeepCoder lcbv5 |
| list of `{"type": "stdin_stdout" or "function_call", "fn_name", "input", "output"}` | DeepCoder primeintellect |
| list of `{"input", "output"}` | DeepCoder codeforces |
| `{"inputs": [...], "outputs": [...][, "fn_name"]}` | TACO, APPS |

Each may come as JSON text. Stdin tests and LiveCodeBench's calls (one JSON value a line, the result as JSON text) are exact. The other call shapes
hold values and leave open what is wrapped in what: `read_tests` takes a list for the arguments and a result that is a list of one item for that
item; `finish` leaves it to the row's own solutions (`readings`, `problems.settle`).
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from code_rl.problems.files import short
from code_rl.problems.problem import CallTest, Problem, SequenceTest, StdinTest, TestCase
from code_rl.problems.sources.readings import call_tiers
from code_rl.problems.sources.records import RowError, Unsettled, from_json
from code_rl.problems.values import ValueCodecError, decode, dumps, loads

STDIN_TYPES = ("stdin", "stdin_stdout")
CALL_TYPES = ("functional", "function_call")
MAX_SOLUTIONS = 10
"""Solutions kept of a row, the first ones: some rows have hundreds."""

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
"""The names that starter code of competition sites takes for granted: their judges import much of the standard library first. In training only
calls have them, and only names that shadow no builtin: a program that reads stdin writes its own imports."""


@dataclass(frozen=True, slots=True)
class RawTests:
    """Raw inputs and outputs of one row. `fn_name` None: stdin. `exact`: calls are JSON text, one value a line; else values, in some wrapping."""

    fn_name: str | None
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    exact: bool

    def typed(self) -> tuple[TestCase, ...]:
        """The tests, wrapped as is usual."""
        make = _stdin_test if self.fn_name is None else _call_test
        pairs = enumerate(zip(self.inputs, self.outputs, strict=True))
        return tuple(make(given, wanted, f"tests[{index}]") for index, (given, wanted) in pairs)


def read_tests(raw: Any, metadata: Any = None) -> tuple[tuple[TestCase, ...], str | None]:
    """Typed tests and the function's name (None: stdin tests). Raises RowError for a shape that is not in the table."""
    found = _parse(raw, metadata)
    return found.typed(), found.fn_name


def normalize_tests(raw_tests: Any, metadata: Any = None) -> list[dict[str, Any]]:
    """Any shape of the table as LiveCodeBench rows: `{"input", "output", "testtype", "metadata": {"func_name"}}`, all strings.

    Idempotent. Raises RowError as `read_tests` does.
    """
    tests, fn_name = read_tests(raw_tests, metadata)
    return [_to_row(test, fn_name) for test in tests]


def finish(draft: Problem, raw: Any, metadata: Any = None, *, text_calls: bool = False) -> Problem | Unsettled:
    """`draft` (no tests yet) with the tests of `raw`. Raises RowError for a shape that is not known.

    `text_calls`: the set documents LiveCodeBench's JSON text for calls, so that there is nothing to find out.
    """
    found = _parse(raw, metadata)
    if found.fn_name is None or found.exact or text_calls:
        return with_calls(draft, found.fn_name, found.typed())
    tiers = call_tiers(found.inputs, found.outputs)
    return Unsettled(dataclasses.replace(with_calls(draft, found.fn_name, tiers[0][0].tests), tests=()), tiers)


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


def _parse(raw: Any, metadata: Any) -> RawTests:
    raw, named = from_json(raw, "tests"), _function_name(metadata, "metadata")
    if isinstance(raw, Mapping) and "inputs" in raw:
        inputs, outputs = raw["inputs"], raw.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
            raise RowError("bad_tests", "inputs and outputs must be lists of one length, at least 1")
        name = raw.get("fn_name") or named
        return RawTests(None if name is None else _identifier(name, "tests"), inputs, outputs, exact=False)
    rows = [raw] if isinstance(raw, Mapping) else raw
    if not isinstance(rows, list) or not rows:
        raise RowError(
            "bad_tests", f"a list of tests or an object with inputs and outputs was expected, not {short(raw)}"
        )
    kinds = {_kind(row, named, f"tests[{index}]") for index, row in enumerate(rows)}
    if len(kinds) > 1:
        shown = sorted(f"{kind} {name or ''}".strip() for kind, name in kinds)
        raise RowError("bad_tests", f"all tests must be of one kind and call one function; found {', '.join(shown)}")
    kind, name = kinds.pop()
    exact = kind != "function_call"
    return RawTests(name, [row["input"] for row in rows], [row["output"] for row in rows], exact)


def _kind(row: Any, named: str | None, where: str) -> tuple[str, str | None]:
    """How one test is written, and the function that it calls."""
    if not isinstance(row, Mapping):
        raise RowError("bad_tests", f"{where}: an object was expected, not {short(row)}")
    for name in ("input", "output"):
        if name not in row:
            raise RowError("bad_tests", f"{where}: {name} is missing")
    own = row.get("fn_name") or _function_name(row.get("metadata"), f"{where}: metadata")
    kind = row.get("testtype") or row.get("type") or ("function_call" if own else "stdin")
    if kind in STDIN_TYPES:
        return "stdin", None
    if kind not in CALL_TYPES:
        known = ", ".join((*STDIN_TYPES, *CALL_TYPES))
        raise RowError("bad_tests", f"{where}: type {short(kind)} is unknown; known are {known}")
    return kind, _identifier(own or named, where)


def _stdin_test(given: Any, wanted: Any, where: str) -> StdinTest:
    return StdinTest(_lines(given, f"{where}: input"), _lines(wanted, f"{where}: output"))


def _call_test(given: Any, wanted: Any, where: str) -> CallTest:
    try:
        if isinstance(given, str):
            args = tuple(loads(line) for line in given.split("\n")) if given.strip() else ()
            return CallTest(args, loads(wanted) if isinstance(wanted, str) else _unwrapped(wanted))
        if isinstance(given, list):
            return CallTest(tuple(map(decode, given)), _unwrapped(wanted))
    except ValueCodecError as error:
        raise RowError("bad_tests", f"{where}: input or output is not one JSON value a line: {error}") from error
    raise RowError(
        "bad_tests", f"{where}: input {short(given)} must be a list of arguments, or JSON text, one value a line"
    )


def _unwrapped(output: Any) -> Any:
    value = decode(output)
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _lines(value: Any, where: str) -> str:
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise RowError("bad_tests", f"{where} {short(value)} must be a string or a list of lines")
    return value


def _to_row(test: TestCase, fn_name: str | None) -> dict[str, Any]:
    if isinstance(test, StdinTest):
        return {"input": test.input, "output": test.expected, "testtype": "stdin", "metadata": {"func_name": None}}
    if isinstance(test, SequenceTest) or test.raises is not None or test.kwargs:
        raise RowError(
            "bad_tests",
            "a sequence of calls, an expected exception or arguments by name have no place in LiveCodeBench's rows",
        )
    given, metadata = "\n".join(map(dumps, test.args)), {"func_name": fn_name}
    return {"input": given, "output": dumps(test.expected), "testtype": "functional", "metadata": metadata}


def _function_name(metadata: Any, where: str) -> str | None:
    found = from_json(metadata, where) or {}
    if not isinstance(found, Mapping):
        raise RowError("wrong_field_type", f"{where} is {type(found).__name__}, expected an object")
    name: str | None = found.get("func_name") or found.get("fn_name")
    return name


def _identifier(name: Any, where: str) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        wanted = "a call needs the function's name, in fn_name or metadata.func_name"
        raise RowError("bad_fn_name", f"{where}: {wanted}; found {short(name)}")
    return name


def with_calls(draft: Problem, fn_name: str | None, tests: tuple[TestCase, ...]) -> Problem:
    """The draft with its tests; where they call `fn_name`, with the starter code and the imports that a call needs."""
    if fn_name is None:
        return dataclasses.replace(draft, tests=tests)
    starter = draft.starter_code
    if starter is None or not starter.strip():
        headers = filter(None, (_header(code, fn_name) for code in draft.solutions))
        count = len(tests[0].args) if isinstance(tests[0], CallTest) else 0
        plain = f"def {fn_name}({', '.join(f'arg{index + 1}' for index in range(count))}):\n    "
        starter = next(headers, plain)
    meta = {**draft.meta, "preamble": CALL_PRELUDE}
    return dataclasses.replace(draft, tests=tests, fn_name=fn_name, starter_code=starter, meta=meta)


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
