"""`assert f(1, 2) == 3` as data: which call, what is expected, how it is compared; and tests from them.

Understands the assert forms of HumanEval, MBPP and LeetCodeDataset, and the tables of EvalPlus's and EvoEval's self-contained tests. The called
function's result may be wrapped in a `view` (`set(f(x)) == {1}`, `assert f(x)`): the view is applied inside the sandbox to the returned value,
so that objects which are no plain data (a regular-expression match, say) can still be compared by what the test asks of them.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from code_rl.problems.problem import CallTest, Compare, Problem
from code_rl.problems.sources.literals import Folder, NotLiteralError
from code_rl.problems.sources.records import Draft, RowError

SAME_VALUE_FUNCTIONS = ("is_same_list", "is_same_tree")
DEFAULT_ISCLOSE_REL_TOL = 1e-9
DEFAULT_FLOAT_TOL = 1e-6
ALLCLOSE_REL_TOL = 1e-7

VIEWS = {
    "bool": "bool(value)",
    "int": "int(value)",
    "found": "value if value is True or value is False else value is not None",
    "set": "set(value)",
    "tuple": "tuple(value)",
    "list": "list(value)",
    "sorted": "sorted(value)",
    "len": "len(value)",
}
"""What a test looks at instead of the returned value. It runs after the call, inside the sandbox, as `Problem.meta["setup"]`, and carries no expected
value: a program that tampers with it gains nothing over returning another value."""

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
    """Source that makes outermost calls of `fn_name` return the view of their value; recursive calls see the value itself."""
    return _VIEW_SETUP.format(name=fn_name, view=VIEWS[view])


class AssertFormError(RowError):
    """The assert is not of a form that can be read as one call with a constant expected value; `reason` is a code."""


@dataclass(frozen=True, slots=True)
class CallAssert:
    """One assert. `view` names the entry of `VIEWS` applied to the result (None: the result itself), `raises` the exception that is due."""

    args: tuple[Any, ...]
    expected: Any
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    view: str | None = None
    abs_tol: float = 0.0
    rel_tol: float = 0.0
    raises: str | None = None


class AssertReader:
    """Reads asserts about the function called `name` (the program's own name or HumanEval's `candidate`).

    `entry_point` is the program's function: an assert that compares it with itself says nothing and is left out.
    """

    def __init__(self, name: str, entry_point: str | None = None, folder: Folder | None = None) -> None:
        self._name = name
        self._own_names = {name, entry_point or name}
        self._folder = folder or Folder()

    def read(self, statement: ast.stmt) -> CallAssert | None:
        """One statement of a test. None for those without effect. Raises AssertFormError for unknown forms."""
        match statement:
            case ast.Assert(test=ast.Constant(value=True)) | ast.Pass() | ast.Import() | ast.ImportFrom():
                return None
            case ast.Expr(value=ast.Constant() | ast.Name()):
                return None
            case ast.Assert(test=test):
                return self._test(test)
        raise AssertFormError("statement_is_not_an_assert", ast.unparse(statement)[:120])

    def read_one(self, statement: ast.stmt) -> Iterator[CallAssert]:
        """What `read` makes of a statement, if anything."""
        found = self.read(statement)
        return iter(() if found is None else (found,))

    def raising(self, call: ast.expr, kind: str) -> CallAssert:
        """A call that must raise an exception of class `kind`."""
        return dataclasses.replace(self._call(call, None), raises=kind)

    def arguments(self, statement: ast.stmt) -> tuple[Any, ...]:
        """The positional arguments of the one call of the entry point in `statement`, whatever is asserted of it."""
        calls = [part for part in ast.walk(statement) if isinstance(part, ast.Call) and self._is_entry(part.func)]
        if len(calls) != 1 or calls[0].keywords:
            raise AssertFormError("unknown_assert_form", ast.unparse(statement)[:120])
        return tuple(self._constant(arg) for arg in calls[0].args)

    def _is_entry(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in self._own_names

    def _test(self, test: ast.expr) -> CallAssert | None:
        match test:
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
                return self._equality(left, right)
            case ast.Compare(
                left=ast.Call(
                    func=ast.Name(id="abs"), args=[ast.BinOp(left=left, op=ast.Sub(), right=right)], keywords=[]
                ),
                ops=[ast.Lt() | ast.LtE()],
                comparators=[bound],
            ):
                return self._call(left, self._constant(right), abs_tol=float(self._constant(bound)))
            case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr="isclose"), args=[left, right]):
                return self._isclose(left, right, test.keywords)
            case ast.Call(func=ast.Name(id=same), args=[left, right], keywords=[]) if same in SAME_VALUE_FUNCTIONS:
                return self._call(left, self._constant(right))
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return self._call(operand, False, view="bool")
            case ast.Call():
                return self._call(test, True, view="bool")
        raise AssertFormError("unknown_assert_form", ast.unparse(test)[:120])

    def _equality(self, left: ast.expr, right: ast.expr) -> CallAssert | None:
        if self._calls_itself(left) and self._calls_itself(right):
            return None
        if (
            isinstance(left, ast.Call)
            and isinstance(left.func, ast.Name)
            and left.func.id in VIEWS
            and len(left.args) == 1
        ):
            return self._call(left.args[0], self._constant(right), view=left.func.id)
        return self._call(left, self._constant(right))

    def _isclose(self, left: ast.expr, right: ast.expr, keywords: list[ast.keyword]) -> CallAssert:
        tolerances = {word.arg: float(self._constant(word.value)) for word in keywords}
        if not tolerances.keys() <= {"rel_tol", "abs_tol"}:
            raise AssertFormError("unknown_assert_form", f"math.isclose with {sorted(map(str, tolerances))}")
        rel_tol = tolerances.get("rel_tol", DEFAULT_ISCLOSE_REL_TOL)
        return self._call(left, self._constant(right), abs_tol=tolerances.get("abs_tol", 0.0), rel_tol=rel_tol)

    def _call(
        self, call: ast.expr, expected: Any, *, view: str | None = None, abs_tol: float = 0.0, rel_tol: float = 0.0
    ) -> CallAssert:
        if not isinstance(call, ast.Call) or not self._is_entry(call.func):
            raise AssertFormError("not_a_call_of_the_entry_point", ast.unparse(call)[:120])
        args: list[Any] = []
        for arg in call.args:
            if isinstance(arg, ast.Starred):
                args.extend(self._constant(arg.value))
            else:
                args.append(self._constant(arg))
        kwargs: dict[str, Any] = {}
        for word in call.keywords:
            if word.arg is None:
                raise AssertFormError("unknown_assert_form", "a call with ** unpacking")
            kwargs[word.arg] = self._constant(word.value)
        return CallAssert(tuple(args), expected, kwargs, view, abs_tol, rel_tol)

    def _constant(self, node: ast.expr) -> Any:
        try:
            return self._folder.fold(node)
        except NotLiteralError as error:
            raise AssertFormError("value_is_not_a_literal", str(error)) from error

    def _calls_itself(self, node: ast.expr) -> bool:
        return any(isinstance(part, ast.expr) and self._is_entry(part) for part in ast.walk(node))


def read_statements(source: str) -> list[ast.stmt]:
    """The statements of a test's source. Raises AssertFormError when it is not Python."""
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise AssertFormError("test_is_not_python", str(error)) from error


