"""BigCodeBench: tests that are methods of a `unittest.TestCase`, as data.

A method counts as data when it calls the function with literals and asserts equality, truth or an exception of what comes back. Rows with any other
test (mocks, files, plots, properties of objects) are programs themselves and are refused, `tests_are_a_program`: run beside the program they
judge, they could be tampered with.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from code_rl.problems.problem import Problem
from code_rl.problems.prompts import COMPLETE
from code_rl.problems.sources.asserts import (
    AssertFormError,
    AssertReader,
    CallAssert,
    assert_rule,
    call_tests,
    common_view,
    read_statements,
    view_setup,
)
from code_rl.problems.sources.humaneval import prompt_preamble
from code_rl.problems.sources.records import Origin, Row, RowError, field, from_json

EQUAL = ("Equal", "ListEqual", "DictEqual", "TupleEqual", "SetEqual", "SequenceEqual", "MultiLineEqual", "Is")
VALUES = {"assertTrue": "assert {0}", "assertFalse": "assert not {0}", "assertIsNone": "assert {0} is None"}
VALUES |= {f"assert{name}": "assert {0} == {1}" for name in EQUAL}
PLACES = 7
"""What `assertAlmostEqual` rounds to unless it is told."""


def read_bigcodebench(row: Row, origin: Origin) -> Problem:
    """A row of BigCodeBench: `complete_prompt`, `canonical_solution`, `entry_point`, `test`."""
    name, prompt = field(row, "entry_point", str), field(row, "complete_prompt", str)
    try:
        asserts = [found for method in _methods(field(row, "test", str)) for found in _read_method(method, name)]
    except AssertFormError as error:
        raise _program(error.detail) from error
    meta = {"preamble": prompt_preamble(prompt, name)}
    view = common_view(asserts)
    if view is not None:
        meta["setup"] = view_setup(name, view)
    return Problem(
        id=str(row.get("task_id", origin.row_id)),
        statement=COMPLETE,
        tests=call_tests(asserts),
        starter_code=prompt.strip("\n"),
        fn_name=name,
        compare=assert_rule(asserts),
        solutions=(prompt.rstrip("\n") + "\n" + field(row, "canonical_solution", str),),
        source="bigcodebench",
        meta=meta,
    )


def read_sandbox_unittest(row: Row, origin: Origin) -> Problem:
    """Sandbox Fusion's BigCodeBench: the same under other names."""
    labels = from_json(row["labels"], "labels", dict)
    renamed = {**row, "task_id": row.get("id", origin.row_id), "complete_prompt": row["content"], **labels}
    return read_bigcodebench(renamed, origin)


def _methods(source: str) -> Iterator[ast.FunctionDef]:
    for part in read_statements(source):
        for method in part.body if isinstance(part, ast.ClassDef) else ():
            if not isinstance(method, ast.FunctionDef):
                continue
            if method.decorator_list or not method.name.startswith("test") or len(method.args.args) != 1:
                raise _program(method.name)
            yield method


def _read_method(method: ast.FunctionDef, name: str) -> Iterator[CallAssert]:
    """The asserts of one method. Names given a value once stand for it wherever they are used."""
    given: dict[str, ast.expr] = {}
    reader = AssertReader(name)
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
                yield from reader.read_one(_as_assert(kind, [_replaced(arg, given) for arg in args], words))
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
