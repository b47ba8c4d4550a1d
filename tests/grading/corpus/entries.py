"""The record shared by the corpora: a named program, the problem that it answers, and the verdicts that it may get."""

from __future__ import annotations

from dataclasses import dataclass

from code_rl.grading.problem import CallTest, Problem, StdinTest
from code_rl.grading.verdict import VerdictKind

PASSED = frozenset({VerdictKind.PASSED})
FAILED = frozenset(
    {
        VerdictKind.WRONG_ANSWER,
        VerdictKind.RUNTIME_ERROR,
        VerdictKind.TIME_LIMIT,
        VerdictKind.MEMORY_LIMIT,
        VerdictKind.OUTPUT_LIMIT,
        VerdictKind.COMPILE_ERROR,
    }
)
"""Any verdict that is about the program and pays nothing. A cheat may not even reach `sandbox_error`: that would mask it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`kind` groups entries (an idiom or a class of cheating); `allowed` are the verdicts that are right for `code`."""

    name: str
    kind: str
    code: str
    problem: Problem
    allowed: frozenset[VerdictKind]
    needs_threads: bool = False


def stdin_problem(
    name: str, *cases: tuple[str, str], time_limit_s: float = 6.0, memory_limit_mb: int = 1024
) -> Problem:
    """A problem with one stdin test for each (input, expected)."""
    tests = tuple(StdinTest(given, expected) for given, expected in cases)
    return Problem(name, name, tests, time_limit_s=time_limit_s, memory_limit_mb=memory_limit_mb)


def sum_problem(time_limit_s: float = 6.0, memory_limit_mb: int = 1024) -> Problem:
    """First line n, second line n integers; print their sum."""
    lists = ([1, 2, 3], [7], [-5, 5, 0, 11], list(range(1, 101)), [10**12, -(10**11), 37])
    cases = [(f"{len(items)}\n{' '.join(map(str, items))}\n", f"{sum(items)}\n") for items in lists]
    return stdin_problem("sum", *cases, time_limit_s=time_limit_s, memory_limit_mb=memory_limit_mb)


def total_problem(time_limit_s: float = 6.0, memory_limit_mb: int = 1024) -> Problem:
    """`total(numbers)` returns the sum."""
    lists = ([1, 2, 3], [7], [-5, 5, 0, 11], list(range(1, 101)), [10**12, -(10**11), 37])
    return Problem(
        "total",
        "total",
        tuple(CallTest((items,), sum(items)) for items in lists),
        fn_name="total",
        time_limit_s=time_limit_s,
        memory_limit_mb=memory_limit_mb,
    )
