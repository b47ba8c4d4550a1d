"""Proof in the sandbox: references, repeats, wrong solutions, mutants, trivial programs, and why a problem is dropped."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from code_rl.data.preparation.workspace import BYTES_IN_FLIGHT, Candidate, Workspace, at_once, summarize
from code_rl.data.preparation.wrong_programs import mutants
from code_rl.grading import CallTest, Compare, Problem, SequenceTest, StdinTest, judge_async
from code_rl.grading.sandbox.executor import Execution, Job, Status
from tests.boxes import shared_box
from tests.data.preparation.prepared import Prepared, prepared
from tests.stand_in import StandIn

RIGHT = "a, b = map(int, input().split())\nif a > 0:\n    print(a + b)\nelse:\n    print(b)\n"
SUMS = tuple(StdinTest(f"{a} {b}\n", f"{a + b if a > 0 else b}\n") for a, b in ((1, 2), (-3, 4), (10, 20), (0, 5)))
SUM = Problem("sum", "Print a + b where a is above zero, else b.", SUMS, solutions=(RIGHT,))


def with_solution(*code: str, **changes: Any) -> Problem:
    return dataclasses.replace(SUM, solutions=code, **changes)


def verified(folder: Path, problems: dict[str, Problem], *words: str) -> Prepared:
    """Problems prepared under these ids, and under texts that are no copies of each other."""
    told = [
        dataclasses.replace(problem, id=name, statement=f"Story {n} of {name}. {problem.statement}")
        for n, (name, problem) in enumerate(problems.items())
    ]
    return prepared(folder, told, "similarity=1", "min_tests=1", *words)


def test_a_sound_problem_is_kept_with_its_card(tmp_path: Path) -> None:
    made = verified(tmp_path, {"sum": SUM, "byte order mark": with_solution("\ufeff" + RIGHT)}, "mutants=8")
    for problem in made.problems.values():
        metadata = problem.meta["prepare"]
        assert (metadata["verified"], metadata["reference"], metadata["reference_cpu_s"]) == (True, 1, 0.25)
        assert problem.time_limit_s == 2.0
    by_verdict = made.card["kept"]["verdicts"]["mutants"]
    assert (len(made.problems), sum(by_verdict.values())) == (2, 16)
    assert by_verdict["wrong_answer"] > 8


UNLUCKY = "0.134364 < random.random() < 0.134365"
"""The first draw after `random.seed(1)`, and hardly any other."""
SLOW = "while True:\n    pass\n"


class Hung(StandIn):
    """An executor whose first runs end in time-outs, and whose later ones only begin together."""

    slots = 2

    def __init__(self, together: int) -> None:
        self.together, self.inside, self.all_here = together, 0, asyncio.Event()

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        if job.limits.cpu_s == 90.0:
            self.inside += 1
            if self.inside == self.together:
                self.all_here.set()
            await asyncio.wait_for(self.all_here.wait(), 20)
        yield Execution(Status.TIME_LIMIT)


def test_slow_references_are_tried_again_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung = Hung(2)
    monkeypatch.setattr(Workspace, "executor", lambda _: hung)
    made = verified(tmp_path, {"one": with_solution(SLOW), "two": with_solution(SLOW)}, "mutants=0")
    assert made.reasons == {"one": "reference_fails", "two": "reference_fails"}


def checked(body: str) -> Problem:
    return dataclasses.replace(
        SUM, compare=Compare("checker", checker=f"def check(input, output, expected):\n    {body}")
    )


FORMS = "class C:\n    def __init__(self, n): self.n = n\n    def add(self, k):\n        self.n += k\n        return self.n\ndef f(n):\n    if n < 0: raise ValueError\n    return n"
FORM_TESTS = (
    SequenceTest("C", (("C", (1,)), ("add", (2,)), ("add", (3,))), (None, 3, 6)),
    CallTest((1,), 1, fn_name="f"),
    CallTest((-1,), raises="ValueError", fn_name="f"),
)
SOUND = {
    "a second reference after a wrong one": with_solution("print(1)", RIGHT),
    "a second reference after a slow one": with_solution(SLOW, RIGHT, time_limit_s=0.5),
    "a checker": checked("return output.split() == expected.split()"),
    "sequences and exceptions": Problem("forms", "forms", FORM_TESTS, solutions=(FORMS,)),
}


def test_a_second_reference_a_checker_and_sequences_of_calls_can_prove_a_problem(tmp_path: Path) -> None:
    made = verified(tmp_path, SOUND, "mutants=0")
    assert made.reasons == {}
    assert [problem.meta["prepare"]["reference"] for problem in made.problems.values()] == [2, 2, 1, 1]


DEFECTS = {
    "a wrong answer": (with_solution(RIGHT.replace("a + b", "a - b")), "reference_fails"),
    "an error": (with_solution("print(1 // 0)"), "reference_fails"),
    "no Python": (with_solution("print("), "reference_fails"),
    "an exception that is none": (
        Problem("forms", "forms", FORM_TESTS, solutions=(FORMS.replace("raise ValueError", "return 0"),)),
        "reference_fails",
    ),
    "none": (with_solution(), "no_reference"),
    "a library": (with_solution("import no_such_library\n" + RIGHT), "missing_library"),
    "part of a library": (with_solution("from no_such_library.part import name\n" + RIGHT), "missing_library"),
    "no such name": (with_solution("from math import nosuchname\n" + RIGHT), "reference_fails"),
    "no such module": (with_solution("import os.nowhere\n" + RIGHT), "reference_fails"),
    "endless": (with_solution(SLOW, time_limit_s=0.5), "reference_fails"),
    "luck": (with_solution(f"import random\n{RIGHT}{UNLUCKY} and print(7)"), "flaky"),
    "a limit": (with_solution("x = sum(range(4000000))\n" + RIGHT, time_limit_s=0.01), "impossible_time_limit"),
    "its wrong solutions": (
        dataclasses.replace(SUM, meta={"wrong_solutions": ["print(1)", RIGHT]}),
        "wrong_solution_passes",
    ),
    "its checker": (checked("return undefined"), "broken_checker"),
}


@pytest.mark.long
def test_each_defect_has_its_own_reason(tmp_path: Path) -> None:
    made = verified(tmp_path, {name: one for name, (one, _) in DEFECTS.items()}, "mutants=0", "patient_limit_s=1.0")
    assert made.reasons == {name: reason for name, (_, reason) in DEFECTS.items()}
    assert "NameError" in made.dropped["its checker"]["detail"]


def stdin_problem(*cases: tuple[str, str], public: int = 0) -> Problem:
    tests = tuple(StdinTest(given, expected, public=index < public) for index, (given, expected) in enumerate(cases))
    return Problem("p", "Print what is asked for.", tests)


def call_problem(*cases: tuple[tuple[object, ...], object]) -> Problem:
    tests = tuple(CallTest(args, expected) for args, expected in cases)
    return Problem("p", "Return what is asked for.", tests, fn_name="f")


TRIVIAL = {
    "nothing printed": (stdin_problem(("1", ""), ("2", "\n")), "passes_empty"),
    "nothing returned": (call_problem(((1,), None), ((2,), None)), "passes_empty"),
    "one text": (stdin_problem(("1", "YES"), ("2", "YES\n")), "passes_constant"),
    "one value": (call_problem(((1,), [1.0]), ((2,), [1])), "passes_constant"),
    "input printed": (stdin_problem(("1\n", "1"), ("2\n", "2")), "passes_echo"),
    "argument returned": (call_problem((([1],), [1]), (([2],), [2])), "passes_echo"),
    "all public": (stdin_problem(("1", "2"), ("2", "3"), public=2), "passes_samples"),
    "one hidden": (stdin_problem(("1", "2"), ("2", "3"), public=1), ""),
    "two values": (call_problem(((1,), True), ((2,), 0)), ""),
}


def test_a_program_that_solves_nothing_is_seen_to_pass(tmp_path: Path) -> None:
    made = verified(tmp_path, {name: problem for name, (problem, _) in TRIVIAL.items()}, "unverified=keep")
    assert made.reasons == {name: reason for name, (_, reason) in TRIVIAL.items() if reason}
    assert {problem.meta["prepare"]["verified"] for problem in made.problems.values()} == {False}


@pytest.mark.long
def test_a_slow_reference_without_a_stated_limit_gets_a_larger_one(tmp_path: Path) -> None:
    slow = "import time\nstart = time.process_time()\nwhile time.process_time() - start < 0.6:\n    pass\n" + RIGHT
    stated, default = (with_solution(slow, tests=SUMS[:2], time_limit_s=limit) for limit in (1.0, 6.0))
    made = verified(tmp_path, {"stated": stated, "default": default}, "mutants=0", "repeats=0").problems
    assert {name: problem.time_limit_s for name, problem in made.items()} == {"stated": 1.0, "default": 6.0}
    assert made["default"].meta["prepare"]["reference_cpu_s"] == 1.0


SIZES = (*range(40), *range(-1, -40, -1), *range(40, 80))
ABS = (
    "def f(n):\n    if n < 0:\n        return -n\n    return n\n",
    "class Solution:\n    def f(self, n):\n        return -n if n < 0 else n\n",
)


@pytest.mark.long
@pytest.mark.parametrize("reference", ABS, ids=["function", "method"])
def test_mutants_have_the_verdicts_that_all_tests_give(reference: str, tmp_path: Path) -> None:
    tests = tuple(CallTest((n,), abs(n)) for n in SIZES)
    problem = Problem("abs", "Return abs(n).", tests, fn_name="f", solutions=(reference,))
    made = verified(tmp_path, {"abs": problem}, "mutants=8")

    async def judged() -> list[Any]:
        return [await judge_async(problem, code, shared_box()) for code in mutants(reference, 8, "0/abs")]

    verdicts = asyncio.run(judged())
    failing = [verdict for verdict in verdicts if not verdict.correct]
    assert 0 < len(failing) < len(verdicts)
    assert any(verdict.passed >= 32 for verdict in failing)
    counted = made.card["kept"]["verdicts"]["mutants"]
    assert sum(counted.values()) == len(verdicts)
    for kind in {verdict.kind.value for verdict in failing}:
        assert counted[kind] == sum(verdict.kind == kind for verdict in failing)


def test_problems_decided_at_once_stay_within_the_budget_of_bytes_and_a_larger_one_goes_alone() -> None:
    sizes = [size * BYTES_IN_FLIGHT // 10 for size in (4, 5, 30, 6, 3, 1, 9, 10, 2)]
    candidates = [Candidate(dataclasses.replace(summarize(SUM, 0, b""), length=size)) for size in sizes]
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
