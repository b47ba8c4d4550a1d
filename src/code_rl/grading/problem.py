"""Problems and their tests as frozen records, and the checks of a `Compare` (`comparison` has the
rules).

`ProblemView`, a separate type, has the fields that a policy may see.
"""

from __future__ import annotations

import ast
import functools
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from code_rl.grading.languages import PYTHON, language
from code_rl.util import syntax
from code_rl.util.data_files import short
from code_rl.util.errors import ConfigError, DataError

DEFAULT_TIME_LIMIT_S = 6.0
DEFAULT_MEMORY_LIMIT_MB = 1024


@dataclass(frozen=True, slots=True)
class StdinTest:
    """The program reads `input` on stdin and must print `expected`. A tolerance that is not None
    overrides the problem's rule."""

    input: str
    expected: str
    public: bool = False
    abs_tol: float | None = None
    rel_tol: float | None = None


@dataclass(frozen=True, slots=True)
class CallTest:
    """A function is called with `args` and `kwargs`. It must return `expected`, or raise `raises`:
    the name of an exception's class or of a base class.

    `fn_name` is the function (None: the problem's).
    """

    args: tuple[Any, ...]
    expected: Any = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    public: bool = False
    raises: str | None = None
    fn_name: str | None = None
    abs_tol: float | None = None
    rel_tol: float | None = None


@dataclass(frozen=True, slots=True)
class SequenceTest:
    """Make an object of class `class_name` and call its methods. The calls are (name, arguments) in
    order; the first is the class itself.

    `expected` has one value per call; the first, for the construction, is None.
    """

    class_name: str
    calls: tuple[tuple[str, tuple[Any, ...]], ...]
    expected: tuple[Any, ...]
    public: bool = False
    abs_tol: float | None = None
    rel_tol: float | None = None

    @property
    def args(self) -> tuple[Any, ...]:
        """The calls, for code that reads a test's arguments whatever its form."""
        return self.calls

    @property
    def kwargs(self) -> Mapping[str, Any]:
        """Empty: the calls of a sequence are by position."""
        return {}


TestCase = StdinTest | CallTest | SequenceTest


@dataclass(frozen=True, slots=True)
class Compare:
    """The rule by which outputs are compared; docs/judging.md has the table.

    `rule` is one of `RULES`. `abs_tol`/`rel_tol` belong to `lcb`, `python` and `contest`;
    `exact_integers` excludes expected integers from them. `ignore_case` belongs to `contest`;
    `checker` is the source of a trusted program that decides among many valid answers, under limits
    of its own: Python that defines `check`, or another language with testlib's convention.
    """

    rule: str = "lcb"
    abs_tol: float = 0.0
    rel_tol: float = 0.0
    ignore_case: bool = False
    exact_integers: bool = False
    checker: str | None = None
    checker_language: str = PYTHON
    checker_time_limit_s: float = 20.0
    checker_memory_limit_mb: int = 1024


@dataclass(frozen=True, slots=True)
class ProblemView:
    """The part of a problem that a prompt or a tool may show a policy: public tests only."""

    id: str
    statement: str
    starter_code: str | None
    fn_name: str | None
    public_tests: tuple[TestCase, ...]
    language: str = PYTHON

    @property
    def language_names(self) -> tuple[str, str]:
        """The language's name in prompts, and the tag of its code blocks. Raises ConfigError for an
        unknown language."""
        if self.language == PYTHON:
            return "Python", PYTHON
        found = language(self.language)
        return found.title, found.fences[0]


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Problem:
    """One problem with all its tests, in the order in which they are run.

    Either every test is a StdinTest, or each is a CallTest or SequenceTest. `fn_name` is the
    function (at module level or on `Solution()`) of the tests that name none.
    """

    id: str
    statement: str
    tests: tuple[TestCase, ...]
    starter_code: str | None = None
    fn_name: str | None = None
    time_limit_s: float = DEFAULT_TIME_LIMIT_S
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB
    compare: Compare = Compare()
    solutions: tuple[str, ...] = ()
    source: str = ""
    date: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    language: str = PYTHON

    @property
    def calls(self) -> bool:
        """True if tests call functions or classes of the program, instead of running it as a
        script. It looks at `fn_name` and the first test; `check_parts` makes sure that the others
        agree."""
        return self.fn_name is not None or not all(
            isinstance(test, StdinTest) for test in self.tests[:1]
        )

    def in_language(self, name: str | None) -> Problem:
        """Return the problem for programs of another language (None: as it is), without the source
        text that is in the problem's own: starter code, `meta.preamble` and `meta.setup`. Its
        solutions are those of `meta.solutions_LANGUAGE`, its wrong ones those of
        `meta.wrong_solutions_LANGUAGE`.

        Raises DataError for an unknown language, and for tests or a rule that only Python's
        programs have.
        """
        if name in (None, self.language):
            return self
        own = ("preamble", "setup", "wrong_solutions")
        meta = {key: value for key, value in self.meta.items() if key not in own}
        known = meta.pop(f"solutions_{name}", None)
        if wrong := meta.pop(f"wrong_solutions_{name}", None):
            meta["wrong_solutions"] = wrong
        solutions = tuple(map(str, known)) if isinstance(known, list) else ()
        other = replace(self, language=name, starter_code=None, solutions=solutions, meta=meta)
        _check_language(other, f"problem {self.id!r}")
        return other

    def view(self) -> ProblemView:
        """Return the part of the problem that prompts are built from. No hidden test, solution or
        `meta` is in it."""
        public = tuple(test for test in self.tests if test.public)
        return ProblemView(
            self.id, self.statement, self.starter_code, self.fn_name, public, self.language
        )


