"""HumanEval, HumanEval+ (full, mini, and the self-contained OriginFmt) and EvoEval: raw row to problem.

HumanEval: literal asserts of `check(candidate)`. HumanEval+ and EvoEval: inputs, with expected values from the canonical solution
(`settle.with_expected`). OriginFmt rows already hold their results as literals.
The prompt's imports and helper functions become the preamble, so that an answer may rely on them as a completion would.
"""

from __future__ import annotations

import ast
from typing import Any

from code_rl.problems.problem import Compare, Problem
from code_rl.problems.prompts import COMPLETE
from code_rl.problems.sources.asserts import (
    AssertReader,
    assert_rule,
    call_tests,
    check_body,
    common_view,
    read_asserts,
    read_call_texts,
    read_statements,
    read_tables,
    tabled,
    view_setup,
)
from code_rl.problems.sources.records import Draft, Origin, Row, RowError, field, from_json, number

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


def read_humaneval(row: Row, _origin: Origin) -> Problem:
    """A HumanEval row (`test` holds asserts). Raises RowError for tests that are loops, random or computed."""
    common = _common(row, "humaneval")
    asserts = list(read_asserts(AssertReader("candidate", common["fn_name"]), check_body(field(row, "test", str))))
    view = common_view(asserts)
    if view is not None:
        common["meta"]["setup"] = view_setup(common["fn_name"], view)
    return Problem(**common, tests=call_tests(asserts), compare=assert_rule(asserts))


def read_humaneval_plus(row: Row, _origin: Origin) -> Draft:
    """A HumanEval+ row, full or mini."""
    common = _common(row, "humanevalplus")
    calls = tuple(_arguments(call) for name in ("base_input", "plus_input") for call in field(row, name, list))
    checker = CHECKERS.get(common["fn_name"])
    compare = Compare("checker", checker=checker) if checker else Compare()
    return Draft(Problem(**common, tests=(), compare=compare), calls, common["solutions"][0], number(row, "atol"))


def read_humaneval_plus_origin(row: Row, _origin: Origin) -> Problem | Draft:
    """A HumanEval+ row in the original format, whose `test` lists `inputs` and `results` (or a reference function)."""
    problem = Problem(**_common(row, "humanevalplus-origin"), tests=())
    return tabled(problem, *read_tables(check_body(field(row, "test", str))))


def read_evoeval(row: Row, _origin: Origin) -> Draft:
    """An EvoEval row: `inputs` are lists of arguments, or texts as they stand between the brackets of a call."""
    common = _common(row, "evoeval")
    inputs = from_json(row["inputs"], "inputs", list) if str(row["inputs"])[:1] == "[" else row["inputs"]
    if not isinstance(inputs, list) or not inputs:
        raise RowError("no_tests", "inputs must be a list of calls")
    calls = read_call_texts(inputs) if isinstance(inputs[0], str) else map(_arguments, inputs)
    return Draft(Problem(**common, tests=()), tuple(calls), common["solutions"][0])


def read_sandbox_evoeval(row: Row, origin: Origin) -> Problem | Draft:
    """Sandbox Fusion's EvoEval: the fields of HumanEval under other names, the tests a table."""
    labels = from_json(row["labels"], "labels", dict)
    renamed = {**row, "task_id": row.get("id", origin.row_id), "prompt": row["content"], **labels}
    problem = Problem(**_common(renamed, "evoeval"), tests=())
    return tabled(problem, *read_tables(check_body(field(row, "test", str))))


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
    named = [part for part in read_statements(prompt) if getattr(part, "name", None) == entry_point]
    functions = [part for part in named if isinstance(part, ast.FunctionDef)]
    if not functions:
        raise RowError("entry_point_not_in_prompt", entry_point)
    return "\n".join(prompt.splitlines()[: functions[-1].lineno - 1]).strip("\n")


def _arguments(call: object) -> tuple[Any, ...]:
    if not isinstance(call, list):
        raise RowError("wrong_field_type", f"an input must be a list of arguments, found {type(call).__name__}")
    return tuple(call)
