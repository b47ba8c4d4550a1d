"""Tests from asserts: `assert f(1, 2) == 3` is read as data and never run.

It reads the assert forms of HumanEval, MBPP and LeetCodeDataset, and the tables of EvalPlus's
self-contained tests. A `view` may wrap the function's result (`set(f(x)) == {1}`, `assert f(x)`).
The sandbox applies the view to the returned value, so objects other than plain data (such as a
regular-expression match) can be compared too.

Values are literals. `fold` is `ast.literal_eval` plus a few constant forms that public test suites
use: arithmetic on numbers, `float("inf")`, `set()`, `tuple([...])`, `math.inf`, and the node
builders of LeetCode tests.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from code_rl.data.sources.records import Draft, RowError
from code_rl.grading import CallTest, Compare, Problem
from code_rl.util import syntax

MAX_POWER_BITS = 1 << 16
MAX_REPEAT = 1 << 20
CONSTANTS: Mapping[str, Any] = {"inf": math.inf, "nan": math.nan}
BUILDERS: Mapping[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (bool, int, float, complex, str, list, tuple, set, frozenset, dict, bytes)
}
OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
}


def fold(node: ast.expr, builders: Mapping[str, Callable[..., Any]] = BUILDERS) -> Any:
    """Return the value of `node`, in which `builders` may be called with constant arguments;
    nothing else is called. Raises RowError for anything that is not a constant form, and for huge
    results."""
    try:
        return _fold(node, builders)
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise _not_literal(f"{type(error).__name__}: {error}") from error


def _fold(node: ast.expr, builders: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the value of a literal expression without running it. Raises RowError for anything
    else, and the errors of operators and builders."""

    def all_of(items: Iterable[ast.expr]) -> list[Any]:
        """Return the values of several expressions, in order."""
        return [_fold(item, builders) for item in items]

    match node:
        case ast.Constant(value=value) if value is not Ellipsis:
            return value
        case ast.List(elts=items):
            return all_of(items)
        case ast.Tuple(elts=items):
            return tuple(all_of(items))
        case ast.Set(elts=items):
            return set(all_of(items))
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return dict(zip(all_of(filter(None, keys)), all_of(values), strict=True))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](*all_of([operand]))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return _binary(op, *all_of([left, right]))
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.Attribute(value=ast.Name(id="math"), attr=name) if isinstance(
            getattr(math, name, None), float
        ):
            return getattr(math, name)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in builders:
            return builders[name](*all_of(args))
    raise _not_literal(ast.unparse(node)[:120])


