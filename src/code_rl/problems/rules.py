"""The names of the compare rules and what makes a `Compare` usable; the rules themselves live in `reward.compare`."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import functools
import math
import warnings
from dataclasses import dataclass

from code_rl.errors import DataError
from code_rl.problems.problem import Compare, TestCase

RULES = ("lcb", "lcb-official", "exact", "python", "tokens", "float", "contest", "checker")
WITH_TOLERANCE = ("float", "python", "contest")
CHECK = "check"
"""The function that a checker is."""
CONTEST_ONLY = ("ignore_case", "integers_as_floats")
_USUAL = Compare()


def check_compare(compare: Compare, where: str) -> None:
    """Raise DataError, beginning with `where`, when `compare` is not a usable rule."""
    where = f"{where}: compare"
    rule = compare.rule
    if rule not in RULES:
        raise DataError(f"{where}: rule={rule!r} is unknown; use one of {', '.join(RULES)}")
    check_tolerance(compare.abs_tol, compare.rel_tol, where)
    if rule not in WITH_TOLERANCE and (compare.abs_tol or compare.rel_tol):
        raise DataError(f"{where}: abs_tol and rel_tol belong to the rules {_listed(WITH_TOLERANCE)}, not to {rule!r}")
    if rule == "float" and not (compare.abs_tol or compare.rel_tol):
        raise DataError(f"{where}: the rule 'float' needs abs_tol or rel_tol above 0; use 'lcb' for equality")
    for name in CONTEST_ONLY:
        if getattr(compare, name) and rule != "contest":
            raise DataError(f"{where}: {name} belongs to the rule 'contest', not to {rule!r}")
    if (rule == "checker") != (compare.checker is not None):
        raise DataError(f"{where}: the rule 'checker' and the checker's source go together; rule={rule!r}")
    for name in ("checker_time_limit_s", "checker_memory_limit_mb"):
        if getattr(compare, name) != getattr(_USUAL, name) and rule != "checker":
            raise DataError(f"{where}: {name} belongs to the rule 'checker', not to {rule!r}")
    if compare.checker is not None:
        check_source(compare.checker, "checker", where, needs=CHECK, script=True)


def check_tolerance(abs_tol: float | None, rel_tol: float | None, where: str) -> None:
    """Raise DataError for a tolerance that is not a finite number from 0 on; None is none."""
    for name, value in (("abs_tol", abs_tol), ("rel_tol", rel_tol)):
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise DataError(f"{where}: {name}={value!r} must be a finite number, 0 or more")


def check_source(source: str, name: str, where: str, needs: str, *, script: bool = False) -> None:
    """Raise DataError when a problem author's program does not compile, or does not define the function that it `needs`.

    A `script` does without the function: something runs at its module level, and no function that is never called is named almost so.
    """
    found = _parsed(source)
    if isinstance(found, str):
        raise DataError(f"{where}: the {name}'s source does not compile: {found}")
    meant = difflib.get_close_matches(needs, found.idle, 1)
    if needs not in found.functions and (meant or not (script and found.runs)):
        other = f"; it defines {meant[0]!r}" if meant else ""
        raise DataError(f"{where}: the {name}'s source must define a function {needs!r} at module level{other}")


def defines(source: str, name: str) -> bool:
    """True when `source` defines the function `name` at module level."""
    found = _parsed(source)
    return not isinstance(found, str) and name in found.functions


@dataclass(frozen=True, slots=True)
class _Parsed:
    """The functions at a source's module level, those of them that nothing there names, and whether anything else is called at that level."""

    functions: frozenset[str]
    idle: frozenset[str]
    runs: bool


@functools.lru_cache(maxsize=256)
def _parsed(source: str) -> _Parsed | str:
    """What a source defines and runs, or why it does not compile."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
            compile(tree, "<source>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{error.msg} (its line {error.lineno})"
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    functions = frozenset(part.name for part in tree.body if isinstance(part, ast.FunctionDef))
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    rest = [part for part in tree.body if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)]
    return _Parsed(functions, functions - named, any(isinstance(n, ast.Call) for part in rest for n in ast.walk(part)))


def rule_for(compare: Compare, test: TestCase) -> Compare:
    """The rule for one test: a test's own tolerances come before the problem's, and make `float` of `lcb`."""
    if test.abs_tol is None and test.rel_tol is None:
        return compare
    return dataclasses.replace(
        compare,
        rule="float" if compare.rule == "lcb" else compare.rule,
        abs_tol=compare.abs_tol if test.abs_tol is None else test.abs_tol,
        rel_tol=compare.rel_tol if test.rel_tol is None else test.rel_tol,
    )


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
