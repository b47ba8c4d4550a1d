"""HumanEval and HumanEval+ (full, mini, and the self-contained OriginFmt): raw row to problem.

HumanEval: literal asserts of `check(candidate)`. HumanEval+: `base_input` and `plus_input`, with expected values from the canonical
solution (`evalplus.with_expected`). OriginFmt rows already hold their results as literals.
The prompt's imports and helper functions become the preamble, so that an answer may rely on them as a completion would.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any

from code_rl.problems.problem import Compare, Problem
from code_rl.problems.sources.asserts import (
    AssertReader,
    assert_rule,
    call_tests,
    check_body,
    common_view,
    read_asserts,
    read_statements,
    read_tables,
    tabled,
    view_setup,
)
from code_rl.problems.sources.records import Draft, Row, RowError, Skipped, field, number, read_each

COMPLETE = "Complete the following function."
FIND_ZERO_CHECKER = """
import json, math, sys

test = json.load(sys.stdin)
coefficients, root = test["args"][0], test["value"]
if type(root) not in (int, float) or not math.isfinite(root):
    print("wrong: not a finite number")
else:
    try:
        residue = math.fsum(c * math.pow(root, power) for power, c in enumerate(coefficients))
    except OverflowError:
        residue = math.inf
    print("ok" if abs(residue) <= 1e-4 else "wrong: not a root")
"""
"""HumanEval/32: any root of the polynomial is right, to 1e-4 in the polynomial's value, as the task's own test has it."""
CHECKERS = {"find_zero": FIND_ZERO_CHECKER}


def read_humaneval(rows: Iterable[Row]) -> Iterator[Problem | Skipped]:
    """HumanEval rows (`test` holds asserts). Rows whose tests are loops, random or computed are Skipped with the reason."""
    return read_each(rows, _from_asserts, _row_id)


def read_humaneval_plus(rows: Iterable[Row]) -> Iterator[Draft | Skipped]:
    """HumanEval+ rows, full or mini."""
    return read_each(rows, _from_inputs, _row_id)


def read_humaneval_plus_origin(rows: Iterable[Row]) -> Iterator[Problem | Draft | Skipped]:
    """HumanEval+ rows in the original format, whose `test` lists `inputs` and `results` (or a reference function)."""
    return read_each(rows, _from_tables, _row_id)


def _row_id(row: Row) -> str:
    return str(row.get("task_id", "?"))


def _common(row: Row, source: str) -> dict[str, Any]:
    prompt, name = field(row, "prompt", str), field(row, "entry_point", str)
    return {
        "id": field(row, "task_id", str),
        "statement": COMPLETE,
        "starter_code": prompt.strip("\n"),
        "fn_name": name,
        "solutions": (prompt + field(row, "canonical_solution", str),),
        "source": source,
        "meta": {"preamble": prompt_preamble(prompt, name)},
    }


def prompt_preamble(prompt: str, entry_point: str) -> str:
    """The part of a prompt before the function to write: imports and helper functions."""
    functions = [
        part for part in read_statements(prompt) if isinstance(part, ast.FunctionDef) and part.name == entry_point
    ]
    if not functions:
        raise RowError("entry_point_not_in_prompt", entry_point)
    return "\n".join(prompt.splitlines()[: functions[-1].lineno - 1]).strip("\n")


def _from_asserts(row: Row) -> Problem:
    common = _common(row, "humaneval")
    reader = AssertReader("candidate", common["fn_name"])
    asserts = list(read_asserts(reader, check_body(field(row, "test", str))))
    tests = call_tests(asserts)
    view = common_view(asserts)
    if view is not None:
        common["meta"]["setup"] = view_setup(common["fn_name"], view)
    return Problem(**common, tests=tests, compare=assert_rule(asserts))


def _from_inputs(row: Row) -> Draft:
    common = _common(row, "humanevalplus")
    calls = tuple(_arguments(call) for name in ("base_input", "plus_input") for call in field(row, name, list))
    checker = CHECKERS.get(common["fn_name"])
    compare = Compare("checker", checker=checker) if checker else Compare()
    return Draft(Problem(**common, tests=(), compare=compare), calls, common["solutions"][0], number(row, "atol"))


def _arguments(call: object) -> tuple[Any, ...]:
    if not isinstance(call, list):
        raise RowError("wrong_field_type", f"an input must be a list of arguments, found {type(call).__name__}")
    return tuple(call)


def _from_tables(row: Row) -> Problem | Draft:
    problem = Problem(**_common(row, "humanevalplus-origin"), tests=())
    return tabled(problem, *read_tables(check_body(field(row, "test", str))))