RULES = ("lcb", "lcb-official", "python", "contest", "checker")
WITH_TOLERANCE = ("lcb", "python", "contest")
CHECK = "check"
"""The name of the function that a checker defines."""
CALLED = "check(input, output, expected)"
ONLY_OF = {
    "ignore_case": "contest",
    **dict.fromkeys(
        ("checker_language", "checker_time_limit_s", "checker_memory_limit_mb"), "checker"
    ),
}
_USUAL = Compare()


def check_compare(compare: Compare, where: str) -> None:
    """Raise DataError, beginning with `where`, if `compare` is not a usable rule: an unknown name,
    a field of the wrong type or of another rule, or a checker that is missing or does not compile.
    A checker in another language than Python is not compiled."""
    where = f"{where}: compare"
    rule = compare.rule
    if rule not in RULES:
        raise DataError(f"{where}: rule={rule!r} is unknown; use one of {', '.join(RULES)}")
    if None in (compare.abs_tol, compare.rel_tol):
        raise DataError(f"{where}: abs_tol and rel_tol must be numbers; 0 is none")
    check_tolerance(compare.abs_tol, compare.rel_tol, where)
    for name in ("ignore_case", "exact_integers"):
        if not isinstance(getattr(compare, name), bool):
            raise DataError(f"{where}: {name}={getattr(compare, name)!r} must be True or False")
    if rule not in WITH_TOLERANCE and (
        compare.abs_tol or compare.rel_tol or compare.exact_integers
    ):
        known = ", ".join(map(repr, WITH_TOLERANCE))
        raise DataError(
            f"{where}: abs_tol, rel_tol and exact_integers belong to the rules {known}, not to "
            f"{rule!r}"
        )
    for name, owner in ONLY_OF.items():
        if getattr(compare, name) != getattr(_USUAL, name) and rule != owner:
            raise DataError(f"{where}: {name} belongs to the rule {owner!r}, not to {rule!r}")
    if (rule == "checker") != (compare.checker is not None):
        raise DataError(
            f"{where}: the rule 'checker' and the checker's source go together; rule={rule!r}"
        )
    if compare.checker_language != PYTHON:
        _known_language(compare.checker_language, f"{where}: checker_")
    elif compare.checker is not None:
        _check_checker(compare.checker, where)


def check_parts(problem: Problem, where: str) -> None:
    """Raise DataError, beginning with `where`, if the rule, the language or the source of
    `meta.preamble` or `meta.setup` is unusable, there are no tests, or tests and rule do not fit
    together. The program's solutions are not checked."""
    if not problem.tests:
        raise DataError(f"{where}: tests is empty; a problem needs at least one test")
    check_compare(problem.compare, where)
    _check_language(problem, where)
    for name in ("preamble", "setup"):
        source = problem.meta.get(name, "")
        if not isinstance(source, str):
            raise DataError(f"{where}: meta.{name}={short(source)} must be source text")
        if isinstance(why := _parsed(source), str):
            raise DataError(f"{where}: meta.{name}'s source does not compile: {why}")
    calls = problem.calls
    for index, test in enumerate(problem.tests):
        here = f"{where}: tests[{index}]"
        if isinstance(test, StdinTest) is calls:
            kind = "stdin" if calls else "call"
            beside = f"fn_name={problem.fn_name!r}" if problem.fn_name else "the first test"
            raise DataError(
                f"{here}: a test of kind {kind!r} does not go with {beside}; a problem has a "
                "function and tests that call it, or scripts and no fn_name"
            )
        if isinstance(test, CallTest) and not isinstance(test.args, tuple | list):
            raise DataError(f"{here}: args={short(test.args)} must be a tuple of arguments")
        if isinstance(test, CallTest) and not (test.fn_name or problem.fn_name):
            raise DataError(
                f"{here}: kind='call' does not go with fn_name=None; name the function in the "
                "problem's fn_name or the test's"
            )
        rule = problem.compare.rule
        if (test.abs_tol, test.rel_tol) != (None, None) and rule not in WITH_TOLERANCE:
            raise DataError(
                f"{here}: a tolerance does not go with the rule {rule!r}; use lcb, python or "
                "contest"
            )
        check_tolerance(test.abs_tol, test.rel_tol, here)


