"""HumanEval, HumanEval+ (full, mini, and the self-contained OriginFmt) and EvoEval: raw row to problem; and BigCodeBench.

HumanEval: literal asserts of `check(candidate)`. HumanEval+ and EvoEval: inputs, with expected values from the canonical solution
(`resolve.with_expected`). OriginFmt rows already hold their results as literals.
The prompt's imports and helper functions become the preamble, so that an answer may rely on them as a completion would.

BigCodeBench's tests are methods of a `unittest.TestCase`. A method counts as data when it calls the function with literals and asserts equality, truth
or an exception of what comes back. Rows with any other test (mocks, files, plots, properties of objects) are programs themselves and are
refused, `tests_are_a_program`: run beside the program they judge, they could be tampered with.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from typing import Any

from code_rl.problems.problem import Compare, Problem
from code_rl.problems.prompts import COMPLETE
from code_rl.problems.sources import asserts
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
    problem = _problem(row, "humaneval")
    reader = asserts.AssertReader("candidate", problem.fn_name)
    return asserts.asserted(problem, asserts.read_asserts(reader, asserts.check_body(field(row, "test", str))))


def read_humaneval_plus(row: Row, _origin: Origin) -> Draft:
    """A HumanEval+ row, full or mini."""
    problem = _problem(row, "humanevalplus")
    calls = tuple(_arguments(call) for name in ("base_input", "plus_input") for call in field(row, name, list))
    checker = CHECKERS.get(str(problem.fn_name))
    if checker:
        problem = dataclasses.replace(problem, compare=Compare("checker", checker=checker))
    return Draft(problem, calls, problem.solutions[0], number(row, "atol"))


def read_humaneval_plus_origin(row: Row, _origin: Origin, source: str = "humanevalplus-origin") -> Problem | Draft:
    """A HumanEval+ row in the original format, whose `test` lists `inputs` and `results` (or a reference function)."""
    return asserts.tabled(_problem(row, source), *asserts.read_tables(asserts.check_body(field(row, "test", str))))


def read_evoeval(row: Row, _origin: Origin) -> Draft:
    """An EvoEval row: `inputs` are lists of arguments, or texts as they stand between the brackets of a call."""
    problem = _problem(row, "evoeval")
    inputs = from_json(row["inputs"], "inputs", list) if str(row["inputs"])[:1] == "[" else row["inputs"]
    if not isinstance(inputs, list) or not inputs:
        raise RowError("no_tests", "inputs must be a list of calls")
    calls = asserts.read_call_texts(inputs) if isinstance(inputs[0], str) else map(_arguments, inputs)
    return Draft(problem, tuple(calls), problem.solutions[0])


def _problem(row: Row, source: str) -> Problem:
    """The problem but for its tests."""
    prompt, name = field(row, "prompt", str), field(row, "entry_point", str)
    begun = prompt if prompt.endswith("\n") else f"{prompt}\n"
    return Problem(
        id=field(row, "task_id", str),
        statement=COMPLETE,
        tests=(),
        starter_code=prompt.strip("\n"),
        fn_name=name,
        solutions=(begun + field(row, "canonical_solution", str),),
        source=source,
        meta={"preamble": prompt_preamble(prompt, name)},
    )


def prompt_preamble(prompt: str, entry_point: str) -> str:
    """The part of a prompt before the function to write: imports and helper functions."""
    named = [part for part in asserts.read_statements(prompt) if getattr(part, "name", None) == entry_point]
    functions = [part for part in named if isinstance(part, ast.FunctionDef)]
    if not functions:
        raise RowError("entry_point_not_in_prompt", entry_point)
    return "\n".join(prompt.splitlines()[: functions[-1].lineno - 1]).strip("\n")


def _arguments(call: object) -> tuple[Any, ...]:
    if not isinstance(call, list):
        raise RowError("wrong_field_type", f"an input must be a list of arguments, found {type(call).__name__}")
    return tuple(call)


EQUAL = ("Equal", "ListEqual", "DictEqual", "TupleEqual", "SetEqual", "SequenceEqual", "MultiLineEqual", "Is")
VALUES = {"assertTrue": "assert {0}", "assertFalse": "assert not {0}", "assertIsNone": "assert {0} is None"}
VALUES |= {f"assert{name}": "assert {0} == {1}" for name in EQUAL}
PLACES = 7
"""What `assertAlmostEqual` rounds to unless it is told."""


def read_bigcodebench(row: Row, origin: Origin) -> Problem:
    """A row of BigCodeBench: `complete_prompt`, `canonical_solution`, `entry_point`, `test`."""
    name, prompt = field(row, "entry_point", str), field(row, "complete_prompt", str)
    try:
        stated = [found for method in _methods(field(row, "test", str)) for found in _read_method(method, name)]
    except asserts.AssertFormError as error:
        raise _program(error.detail) from error
    shown = {"task_id": str(row.get("task_id", origin.row_id)), "prompt": prompt.rstrip("\n") + "\n"}
    return asserts.asserted(_problem({**row, **shown}, "bigcodebench"), stated)


def _methods(source: str) -> Iterator[ast.FunctionDef]:
    for part in asserts.read_statements(source):
        for method in part.body if isinstance(part, ast.ClassDef) else ():
            if not isinstance(method, ast.FunctionDef):
                continue
            if method.decorator_list or not method.name.startswith("test") or len(method.args.args) != 1:
                raise _program(method.name)
            yield method


def _read_method(method: ast.FunctionDef, name: str) -> Iterator[asserts.CallAssert]:
    """The asserts of one method. Names given a value once stand for it wherever they are used."""
    given: dict[str, ast.expr] = {}
    reader = asserts.AssertReader(name)
    for statement in method.body:
        match statement:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Assign(targets=[ast.Name(id=target)], value=value) if target not in given:
                given[target] = _replaced(value, given)
            case ast.With(items=[ast.withitem(context_expr=ast.Call(func=ast.Attribute(attr="assertRaises"), args=[ast.Name(id=kind)]), optional_vars=None)], body=[ast.Expr(value=call) | ast.Assign(value=call)]):  # fmt: skip
                yield reader.raising(_replaced(call, given), kind)
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=kind), args=args, keywords=words)
            ):
                yield from asserts.read_asserts(
                    reader, [_as_assert(kind, [_replaced(arg, given) for arg in args], words)]
                )
            case _:
                raise _program(ast.unparse(statement))


def _as_assert(kind: str, args: list[ast.expr], words: list[ast.keyword]) -> ast.stmt:
    options = {word.arg: word.value for word in words if word.arg != "msg"}
    if kind.endswith("Equal") and len(args) > 1 and not isinstance(args[0], ast.Call):
        args = [args[1], args[0], *args[2:]]
    shown = [ast.unparse(arg) for arg in args]
    if kind == "assertAlmostEqual" and len(args) in (2, 3) and options.keys() <= {"places", "delta"}:
        places = ast.unparse(args[2]) if len(args) == 3 else ast.unparse(options.get("places", ast.Constant(PLACES)))
        bound = ast.unparse(options["delta"]) if "delta" in options else f"0.5 / 10 ** {places}"
        text = f"assert abs({shown[0]} - {shown[1]}) <= {bound}"
    elif kind in VALUES and not options and len(args) >= VALUES[kind].count("{"):
        text = VALUES[kind].format(*shown)
    else:
        raise _program(f"{kind}({', '.join(shown)})")
    return ast.parse(text).body[0]


def _replaced(node: ast.expr, given: dict[str, ast.expr]) -> ast.expr:
    class Replace(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            return given.get(name.id, name)

    replaced: ast.expr = Replace().visit(ast.parse(ast.unparse(node), mode="eval").body)
    return replaced


def _program(what: str) -> RowError:
    return RowError("tests_are_a_program", what[:120])