def check_body(source: str) -> list[ast.stmt]:
    """The body of the one `check(candidate)` in a HumanEval-shaped test."""
    functions = [part for part in read_statements(source) if isinstance(part, ast.FunctionDef) and part.name == "check"]
    if len(functions) != 1:
        raise AssertFormError("no_check_function", f"{len(functions)} functions named check")
    return functions[0].body


def read_asserts(reader: AssertReader, statements: Iterable[ast.stmt]) -> Iterator[CallAssert]:
    """Every assert with content among `statements`, in order. Raises AssertFormError at the first that cannot be read."""
    return (found for found in map(reader.read, statements) if found is not None)


def read_tables(statements: list[ast.stmt]) -> tuple[tuple[tuple[Any, ...], ...], list[Any] | None, float]:
    """`inputs`, results (None when a reference function computes them) and the tolerance of a test that is two tables and a loop.

    The loop must be `assertion(f(*inp), …, atol)` (EvalPlus) or compare with `is_equal` (EvoEval); any other (a broken or special oracle) raises
    AssertFormError.
    """
    tables: dict[str, Any] = {}
    atol: float | None = None
    for part in statements:
        match part:
            case ast.Assign(
                targets=[ast.Name(id="inputs")],
                value=ast.ListComp(elt=ast.Call(func=ast.Name(id="eval")), generators=[each]),
            ):
                tables["inputs"] = read_call_texts(fold(each.iter))
            case ast.Assign(targets=[ast.Name(id="inputs" | "results" | "outputs" as name)], value=value):
                tables["inputs" if name == "inputs" else "results"] = fold(value)
            case ast.For(body=[ast.Expr(value=ast.Call(func=ast.Name(id="assertion"), args=[_, _, tolerance]))]):
                atol = float(fold(tolerance))
            case ast.For(body=[ast.Assign(value=ast.Call(func=ast.Name(id="is_equal"))), ast.Assert()]):
                atol = DEFAULT_FLOAT_TOL if any(map(holds_float, tables.get("results", ()))) else 0.0
            case ast.For():
                raise AssertFormError("unknown_oracle", ast.unparse(part.body[0])[:120])
    if atol is None or "inputs" not in tables:
        raise AssertFormError("unknown_test_shape", f"tables {sorted(tables)}")
    return tuple(tuple(call) for call in tables["inputs"]), tables.get("results"), atol