def _binary(op: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of an operator. Raises RowError, before computing it, if it would be
    huge."""
    # Test rows are input: `10**10**10` must be refused, not computed.
    if isinstance(op, ast.Pow) and isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right
        if bits > MAX_POWER_BITS:
            raise _not_literal(f"a constant of {bits} bits")
    for items, times in ((left, right), (right, left)) if isinstance(op, ast.Mult) else ():
        if (
            isinstance(items, str | bytes | list | tuple)
            and isinstance(times, int)
            and len(items) * times > MAX_REPEAT
        ):
            raise _not_literal(f"a sequence of {len(items) * times} items")
    return OPERATORS[type(op)](left, right)


def _not_literal(detail: str) -> RowError:
    """Return, for the caller to raise, the error of a value that is no literal."""
    return RowError("value_is_not_a_literal", detail)


SAME_VALUE_FUNCTIONS = ("is_same_list", "is_same_tree")
DEFAULT_ISCLOSE_REL_TOL = 1e-9
DEFAULT_FLOAT_TOL = 1e-6
ALLCLOSE_REL_TOL = 1e-7

VIEWS = {
    **{name: f"{name}(value)" for name in ("bool", "int", "set", "tuple", "list", "sorted", "len")},
    "found": "value if value is True or value is False else value is not None",
    "is": "value if value is True or value is False else 'another object'",
}
"""A view that a test compares instead of the returned value. It runs after the call, inside the
sandbox, as `Problem.meta["setup"]`, and has no expected value: tampering with it gains a program
nothing over returning another value."""

_VIEW_SETUP = """
def _seen_by_test(function):
    depth = 0
    def call(*args, **kwargs):
        nonlocal depth
        depth += 1
        try:
            value = function(*args, **kwargs)
        finally:
            depth -= 1
        return value if depth else ({view})
    return call
if "{name}" in globals():
    {name} = _seen_by_test({name})
else:
    Solution.{name} = _seen_by_test(Solution.{name})
"""


def view_setup(fn_name: str, view: str) -> str:
    """Return source that, run after the program, makes outermost calls of `fn_name` return the view
    of their value; recursive calls return the value itself. Raises KeyError for an unknown view."""
    return _VIEW_SETUP.format(name=fn_name, view=VIEWS[view])


CallAssert = tuple[CallTest, str | None]
"""One assert as a test, and the name of the entry of `VIEWS` that is applied to the result (None:
the result itself)."""


class AssertReader:
    """Reads asserts about the function called `name` (the program's own name or HumanEval's
    `candidate`).

    `entry_point` is the program's function. An assert that compares it with itself proves nothing
    and is left out.
    """

    def __init__(
        self,
        name: str,
        entry_point: str | None = None,
        builders: Mapping[str, Callable[..., Any]] = BUILDERS,
    ) -> None:
        """`entry_point` is the program's function (None: `name`), and `builders` are the functions
        that may be called in values."""
        self._name = name
        self._own_names = {name, entry_point or name}
        self._builders = builders

    def read(self, statement: ast.stmt) -> CallAssert | None:
        """Return the test in one statement, or None for a statement without effect and for a
        function compared with itself. Raises RowError for unknown forms."""
        match statement:
            case (
                ast.Assert(test=ast.Constant(value=True))
                | ast.Pass()
                | ast.Import()
                | ast.ImportFrom()
            ):
                return None
            case ast.Expr(value=ast.Constant() | ast.Name()):
                return None
            case ast.Assert(test=test):
                return self._test(test)
        raise RowError("statement_is_not_an_assert", ast.unparse(statement)[:120])

    def arguments(self, statement: ast.stmt) -> tuple[Any, ...]:
        """Return the positional arguments of the only call of the entry point in `statement`; the
        assertion itself is ignored. Raises RowError unless there is one such call, with constants
        only."""
        calls = [
            part
            for part in ast.walk(statement)
            if isinstance(part, ast.Call) and self._is_entry(part.func)
        ]
        if len(calls) != 1 or calls[0].keywords:
            raise RowError("unknown_assert_form", ast.unparse(statement)[:120])
        return tuple(self._constant(arg) for arg in calls[0].args)

    def _is_entry(self, node: ast.expr) -> bool:
        """Return True if a node is a name of the function under test."""
        return isinstance(node, ast.Name) and node.id in self._own_names

    def _test(self, test: ast.expr) -> CallAssert | None:
        """Return one assert's expression as a call test; None if both sides call the entry point.
        Raises RowError for unknown forms."""
        match test:
            case ast.Compare(
                left=left,
                ops=[ast.Is()],
                comparators=[ast.Constant(value=True | False as value)],
            ):
                return self._call(left, value, view="is")
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
                if self._calls_itself(left) and self._calls_itself(right):
                    return None
                match left:
                    case ast.Call(func=ast.Name(id=view), args=[call]) if view in VIEWS:
                        return self._call(call, self._constant(right), view=view)
                return self._call(left, self._constant(right))
            case ast.Compare(
                left=ast.Call(
                    func=ast.Name(id="abs"),
                    args=[ast.BinOp(left=left, op=ast.Sub(), right=right)],
                    keywords=[],
                ),
                ops=[ast.Lt() | ast.LtE()],
                comparators=[bound],
            ):
                return self._call(left, self._constant(right), abs_tol=float(self._constant(bound)))
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="math"), attr="isclose"),
                args=[left, right],
                keywords=words,
            ):
                tolerances: dict[str, Any] = {
                    str(word.arg): float(self._constant(word.value)) for word in words
                }
                if not tolerances.keys() <= {"rel_tol", "abs_tol"}:
                    raise RowError("unknown_assert_form", f"math.isclose with {sorted(tolerances)}")
                tolerances.setdefault("rel_tol", DEFAULT_ISCLOSE_REL_TOL)
                return self._call(left, self._constant(right), **tolerances)
            case ast.Call(func=ast.Name(id=same), args=[left, right], keywords=[]) if (
                same in SAME_VALUE_FUNCTIONS
            ):
                return self._call(left, self._constant(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._call(operand, False, view="bool")
            case ast.Call():
                return self._call(test, True, view="bool")
        raise RowError("unknown_assert_form", ast.unparse(test)[:120])

    def _call(
        self,
        call: ast.expr,
        expected: Any,
        *,
        view: str | None = None,
        abs_tol: float | None = None,
        rel_tol: float | None = None,
    ) -> CallAssert:
        """Return the call's test with `expected` and its tolerances (None: none), and the view
        under which values are compared. Raises RowError unless `call` calls the entry point with
        constants."""
        if not isinstance(call, ast.Call) or not self._is_entry(call.func):
            raise RowError("not_a_call_of_the_entry_point", ast.unparse(call)[:120])
        if any(word.arg is None for word in call.keywords):
            raise RowError("unknown_assert_form", "a call with ** unpacking")
        args = tuple(map(self._constant, call.args))
        kwargs = {str(word.arg): self._constant(word.value) for word in call.keywords}
        return CallTest(args, expected, kwargs, abs_tol=abs_tol, rel_tol=rel_tol), view

    def _constant(self, node: ast.expr) -> Any:
        """Return the value of an expression. Raises RowError if it is not constant."""
        return fold(node, self._builders)

    def _calls_itself(self, node: ast.expr) -> bool:
        """Return True if an expression mentions the function under test."""
        return any(isinstance(part, ast.expr) and self._is_entry(part) for part in ast.walk(node))


def read_statements(source: str, name: str = "test") -> list[ast.stmt]:
    """Return the statements of a source, which is not run. Raises RowError, with `name` for the
    source, if it is not Python."""
    try:
        return syntax.parse(source).body
    except SyntaxError as error:
        raise RowError("not_python", f"{name}: {error}") from error


def check_body(source: str) -> list[ast.stmt]:
    """Return the body of the one `check(candidate)` in a test of HumanEval's form. Raises RowError
    unless there is one."""
    functions = [
        part
        for part in read_statements(source)
        if isinstance(part, ast.FunctionDef) and part.name == "check"
    ]
    if len(functions) != 1:
        raise RowError("no_check_function", f"{len(functions)} functions named check")
    return functions[0].body


def entry_point(candidates: set[str]) -> str:
    """Return the only candidate for the tested function. Raises RowError for none or several."""
    if len(candidates) != 1:
        raise RowError("entry_point_unclear", f"candidates {sorted(candidates)}")
    (name,) = candidates
    return name


def called_by_all(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the names that every assert calls, builtins included; methods do not count. None
    without asserts."""
    called = [
        {
            part.func.id
            for part in ast.walk(statement)
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
        }
        for statement in statements
        if isinstance(statement, ast.Assert)
    ]
    return set.intersection(*called) if called else set()


def read_asserts(reader: AssertReader, statements: Iterable[ast.stmt]) -> list[CallAssert]:
    """Return every assert with content among `statements`, in order. Raises RowError for the
    first one that cannot be read."""
    return [found for found in map(reader.read, statements) if found is not None]


def read_tables(
    statements: list[ast.stmt],
) -> tuple[tuple[tuple[Any, ...], ...], list[Any] | None, float]:
    """Return `inputs`, results (None if a reference function computes them) and the tolerance of a
    test that is two tables and a loop.

    The loop must be `assertion(f(*inp), …, atol)`; any other (a broken or special oracle) raises
    RowError.
    """
    tables: dict[str, Any] = {}
    atol: float | None = None
    for part in statements:
        match part:
            case ast.Assign(targets=[ast.Name(id="inputs" | "results" as name)], value=value):
                tables[name] = fold(value)
            case ast.For(
                body=[
                    ast.Expr(value=ast.Call(func=ast.Name(id="assertion"), args=[_, _, tolerance]))
                ]
            ):
                atol = float(fold(tolerance))
            case ast.For():
                raise RowError("unknown_oracle", ast.unparse(part.body[0])[:120])
    if atol is None or "inputs" not in tables:
        raise RowError("unknown_test_shape", f"tables {sorted(tables)}")
    return tuple(tuple(call) for call in tables["inputs"]), tables.get("results"), atol


def asserted(
    problem: Problem, asserts: Sequence[CallAssert], compare: Compare | None = None, public: int = 0
) -> Problem:
    """Return `problem` with one test per assert, the first `public` of them public, the view that
    all share, and the rule: `compare`, or if it is None, Python's `==`. Each test has the tolerance
    of its assert.

    Raises RowError if there is no assert, or if their views differ.
    """
    if not asserts:
        raise RowError("no_tests")
    tests = tuple(replace(test, public=index < public) for index, (test, _) in enumerate(asserts))
    meta = with_view(problem.meta, str(problem.fn_name), common_view(asserts))
    return replace(problem, tests=tests, compare=compare or Compare("python"), meta=meta)


def with_view(meta: Mapping[str, Any], fn_name: str, view: str | None) -> Mapping[str, Any]:
    """Return a problem's `meta` with the source that applies the view added to its `setup` (None:
    unchanged)."""
    if view is None:
        return meta
    return {**meta, "setup": str(meta.get("setup", "")) + view_setup(fn_name, view)}


def common_view(asserts: Iterable[CallAssert]) -> str | None:
    """Return the view that all asserts share (None: the result itself). Raises RowError if they
    differ, since a problem has one entry point."""
    views = {view for _, view in asserts}
    if len(views) > 1:
        shown = ", ".join(sorted(view or "==" for view in views))
        raise RowError("mixed_views", f"the asserts compare a result in several ways: {shown}")
    return views.pop() if views else None


def expected_rule(expected: Iterable[Any], abs_tol: float) -> Compare:
    """Return EvalPlus's rule: a stated tolerance (`abs_tol`, 0: none), else 1e-6 if an expected
    value is a float or a flat sequence of floats, else `==`."""

    def of_floats(value: Any) -> bool:
        """Return True for a float, or a sequence of floats that is not empty."""
        items = value if isinstance(value, list | tuple) else [value]
        return bool(items) and all(isinstance(item, float) for item in items)

    tolerance = abs_tol or (DEFAULT_FLOAT_TOL if any(map(of_floats, expected)) else 0.0)
    return Compare(
        "python", tolerance, ALLCLOSE_REL_TOL if tolerance else 0.0, exact_integers=tolerance > 0
    )


def tabled(
    problem: Problem,
    inputs: Sequence[tuple[Any, ...]],
    results: list[Any] | None,
    atol: float,
    public: int = 0,
) -> Problem | Draft:
    """Return `problem` with the tests of a table, the first `public` of them public, or, if
    `results` is None, a Draft whose reference computes them. `atol` is the set's tolerance. Raises
    ValueError if the lengths differ."""
    if results is None:
        return Draft(problem, tuple(inputs), atol, public)
    pairs = enumerate(zip(inputs, results, strict=True))
    tests = tuple(CallTest(args, value, public=index < public) for index, (args, value) in pairs)
    return replace(problem, tests=tests, compare=expected_rule(results, atol))


def holds_float(value: Any) -> bool:
    """Return True for a float, and for a sequence with a float at any depth."""
    if isinstance(value, list | tuple):
        return any(map(holds_float, value))
    return isinstance(value, float)
