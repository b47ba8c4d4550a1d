"""HumanEval and HumanEval+ (full, mini, and the self-contained OriginFmt): raw row to problem.

HumanEval has literal asserts in `check(candidate)`. HumanEval+ has inputs; the canonical solution
computes the expected values (`resolve.with_expected`). OriginFmt rows already have their results as
literals. The prompt's imports and helper functions become the preamble, so an answer may use them
like a completion.
"""

from __future__ import annotations

import ast
import dataclasses

from code_rl.data.sources import asserts
from code_rl.data.sources.records import (
    COMPLETE,
    Draft,
    Origin,
    Row,
    RowError,
    field,
    items,
    number,
)
from code_rl.grading import Compare, Problem

FIND_ZERO_CHECKER = """
import math

def check(input, root, expected):
    (coefficients,), _ = input
    if type(root) not in (int, float) or not math.isfinite(root):
        return "not a finite number"
    try:
        residue = math.fsum(c * math.pow(root, power) for power, c in enumerate(coefficients))
    except OverflowError:
        residue = math.inf
    return abs(residue) <= 1e-4 or "not a root"
"""
"""HumanEval/32: as in the task's own test, any root of the polynomial is right if the polynomial's
value there is within 1e-4 of 0."""
CHECKERS = {"find_zero": FIND_ZERO_CHECKER}


def read_humaneval(row: Row, _origin: Origin) -> Problem:
    """Read a HumanEval row (`test` has asserts), whose tests are not public. Raises RowError for
    tests that are loops, random or computed."""
    problem = _problem(row, "humaneval")
    reader = asserts.AssertReader("candidate", problem.fn_name)
    return asserts.asserted(
        problem, asserts.read_asserts(reader, asserts.check_body(field(row, "test", str)))
    )


def read_humaneval_plus(row: Row, _origin: Origin) -> Draft:
    """Read a HumanEval+ row, full or mini: its base inputs, then its plus inputs. The reference
    computes the expected values; functions in `CHECKERS` are judged by a checker of ours. Raises
    RowError for missing or malformed fields."""
    problem = _problem(row, "humanevalplus")
    inputs = tuple(
        tuple(call) for name in ("base_input", "plus_input") for call in items(row, name, list)
    )
    checker = CHECKERS.get(str(problem.fn_name))
    if checker:
        problem = dataclasses.replace(problem, compare=Compare("checker", checker=checker))
    return Draft(problem, inputs, number(row, "atol"))


def read_humaneval_plus_origin(row: Row, _origin: Origin) -> Problem | Draft:
    """Read a HumanEval+ row in the original format, whose `test` lists `inputs` and `results` (or a
    reference function: then the result is a Draft). Raises RowError for any other form."""
    return asserts.tabled(
        _problem(row, "humanevalplus-origin"),
        *asserts.read_tables(asserts.check_body(field(row, "test", str))),
    )


def _problem(row: Row, source: str) -> Problem:
    """Return the row's problem without its tests, its solution the prompt with the canonical body.
    Raises RowError for missing or malformed fields."""
    prompt, name = field(row, "prompt", str), field(row, "entry_point", str)
    solution = prompt + field(row, "canonical_solution", str)
    return Problem(
        id=field(row, "task_id", str),
        statement=COMPLETE,
        tests=(),
        starter_code=prompt.strip("\n"),
        fn_name=name,
        solutions=(solution,),
        source=source,
        meta={"preamble": prompt_preamble(prompt, name, solution)},
    )


def prompt_preamble(prompt: str, entry_point: str, solution: str) -> str:
    """Return the part of a prompt before the function to write: imports and helper functions.
    Raises RowError if the function is not in the prompt.

    `solution` is the prompt with a body: a header alone is no Python.
    """
    lines = prompt.splitlines()
    begins = [
        part.lineno
        for part in asserts.read_statements(solution, "prompt and canonical_solution")
        if isinstance(part, ast.FunctionDef)
        and part.name == entry_point
        and part.lineno <= len(lines)
    ]
    if not begins:
        raise RowError("entry_point_not_in_prompt", entry_point)
    return "\n".join(lines[: begins[-1] - 1]).strip("\n")
