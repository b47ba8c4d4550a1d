"""Clock, intervals, ledger, trivial programs: the parts that decide without a sandbox."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from code_rl.data.preparation.attempts import trivial_pass
from code_rl.data.preparation.workspace import BYTES_IN_FLIGHT, Candidate, ProblemSummary, at_once, summarize
from code_rl.grading import CallTest, Problem, StdinTest
from code_rl.grading.values import MAX_DEPTH


def stdin_problem(*cases: tuple[str, str], public: int = 0) -> Problem:
    tests = tuple(StdinTest(given, expected, public=index < public) for index, (given, expected) in enumerate(cases))
    return Problem("p", "statement", tests)


def call_problem(*cases: tuple[tuple[object, ...], object]) -> Problem:
    return Problem("p", "statement", tuple(CallTest(args, expected) for args, expected in cases), fn_name="f")


def entry(problem: Problem) -> ProblemSummary:
    return summarize(problem, 0, b"")


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (stdin_problem(("1", ""), ("2", "\n")), "passes_empty"),
        (call_problem(((1,), None), ((2,), None)), "passes_empty"),
        (stdin_problem(("1", "YES"), ("2", "YES\n")), "passes_constant"),
        (call_problem(((1,), [1.0]), ((2,), [1])), "passes_constant"),
        (stdin_problem(("1\n", "1"), ("2\n", "2")), "passes_echo"),
        (call_problem((([1],), [1]), (([2],), [2])), "passes_echo"),
        (stdin_problem(("1", "2"), ("2", "3"), public=2), "passes_samples"),
    ],
)
def test_a_program_that_solves_nothing_is_seen_to_pass(problem: Problem, reason: str) -> None:
    found = trivial_pass(problem)
    assert found is not None
    assert found[0] == reason


def test_one_hidden_test_with_an_answer_of_its_own_is_enough_against_trivial_programs() -> None:
    assert trivial_pass(stdin_problem(("1", "2"), ("2", "3"), public=1)) is None
    assert trivial_pass(call_problem(((1,), True), ((2,), 0))) is None


def test_problems_decided_at_once_stay_within_the_budget_of_bytes_and_a_larger_one_goes_alone() -> None:
    sizes = [size * BYTES_IN_FLIGHT // 10 for size in (4, 5, 30, 6, 3, 1, 9, 10, 2)]
    plain = entry(stdin_problem(("1", "2")))
    candidates = [Candidate(replace(plain, length=size)) for size in sizes]
    under_way: list[int] = []
    most: list[list[int]] = []

    async def decide(candidate: Candidate) -> None:
        under_way.append(candidate.entry.length)
        most.append(sorted(under_way))
        await asyncio.sleep(0.001)
        under_way.remove(candidate.entry.length)

    asyncio.run(at_once(candidates, decide, 5))
    assert len(most) == len(sizes)
    assert all(sum(each) <= BYTES_IN_FLIGHT or len(each) == 1 for each in most)
    assert max(map(len, most)) > 1


def test_the_deepest_values_that_a_problem_may_have_are_measured() -> None:
    deep: object = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert entry(call_problem(((deep,), deep))).size == 2 * (2 * MAX_DEPTH + 1) + 2
