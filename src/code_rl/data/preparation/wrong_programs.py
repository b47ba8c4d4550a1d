"""Trivial programs that pass, perturbed runs of a reference, and mutants: (mostly) wrong versions
of a right program, with one small change each."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from typing import Any

from code_rl.grading import Compare, Problem, StdinTest, TestCase
from code_rl.grading.comparison import compare_printed, compare_returned
from code_rl.grading.values import dumps
from code_rl.util import syntax

_UNSTEADY = re.compile(
    r"\b(?:random|randint|randrange|shuffle|choice|secrets|uuid|urandom|time|datetime|perf_counter|"
    r"monotonic|threading|multiprocessing|asyncio|concurrent|getpid)\b|\b(?:id|hash)\("
)


def perturbed(problem: Problem, number: int) -> Problem:
    """Return the problem for its `number`th run, with that number as the seed of Python's `random`;
    problems of other languages are returned unchanged. If a program answers differently then, the
    problem has no unique answer."""
    if problem.language != "python":
        return problem
    before = str(problem.meta.get("preamble") or "")
    seeded = (
        f"__import__('random').seed({number})\nexec(compile({before!r}, "
        "'<preamble>', 'exec', "
        "dont_inherit=True))\n"
    )
    return replace(problem, meta={**problem.meta, "preamble": seeded})


def is_unsteady(code: str) -> bool:
    """Return True if a program's text mentions randomness, the clock or threads: it may give
    another answer only occasionally."""
    return _UNSTEADY.search(code) is not None


def trivial_pass(problem: Problem) -> tuple[str, str] | None:
    """Return (reason, detail) of a trivial program that passes every test of `problem`, or None. No
    program runs. Problems with a checker are not tried. There is at least one test."""
    if problem.compare.rule == "checker":
        return None
    first = problem.tests[0].expected
    constant = (dumps(first) if problem.calls else str(first)).encode("utf-8", "surrogatepass")
    nothing = dumps(None).encode() if problem.calls else b""
    same = f"one answer passes all {len(problem.tests)} tests"
    for reason, detail, answers in (
        ("passes_empty", "a program that does nothing passes", repeat(nothing)),
        ("passes_constant", same, repeat(constant)),
        ("passes_echo", "a program that gives back its input passes", map(_echo, problem.tests)),
    ):
        if all(map(accepts, problem.tests, answers, repeat(problem.compare))):
            return reason, detail
    known = {_input_key(test) for test in problem.tests if test.public}
    if known and all(test.public or _input_key(test) in known for test in problem.tests):
        return (
            "passes_samples",
            f"all {len(problem.tests)} tests are public: a program that knows the samples passes",
        )
    return None


def accepts(test: TestCase, answer: bytes, compare: Compare) -> bool:
    """Return True if the judge would accept `answer` (printed bytes, or an encoded value) for
    `test`."""
    if isinstance(test, StdinTest):
        return compare_printed(answer, test, compare) is None
    return compare_returned(answer, test, compare) is None


def _echo(test: TestCase) -> bytes:
    """Return a test's input as an answer that the judge can compare: its text in UTF-8, or its
    first argument, encoded (None without arguments)."""
    if isinstance(test, StdinTest):
        return test.input.encode("utf-8", "surrogatepass")
    given = [*test.args, *test.kwargs.values()]
    return dumps(given[0] if given else None).encode()


def _input_key(test: TestCase) -> str:
    """Return text that is equal for tests with equal inputs, and only for these."""
    if isinstance(test, StdinTest):
        return test.input
    return dumps([list(test.args), dict(test.kwargs)])


Change = tuple[Any, Any, object]
"""A list of the syntax tree, or the `vars` of a node; an index or a name in it; the new value."""

OPERATOR_SWAPS: dict[type[ast.AST], tuple[type[Any], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div, ast.Mult),
    ast.Mod: (ast.FloorDiv, ast.Add),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.BitXor: (ast.BitOr,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}
NAME_SWAPS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "sum": "max",
    "sorted": "list",
    "abs": "int",
    "set": "list",
}
METHOD_SWAPS = {
    "append": "extend",
    "upper": "lower",
    "lower": "upper",
    "strip": "lstrip",
    "startswith": "endswith",
    "isdigit": "isalpha",
}


def mutants(source: str, count: int, seed: str) -> list[str]:
    """Return up to `count` different mutants of `source`, with one change each, in an order that
    `seed` decides; none if it does not parse. They may be equivalent to it."""
    try:
        tree = syntax.parse(source)
        original = ast.unparse(tree)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = {original: None}
    changes = list(_changes(tree))
    for parent, field, new in random.Random(seed).sample(changes, len(changes)):
        if len(found) > count:
            break
        old, parent[field] = parent[field], new
        found[ast.unparse(tree)] = None
        parent[field] = old
    return list(found)[1:]


def _changes(tree: ast.Module) -> Iterator[Change]:
    """Yield every single change of a tree, in a fixed order. Nothing is changed yet."""
    for parent in ast.walk(tree):
        yield from _own_changes(parent)
        for name, value in ast.iter_fields(parent):
            if isinstance(value, ast.expr):
                yield from ((vars(parent), name, new) for new in _replacements(value, parent))
            elif isinstance(value, list):
                for index, item in enumerate(value):
                    if isinstance(item, ast.expr):
                        yield from ((value, index, new) for new in _replacements(item, parent))
                    elif isinstance(
                        item, ast.Assign | ast.AugAssign | ast.Break | ast.If | ast.Continue
                    ) or (
                        isinstance(item, ast.Expr)
                        and not isinstance(item.value, ast.Constant)  # docstrings are not mutated
                    ):
                        yield value, index, ast.Pass()


def _own_changes(node: ast.AST) -> Iterator[Change]:
    """Yield changes of a node itself: operators, names, bounds of slices, the value of a return.
    The node is unchanged."""
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            yield from ((node.ops, index, swap()) for swap in OPERATOR_SWAPS[type(op)])
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp):
        for swap in OPERATOR_SWAPS.get(type(node.op), ()):
            yield vars(node), "op", swap()
    elif isinstance(node, ast.Slice):
        for name in ("lower", "upper"):
            bound = getattr(node, name)
            one = ast.Constant(1)
            yield vars(node), name, ast.BinOp(bound, ast.Add(), one) if bound else one
    elif isinstance(node, ast.Name) and node.id in NAME_SWAPS and isinstance(node.ctx, ast.Load):
        yield vars(node), "id", NAME_SWAPS[node.id]
    elif isinstance(node, ast.Attribute) and node.attr in METHOD_SWAPS:
        yield vars(node), "attr", METHOD_SWAPS[node.attr]
    elif isinstance(node, ast.Return) and node.value is not None:
        news: list[ast.expr] = [ast.Constant(None), ast.List([node.value], ast.Load())]
        if isinstance(node.value, ast.List | ast.ListComp | ast.Tuple):
            other = ast.Name("list" if isinstance(node.value, ast.Tuple) else "tuple", ast.Load())
            news.append(ast.Call(other, [node.value], []))
        if isinstance(node.value, ast.Compare | ast.BoolOp):
            news.append(ast.UnaryOp(ast.Not(), node.value))
        yield from ((vars(node), "value", new) for new in news)


def _replacements(node: ast.expr, parent: ast.AST) -> Iterator[ast.expr]:
    """Yield expressions that could stand in place of `node`: other constants, no sign or `not`, a
    negated condition."""
    if isinstance(node, ast.Constant) and not isinstance(
        parent, ast.Expr | ast.JoinedStr | ast.FormattedValue
    ):
        match node.value:
            case bool(value):
                yield ast.Constant(not value)
            case int(value):
                yield from (ast.Constant(value + 1), ast.Constant(value - 1))
            case float(value):
                yield from (ast.Constant(value + 1.0), ast.Constant(-value))
            case str(value):
                yield from (ast.Constant(value + "x"), ast.Constant(value[:-1]))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    if isinstance(parent, ast.If | ast.While | ast.IfExp) and node is parent.test:
        yield ast.UnaryOp(ast.Not(), node)
