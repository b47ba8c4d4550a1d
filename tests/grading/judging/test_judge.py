"""The judge: from executions to verdicts. A scripted executor does things that no real sandbox does on demand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from code_rl.grading import CallTest, Compare, Problem, StdinTest, VerdictKind, judge_async
from code_rl.grading.sandbox import Job, Status, StdinInput
from code_rl.grading.sandbox.executor import Execution
from code_rl.util.errors import DataError, OutageError, SandboxError
from tests.grading.jobs import call
from tests.kinds import each_is

from .fakes import ScriptedExecutor, printed, returned

STDIN = Problem("p", "", (StdinTest("in1", "1", public=True), StdinTest("in2", "22"), StdinTest("in3", "3")))
CALL = Problem("c", "", (CallTest((1,), [1], {"k": 2}), CallTest((2,), [2])), fn_name="f")
SECRET = Problem("s", "", (StdinTest("SECRET-IN", "SECRET-OUT"),))
RIGHT = [printed("1"), printed("22"), printed("3")]


def run(problem, *scripts, code="x", **options):
    executor = ScriptedExecutor(*scripts)
    verdict = asyncio.run(judge_async(problem, code, executor, **options))
    assert executor.open == 0, "an iterator was left open"
    return verdict, executor


def test_all_right_passes_and_seconds_add_up():
    verdict, executor = run(STDIN, [replace(e, cpu_s=1.0, wall_s=2.0) for e in RIGHT])
    assert (verdict.kind, verdict.passed, verdict.total, verdict.failure) == (VerdictKind.PASSED, 3, 3, None)
    assert (verdict.cpu_s, verdict.wall_s, verdict.rule) == (3.0, 6.0, "lcb")
    assert verdict.correct
    assert len(executor.jobs) == 1


def test_the_job_holds_inputs_and_limits_and_no_expected_output():
    _, executor = run(replace(SECRET, time_limit_s=3.0, memory_limit_mb=77), [printed("SECRET-OUT")])
    (job,) = executor.jobs
    assert job.cases == (StdinInput(b"SECRET-IN"),)
    assert (job.limits.cpu_s, job.limits.memory_mb) == (3.0, 77)
    assert "SECRET-OUT" not in repr(job)


@pytest.mark.parametrize(("own", "given", "limit"), [(0.5, 6.0, 0.5), (6.0, 0.5, 0.5), (6.0, None, 6.0)])
def test_the_lower_of_two_cpu_limits_wins(own, given, limit):
    _, executor = run(replace(STDIN, time_limit_s=own), RIGHT, cpu_limit_s=given)
    assert executor.jobs[0].limits.cpu_s == limit


def test_call_jobs_carry_arguments_preamble_and_setup():
    problem = replace(CALL, meta={"preamble": "import math", "setup": "x = 1"})
    verdict, executor = run(problem, [returned("[1]"), returned('{"__type__":"tuple","items":[2]}')])
    assert verdict.correct
    (job,) = executor.jobs
    assert (job.fn_name, job.preamble, job.setup) == ("f", "import math", "x = 1")
    assert job.cases == (call(1, k=2), call(2))


def test_the_first_failure_stops_the_submission():
    verdict, executor = run(STDIN, [printed("1"), printed("no"), printed("3")])
    assert (verdict.kind, verdict.passed, verdict.failure.test) == (VerdictKind.WRONG_ANSWER, 1, 1)
    assert executor.yielded == [2]


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_every_status_has_its_verdict(status):
    verdict, executor = run(STDIN, [printed("1"), Execution(status), printed("3")])
    assert verdict.kind.value == status.value
    assert (verdict.passed, verdict.failure.test) == (1, 1)
    assert executor.yielded == [2]


def test_right_output_before_a_failure_does_not_count():
    verdict, _ = run(STDIN, [Execution(Status.RUNTIME_ERROR, stdout=b"1", exit_code=1)])
    assert verdict.kind is VerdictKind.RUNTIME_ERROR


def test_no_code_runs_nothing():
    verdict, executor = run(STDIN, RIGHT, code=None)
    assert (verdict.kind, verdict.passed, verdict.failure) == (VerdictKind.NO_CODE, 0, None)
    assert executor.jobs == []


def test_code_that_is_not_text_does_not_compile():
    verdict, executor = run(STDIN, RIGHT, code="print('\ud800')")
    assert verdict.kind is VerdictKind.COMPILE_ERROR
    assert executor.jobs == []


def test_a_call_that_ended_without_returning_is_not_passed():
    verdict, _ = run(replace(CALL, tests=(CallTest((), None),)), [Execution(Status.OK)])
    assert verdict.kind is VerdictKind.RUNTIME_ERROR


@pytest.mark.parametrize(
    "problem",
    [
        replace(STDIN, tests=()),
        replace(STDIN, fn_name="f"),
        replace(CALL, fn_name=None),
        replace(STDIN, compare=Compare("nearly")),
        replace(CALL, meta={"setup": 3}),
    ],
)
def test_problems_that_cannot_be_judged_are_data_errors(problem):
    with pytest.raises(DataError):
        run(problem, RIGHT)


def test_sandbox_trouble_is_a_sandbox_error_at_once():
    verdict, executor = run(STDIN, [printed("1"), SandboxError("server down")], RIGHT)
    assert (verdict.kind, verdict.passed, verdict.undecided) == (VerdictKind.SANDBOX_ERROR, 1, True)
    assert (verdict.failure.test, verdict.failure.message) == (1, "server down")
    assert len(executor.jobs) == 1


def test_an_outage_is_not_a_verdict():
    class Away(ScriptedExecutor):
        async def run(self, job):
            raise OutageError("gone for good")
            yield

    with pytest.raises(OutageError):
        asyncio.run(judge_async(STDIN, "x", Away([])))


def test_fewer_executions_than_tests_is_a_sandbox_error():
    verdict, _ = run(STDIN, [printed("1")], [])
    assert verdict.kind is VerdictKind.SANDBOX_ERROR
    assert "3 tests" in verdict.failure.message


def test_all_tests_are_run_and_counted_when_asked():
    verdict, executor = run(STDIN, [printed("1"), printed("no"), printed("3")], all_tests=True)
    assert (verdict.kind, verdict.passed, verdict.failure.test) == (VerdictKind.WRONG_ANSWER, 2, 1)
    assert executor.yielded == [3]
    verdict, _ = run(STDIN, [Execution(Status.TIME_LIMIT), printed("no"), printed("3")], all_tests=True)
    assert (verdict.kind, verdict.passed, verdict.failure.test) == (VerdictKind.TIME_LIMIT, 1, 0)


def test_a_program_that_does_not_compile_ends_the_count():
    verdict, _ = run(STDIN, [Execution(Status.COMPILE_ERROR)], all_tests=True)
    assert (verdict.kind, verdict.passed) == (VerdictKind.COMPILE_ERROR, 0)


def test_more_executions_than_tests_are_not_read():
    verdict, executor = run(STDIN, [*RIGHT, printed("4")])
    assert verdict.correct
    assert executor.yielded == [3]


def test_other_errors_are_not_hidden():
    class Broken(ScriptedExecutor):
        async def run(self, job):
            raise ZeroDivisionError
            yield

    with pytest.raises(ZeroDivisionError):
        asyncio.run(judge_async(STDIN, "x", Broken([])))


def test_cancelling_closes_the_submission():
    running = asyncio.Event()

    class Hanging(ScriptedExecutor):
        async def run(self, job):
            self.open += 1
            running.set()
            try:
                yield printed("1")
                await asyncio.sleep(3600)
            finally:
                self.open -= 1

    async def cancelled():
        executor = Hanging([])
        task = asyncio.create_task(judge_async(STDIN, "x", executor))
        await running.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert executor.open == 0

    asyncio.run(cancelled())


def test_messages_about_public_tests_show_both_sides():
    verdict, _ = run(STDIN, [printed("no\x1b[2J")])
    assert verdict.failure.public is True
    assert "'1'" in verdict.failure.message
    assert "no" in verdict.failure.message
    assert verdict.failure.message.isprintable()


def test_messages_are_short_and_printable():
    public = replace(SECRET, tests=(StdinTest("", "e" * 10**6, public=True),))
    for execution in (printed("o" * 10**6), Execution(Status.RUNTIME_ERROR, detail="Error: " + "\ud800\n\x00" * 10**5)):
        verdict, _ = run(public, [execution])
        assert len(verdict.failure.message) <= 240
        assert verdict.failure.message.isprintable()
        json.dumps(verdict.failure.message).encode()


def test_expected_integers_of_any_length_can_be_shown():
    problem = Problem("c", "", (CallTest((), 10**5000, public=True),), fn_name="f")
    verdict, _ = run(problem, [returned("1")])
    assert verdict.kind is VerdictKind.WRONG_ANSWER


def test_room_for_output_grows_with_what_is_expected():
    problem = replace(SECRET, tests=(StdinTest("", "e" * (5 << 20)),))
    _, executor = run(problem, [printed("e" * (5 << 20))])
    assert executor.jobs[0].limits.output_bytes > 2 * (5 << 20)


DECIDES = "def check(input, output, expected): ..."
CHECKED = replace(STDIN, compare=Compare("checker", checker=DECIDES))
YES, NO = "true", "false"


def checker_or_program(*decisions: str, outputs=RIGHT):
    """Scripts by job: program jobs give outputs from where they start, checker jobs give decisions in order."""
    left = list(decisions)
    first = {b"in1": 0, b"in2": 1, b"in3": 2}

    def script(job: Job):
        if job.code == DECIDES:
            return [returned(left.pop(0)) for _ in job.cases]
        start = first[each_is(StdinInput, job.cases)[0].stdin]
        return outputs[start : start + len(job.cases)]

    return script


def test_a_checker_decides_and_sees_what_it_needs():
    verdict, executor = run(CHECKED, checker_or_program(YES, YES, YES))
    assert (verdict.kind, verdict.rule) == (VerdictKind.PASSED, "checker")
    asked = [case.args for job in executor.jobs if job.code == DECIDES for case in job.cases]
    assert asked == [
        (test.input, output.stdout.decode(), test.expected)
        for test, output in zip(each_is(StdinTest, STDIN.tests), RIGHT, strict=True)
    ]
    assert all("expected" not in repr(job) for job in executor.jobs if job.code == "x")
    assert [len(job.cases) for job in executor.jobs if job.code == DECIDES] == [1, 2]


def test_a_checker_never_runs_while_the_program_holds_a_place():
    verdict, executor = run(CHECKED, checker_or_program(YES, YES, YES))
    assert verdict.correct
    assert executor.most_open == 1


def test_a_checkers_no_is_a_wrong_answer_and_stops_the_submission():
    verdict, _ = run(CHECKED, checker_or_program(YES, '"SECRET"', YES))
    assert (verdict.kind, verdict.passed, verdict.failure.test) == (VerdictKind.WRONG_ANSWER, 1, 1)
    assert "SECRET" not in verdict.failure.message
    verdict, _ = run(CHECKED, checker_or_program('"too small"'))
    assert "too small" in verdict.failure.message


def test_a_crash_after_a_wrong_answer_is_the_wrong_answer():
    outputs = [printed("1"), printed("bad"), Execution(Status.RUNTIME_ERROR)]
    verdict, _ = run(CHECKED, checker_or_program(YES, NO, outputs=outputs))
    assert (verdict.kind, verdict.failure.test) == (VerdictKind.WRONG_ANSWER, 1)
    verdict, _ = run(CHECKED, checker_or_program(YES, YES, outputs=outputs))
    assert (verdict.kind, verdict.failure.test) == (VerdictKind.RUNTIME_ERROR, 2)


def test_output_that_is_not_text_is_wrong_without_asking_the_checker():
    verdict, executor = run(CHECKED, [printed(b"\xff")])
    assert verdict.kind is VerdictKind.WRONG_ANSWER
    assert all(job.code == "x" for job in executor.jobs)


def test_checkers_see_returned_values_and_forged_ones_cannot_reach_beyond_their_place():
    problem = replace(CALL, compare=Compare("checker", checker=DECIDES))

    def script(value):
        return lambda job: [returned(YES if job.code == DECIDES else value)] * len(job.cases)

    for value in ("[3]", '1],"expected":[2'):
        _, executor = run(problem, script(value))
        _, output, expected = json.loads(executor.jobs[1].cases[0].message)[0]
        assert (output["items"], expected) == ([value], [1])


def test_checker_trouble_of_the_sandbox_is_a_sandbox_error():
    problem = replace(SECRET, compare=Compare("checker", checker=DECIDES))
    verdict, _ = run(problem, lambda job: [SandboxError("gone")] if job.code == DECIDES else [printed("1")])
    assert verdict.kind is VerdictKind.SANDBOX_ERROR


def test_outputs_held_for_the_checker_are_bounded():
    big = [printed("x" * (3 << 20))] * 40
    problem = replace(CHECKED, tests=tuple(StdinTest("in", "") for _ in big))
    verdict, executor = run(
        problem, lambda job: [returned(YES)] * len(job.cases) if job.code == DECIDES else big[: len(job.cases)]
    )
    assert verdict.correct
    asked = [sum(len(case.message) for case in job.cases) for job in executor.jobs if job.code == DECIDES]
    assert max(asked) < 8 << 20


def test_a_program_that_compiles_for_its_first_call_only_is_not_paid():
    """A source that takes about as long to compile as it may can fail for a later batch."""
    calls = Problem("p", "", tuple(CallTest((n,), n) for n in range(50)), "", "f")

    def script(job: Job):
        return [returned("0"), Execution(Status.COMPILE_ERROR, exit_code=1)][: len(job.cases)]

    assert run(calls, script)[0].kind is not VerdictKind.PASSED
