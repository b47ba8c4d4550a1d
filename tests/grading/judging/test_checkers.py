"""Checkers: their input, their possible answers, and whose fault it is when they do not decide."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from code_rl.grading import CallTest, Compare, Problem, SequenceTest, StdinTest, VerdictKind, judge_async, values
from code_rl.grading.sandbox import Status
from code_rl.grading.sandbox.executor import Execution

from .fakes import ScriptedExecutor, printed, returned, verdict_of

CHECK = "def check(input, output, expected):\n    "
STRICT = CHECK + "return int(output) > int(expected) or 'too small'"
STDIN = Problem("s", "", (StdinTest("3", "5"),), compare=Compare("checker", checker=STRICT))


def test_a_check_function_sees_values_and_says_why():
    assert verdict_of(STDIN, "print(int(input()) + 3)").correct
    wrong = verdict_of(replace(STDIN, tests=(StdinTest("3", "5", public=True),)), "print(1)")
    assert wrong.kind is VerdictKind.WRONG_ANSWER
    assert "too small" in wrong.failure.message
    source = CHECK + "return type(output) is set and input == ((2, [1]), {'k': {'a': 1}}) and expected == {1}"
    call = Problem(
        "c", "", (CallTest((2, [1]), {1}, {"k": {"a": 1}}),), "", "f", compare=Compare("checker", checker=source)
    )
    assert verdict_of(call, "def f(n, xs, k): return {1, n}").correct
    assert not verdict_of(call, "def f(n, xs, k): return [1, n]").correct
    sequence = Problem(
        "q",
        "",
        (SequenceTest("C", (("C", ()), ("get", (1,))), (None, 7)),),
        compare=Compare("checker", checker=CHECK + "return input[1] == ('get', (1,)) and output[1] > expected[1]"),
    )
    assert verdict_of(sequence, "class C:\n    def get(self, n): return 8").correct


def test_a_checker_runs_trusted_and_under_its_own_limits():
    executor = ScriptedExecutor([printed("6")], [returned("true")])
    compare = replace(STDIN.compare, checker_time_limit_s=3.0, checker_memory_limit_mb=77)
    assert asyncio.run(judge_async(replace(STDIN, compare=compare), "x", executor)).correct
    program, checker = executor.jobs
    assert (program.trusted, checker.trusted) == (False, True)
    assert (checker.limits.cpu_s, checker.limits.memory_mb) == (3.0, 77)
    assert "5" not in repr(program.cases)


GARBAGE = {
    "raises": "print('x')",
    "a_float": "print(1.5)",
    "nothing": "",
}


@pytest.mark.parametrize("code", GARBAGE.values(), ids=GARBAGE)
def test_an_answer_that_the_checker_cannot_read_is_wrong(code):
    verdict = verdict_of(STDIN, code)
    assert verdict.kind is VerdictKind.WRONG_ANSWER
    assert "could not read" in verdict.failure.message


def test_an_answer_is_made_ready_for_its_checker_once_and_beside_the_event_loop(monkeypatch):
    encoded: list[str] = []
    usual = values.encode

    def watched(value, depth=0):
        encoded.append(threading.current_thread().name)
        return usual(value, depth)

    call = Problem(
        "c", "", (CallTest(((1,),), [1]),), "", "f", compare=Compare("checker", checker=CHECK + "return True")
    )
    first, executor = (ScriptedExecutor([returned("[1]")], [returned("true")]) for _ in range(2))
    assert asyncio.run(judge_async(call, "x", first)).correct  # the arguments are ready from here on
    monkeypatch.setattr(values, "encode", watched)
    assert asyncio.run(judge_async(call, "x", executor)).correct
    made = len(encoded)
    assert made
    assert threading.main_thread().name not in encoded
    asked: Any = executor.jobs[1].cases[0]
    assert values.loads(asked.message, depth=-values.ENVELOPE)[0][1] == [1]
    assert len(encoded) == made


def test_a_checker_that_only_some_answers_stop_is_not_broken():
    slow = CHECK + "\n    while output.startswith('loop'): pass\n    return True"
    problem = replace(STDIN, compare=Compare("checker", checker=slow, checker_time_limit_s=0.3))
    assert verdict_of(problem, "print('loop')").kind is VerdictKind.WRONG_ANSWER
    call = Problem(
        "c", "", (CallTest((), [1]),), "", "f", compare=Compare("checker", checker=CHECK + "return output[0] == 1")
    )
    forged = (
        "import os\ndef f():\n    v = b'[' * 10**6\n    os.write(3, len(v).to_bytes(8, 'little') + v)\n    os._exit(0)"
    )
    assert verdict_of(call, forged).kind is VerdictKind.WRONG_ANSWER


def test_a_checker_that_fails_on_its_own_reference_is_the_problems_fault():
    broken = replace(
        STDIN,
        compare=Compare("checker", checker=CHECK + "raise ValueError('no such rule')"),
        solutions=("print(6)",),
    )
    verdict = verdict_of(broken, "print(6)")
    assert (verdict.kind, verdict.undecided) == (VerdictKind.CHECKER_ERROR, True)
    assert "ValueError: no such rule" in verdict.failure.message
    assert verdict_of(replace(broken, compare=Compare("checker", checker=CHECK + "return 1")), "print(6)").undecided


@pytest.mark.parametrize("code", ["print(2)", "print('x')"])
def test_an_expected_output_that_the_checker_cannot_read_excuses_no_program(code):
    noted = replace(STDIN, tests=(StdinTest("3", "many answers"),))
    right = replace(
        noted, compare=Compare("checker", checker=CHECK + "return int(output) > 0 and int(output) != int(expected)")
    )
    assert verdict_of(right, code).kind is VerdictKind.WRONG_ANSWER
    lenient = replace(noted, compare=Compare("checker", checker=CHECK + "return int(output) > 0"))
    assert not verdict_of(lenient, code).undecided


@pytest.mark.parametrize("solution", ["1/0", "while 1: pass", "print 2"])
def test_a_reference_that_gives_no_answer_excuses_no_program(solution):
    noted = replace(STDIN, tests=(StdinTest("3", "many answers"),), solutions=(solution,), time_limit_s=0.5)
    strict = replace(noted, compare=Compare("checker", checker=CHECK + "return int(output) % 2 == 0"))
    assert verdict_of(strict, "print('x')").kind is VerdictKind.WRONG_ANSWER


def test_a_reference_solution_stands_in_for_an_expected_output_that_is_not_there():
    empty = replace(
        STDIN, tests=(StdinTest("3", ""),), compare=Compare("checker", checker=CHECK + "return int(output) > 0")
    )
    works, breaks = replace(empty, solutions=("print(9)",)), replace(empty, solutions=("print('?')",))
    assert verdict_of(works, "print('x')").kind is VerdictKind.WRONG_ANSWER
    assert verdict_of(breaks, "print('x')").kind is VerdictKind.CHECKER_ERROR
    assert verdict_of(empty, "print('x')").kind is VerdictKind.WRONG_ANSWER, "no program excuses itself"


def test_every_test_is_counted_around_one_that_cannot_be_read():
    tests = tuple(StdinTest(str(n), str(n)) for n in range(5))
    problem = replace(STDIN, tests=tests)
    code = "n = int(input())\nprint({1: 'x', 3: 0}.get(n, n + 1))"
    verdict = verdict_of(problem, code, all_tests=True)
    assert (verdict.kind, verdict.passed, verdict.failure.test) == (VerdictKind.WRONG_ANSWER, 3, 1)
    assert verdict_of(problem, code).passed == 1


SPENT = {
    "computes": (Execution(Status.TIME_LIMIT, cpu_s=9.0), 0.0),
    "sleeps": (Execution(Status.TIME_LIMIT, cpu_s=0.1), 0.0),
    "raises late": (Execution(Status.RUNTIME_ERROR, cpu_s=9.0), 0.0),
    "raises at once, and is slow on the reference": (Execution(Status.RUNTIME_ERROR), 9.0),
}


@pytest.mark.parametrize("kind", SPENT)
def test_answers_that_a_checker_does_not_decide_have_one_budget_over_all_tests(kind):
    """Else each test of a program whose tests are all counted could cost the checker's whole limit."""
    undecided, trial_s = SPENT[kind]

    def script(job):
        if not job.trusted:
            return [printed("x")] * len(job.cases)
        return [undecided] if b'"x"' in job.cases[0].message else [returned("true", cpu_s=trial_s)]

    tests = tuple(StdinTest(str(n), "6") for n in range(40))
    compare = replace(STDIN.compare, checker_time_limit_s=9.0)
    executor = ScriptedExecutor(script)
    verdict = asyncio.run(
        judge_async(replace(STDIN, tests=tests, compare=compare, solutions=("r",)), "x", executor, all_tests=True)
    )
    assert (verdict.kind, verdict.passed, verdict.failure.test) == (VerdictKind.WRONG_ANSWER, 0, 0)
    assert sum(job.trusted for job in executor.jobs) == 2 * 4


def test_what_a_checker_decides_is_not_bounded_by_that_budget():
    def script(job):
        return [returned("true", cpu_s=9.0) if job.trusted else printed("6")] * len(job.cases)

    tests = tuple(StdinTest(str(n), "6") for n in range(40))
    compare = replace(STDIN.compare, checker_time_limit_s=9.0)
    problem = replace(STDIN, tests=tests, compare=compare, solutions=("r",))
    assert asyncio.run(judge_async(problem, "x", ScriptedExecutor(script), all_tests=True)).passed == 40


@pytest.mark.parametrize("value", ["null", "1", '{"__type__":"set","items":[]}', "[", '"' + "x" * 10 + '"'])
def test_only_true_is_right(value):
    executor = ScriptedExecutor([printed("6")], [returned(value)], [Execution(Status.RUNTIME_ERROR)])
    assert not asyncio.run(judge_async(STDIN, "x", executor)).correct