def read_call_texts(texts: Iterable[str]) -> list[tuple[Any, ...]]:
    """Arguments from what stands between the brackets of calls."""
    calls = [read_statements(f"({text},)" if text.strip() else "()") for text in texts]
    if not all(len(body) == 1 and isinstance(body[0], ast.Expr) for body in calls):
        raise AssertFormError("value_is_not_a_literal", "arguments that are no expression")
    return [tuple(fold(body[0].value)) for body in calls if isinstance(body[0], ast.Expr)]


def call_tests(asserts: Sequence[CallAssert], public: int = 0) -> tuple[CallTest, ...]:
    """One CallTest an assert; the first `public` of them public. Raises RowError when there is none."""
    if not asserts:
        raise RowError("no_tests")
    return tuple(
        CallTest(found.args, found.expected, found.kwargs, public=index < public, raises=found.raises)
        for index, found in enumerate(asserts)
    )


def common_view(asserts: Iterable[CallAssert]) -> str | None:
    """The view that all asserts share. Raises RowError when they differ: one problem has one entry point."""
    views = {found.view for found in asserts if found.raises is None}
    if len(views) > 1:
        raise RowError("mixed_views", ", ".join(sorted(map(str, views))))
    return views.pop() if views else None


def assert_rule(asserts: Sequence[CallAssert]) -> Compare:
    """Python's `==`, with the widest tolerance named when any assert names one."""
    abs_tol = max((found.abs_tol for found in asserts), default=0.0)
    rel_tol = max((found.rel_tol for found in asserts), default=0.0)
    return Compare("python", abs_tol, rel_tol)


def expected_rule(expected: Iterable[Any], abs_tol: float) -> Compare:
    """EvalPlus's rule: a named tolerance, else 1e-6 where an expected value is a float or a flat sequence of floats, else `==`."""
    tolerance = abs_tol or (DEFAULT_FLOAT_TOL if any(map(_is_floats, expected)) else 0.0)
    return Compare("python", tolerance, ALLCLOSE_REL_TOL if tolerance else 0.0)


def tabled(
    problem: Problem, inputs: Sequence[tuple[Any, ...]], results: list[Any] | None, atol: float, public: int = 0
) -> Problem | Draft:
    """`problem` with the tests of a table, the first `public` of them public; a Draft where a reference has yet to compute the results."""
    if results is None:
        return Draft(problem, tuple(inputs), problem.solutions[0], atol, public)
    pairs = enumerate(zip(inputs, results, strict=True))
    tests = tuple(CallTest(args, value, public=index < public) for index, (args, value) in pairs)
    return dataclasses.replace(problem, tests=tests, compare=expected_rule(results, atol))


def holds_float(value: Any) -> bool:
    """True for a float, and for a sequence with one at any depth."""
    return any(map(holds_float, value)) if isinstance(value, list | tuple) else isinstance(value, float)


def _is_floats(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, float) for item in value)
    return isinstance(value, float)


def fold(node: ast.expr) -> Any:
    """The value of a literal. Raises AssertFormError for any other expression."""
    try:
        return Folder().fold(node)
    except NotLiteralError as error:
        raise AssertFormError("value_is_not_a_literal", str(error)) from error