def _check_language(problem: Problem, where: str) -> None:
    """Raise DataError, beginning with `where`, for an unknown language, for call tests or the rule
    `lcb-official` in another language than Python, and for call tests with a checker in another
    language."""
    if problem.calls and problem.compare.checker_language != PYTHON:
        raise DataError(
            f"{where}: checker_language={problem.compare.checker_language!r} does not go with call "
            "tests; use stdin tests, or a checker in Python"
        )
    if problem.language == PYTHON:
        return
    _known_language(problem.language, f"{where}: ")
    if problem.calls:
        raise DataError(
            f"{where}: language={problem.language!r} does not go with call tests; use stdin tests, "
            "or language='python'"
        )
    if problem.compare.rule == "lcb-official":
        raise DataError(
            f"{where}: language={problem.language!r} does not go with the rule 'lcb-official', "
            "which is defined for Python; use lcb"
        )


def _known_language(name: str, where: str) -> None:
    """Raise DataError, beginning with `where`, for a language other than Python that is not
    known."""
    try:
        language(name)
    except ConfigError as error:
        raise DataError(f"{where}{error}") from error


def check_tolerance(abs_tol: float | None, rel_tol: float | None, where: str) -> None:
    """Raise DataError, beginning with `where`, for a tolerance that is neither None nor a finite
    number of at least 0."""
    for name, value in (("abs_tol", abs_tol), ("rel_tol", rel_tol)):
        number = isinstance(value, int | float) and math.isfinite(value) and value >= 0
        if value is not None and not number:
            raise DataError(f"{where}: {name}={value!r} must be a finite number, 0 or more")


def _check_checker(source: str, where: str) -> None:
    """Raise DataError, beginning with `where`, if a Python checker does not compile, or does not
    define `check` with three arguments. It is not run."""
    tree = _parsed(source)
    if isinstance(tree, str):
        raise DataError(f"{where}: the checker's source does not compile: {tree}")
    check = _functions(tree).get(CHECK)
    if check is None:
        raise DataError(
            f"{where}: checker={short(source)} must be a source that defines a function {CALLED} "
            "at module level"
        )
    if not (check.decorator_list or _takes_three(check.args)):
        raise DataError(
            f"{where}: the checker defines {CHECK}({ast.unparse(check.args)}); it is called with "
            f"three arguments: {CALLED}"
        )


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    """Return the functions at module level by name, not async ones; the last of each name
    counts."""
    return {part.name: part for part in tree.body if isinstance(part, ast.FunctionDef)}


@functools.lru_cache(maxsize=64)
def _parsed(source: str) -> ast.Module | str:
    """Return the syntax tree of a source, or a text that says why it does not compile. Trees are
    cached and shared, so callers must not change them."""
    try:
        tree = syntax.parse(source)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, "<source>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{error.msg} (its line {error.lineno})" if error.lineno else error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return tree


def _takes_three(args: ast.arguments) -> bool:
    """Return True for a signature that accepts a call with three positional arguments and nothing
    else."""
    most = len(args.posonlyargs) + len(args.args)
    least = most - len(args.defaults)
    return least <= 3 and (most >= 3 or args.vararg is not None) and None not in args.kw_defaults


def rule_for(compare: Compare, test: TestCase) -> Compare:
    """Return the rule for one test: the test's own tolerances (None: the problem's) override those
    of `compare`."""
    if test.abs_tol is None and test.rel_tol is None:
        return compare
    return replace(
        compare,
        abs_tol=compare.abs_tol if test.abs_tol is None else test.abs_tol,
        rel_tol=compare.rel_tol if test.rel_tol is None else test.rel_tol,
    )
