"""The judge: runs a program on a problem's inputs, compares its outputs, and returns one of ten
verdicts.

The sandbox gets a program and inputs; expected outputs stay in this process. The judge stops at the
first failed test unless all tests are requested. A sandbox failure that outlasts the executor's
retries is `sandbox_error`, never a wrong answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace

from code_rl.grading.batches import executions_together
from code_rl.grading.checker import Asked, CheckerBudget, put_to_checker, read_answer
from code_rl.grading.comparison import UnreadableError, compare_printed, compare_returned
from code_rl.grading.native import check_problem
from code_rl.grading.problem import CallTest, Problem, StdinTest, TestCase
from code_rl.grading.reasons import Reason, left_by_itself, status_reason, wrong
from code_rl.grading.sandbox.executor import Execution, Executor, Limits, Status, encodable
from code_rl.grading.sandbox.shared import shared_executor
from code_rl.grading.submission import executions_of, limits_of, program_job, single
from code_rl.grading.verdict import Failure, Verdict, VerdictKind
from code_rl.util.concurrency import wait_for
from code_rl.util.errors import CodeRLError, DataError, OutageError, SandboxError

THREAD_ABOVE_BYTES = 1 << 16
MAX_CHECKER_CHUNK = 16
MAX_CHECKER_BYTES = 4 << 20


@dataclass(slots=True)
class _Tally:
    """The result so far: `done` tests are decided, and `reason` belongs to the first failure."""

    every: bool
    done: int = 0
    passed: int = 0
    failed: int = 0
    reason: Reason | None = None
    cpu_s: float = 0.0
    wall_s: float = 0.0
    seconds: list[float] | None = None

    def note(self, reason: Reason | None) -> bool:
        """Count one more test; only the first failure's reason is kept. Return True if the judge is
        to stop: after a failure unless all tests were requested, and always after an undecided one
        or a COMPILE_ERROR."""
        if reason is None:
            self.passed += 1
        elif self.reason is None:
            self.reason, self.failed = reason, self.done
        self.done += 1
        return reason is not None and (
            not self.every or reason.kind.undecided or reason.kind is VerdictKind.COMPILE_ERROR
        )

    def spent(self, execution: Execution) -> None:
        """Add the CPU and wall time of one execution, and its CPU seconds to `seconds`."""
        self.cpu_s += execution.cpu_s
        self.wall_s += execution.wall_s
        if self.seconds is not None:
            self.seconds.append(execution.cpu_s)

    def lose(self, error: CodeRLError) -> None:
        """Make a failure of the sandbox the reason, in place of any other."""
        self.reason, self.failed = Reason(VerdictKind.SANDBOX_ERROR, str(error)), self.done

    def begin_again(self) -> None:
        """Forget all tests, in `seconds` too, which is emptied in place."""
        self.done = self.passed = self.failed = 0
        self.cpu_s, self.wall_s, self.reason = 0.0, 0.0, None
        if self.seconds is not None:
            self.seconds.clear()


async def judge_async(
    problem: Problem,
    code: str | None,
    executor: Executor | None = None,
    *,
    cpu_limit_s: float | None = None,
    all_tests: bool = False,
    seconds: list[float] | None = None,
) -> Verdict:
    """Run `code` on the tests of `problem` in order, up to the first failure, and return the
    verdict. `code` None is an answer without a program (`no_code`).

    Without an `executor` the process's own sandbox is used (SANDBOX_URL, else the embedded one);
    if that stays unreachable, the verdict is `sandbox_error`.
    `cpu_limit_s` lowers the problem's own CPU limit per test (None: keeps it). With `all_tests`
    every test runs, and `passed` counts all that passed. `cpu_s` and `wall_s` of the verdict are
    sums over the tests that ran; `seconds` receives the CPU seconds of each.

    Raises DataError for a problem that cannot be judged (no tests, mixed kinds, unknown rule) or
    code that is not text, ConfigError for a language that is not installed, and OutageError if the
    `executor` stays unreachable. Any other failure of the sandbox is the verdict `sandbox_error`.
    """
    if not isinstance(problem, Problem):
        raise DataError(f"problem={problem!r:.80} is no code_rl.Problem")
    if code is not None and not isinstance(code, str):
        raise DataError(
            f"code={code!r:.80} is no text; give a program, or None for an answer without one"
        )
    check_problem(problem, f"problem {problem.id!r}")
    if code is None:
        return Verdict(VerdictKind.NO_CODE, 0, len(problem.tests), problem.compare.rule)
    tally = _Tally(all_tests, seconds=seconds)
    if not encodable(code):
        tally.note(Reason(VerdictKind.COMPILE_ERROR, "the program is not UTF-8 text"))
    elif executor is None:
        try:
            await shared_executor.run(
                lambda shared: _judge(problem, code, shared, cpu_limit_s, tally)
            )
        except OutageError as error:  # no command of ours could go on later
            tally.lose(error)
    else:
        await _judge(problem, code, executor, cpu_limit_s, tally)
    return _verdict(problem, tally)


def judge(
    problem: Problem, code: str | None, *, cpu_limit_s: float | None = None, all_tests: bool = False
) -> Verdict:
    """Judge as `judge_async` does, in the process's own sandbox, and wait for the verdict. It may
    also be called inside a running event loop, which it blocks. Raises DataError as `judge_async`
    does."""
    return wait_for(judge_async(problem, code, cpu_limit_s=cpu_limit_s, all_tests=all_tests))


async def _judge(
    problem: Problem, code: str, executor: Executor, cpu_limit_s: float | None, tally: _Tally
) -> None:
    """Run the tests into `tally`. A SandboxError, or a test without a result, becomes its reason;
    DataError and OutageError pass."""
    limits = limits_of(problem, cpu_limit_s)
    try:
        if problem.compare.rule == "checker":
            await _run_checked(problem, code, executor, limits, tally)
        else:
            await _run(problem, code, executor, limits, tally)
        if tally.reason is None and tally.done < len(problem.tests):
            raise SandboxError(f"{tally.done} of {len(problem.tests)} tests have a result")
    except SandboxError as error:
        tally.lose(error)


async def _run(
    problem: Problem, code: str, executor: Executor, limits: Limits, tally: _Tally
) -> None:
    """Run the program and compare each output with the expected one, into `tally`. Raises
    SandboxError.

    The results of batches count only if all are right; under `lcb-official` there are none. The
    first call that is not right in its batch is made again, alone. If it fails there too, that is
    its result, unless all tests are requested. Otherwise every call is made again, alone, and
    nothing of the batches counts: the program's answers depend on its earlier calls, or later tests
    need results too.
    """
    whole = program_job(problem, code, problem.tests, limits)
    if problem.compare.rule != "lcb-official":
        async with contextlib.aclosing(executions_together(executor, whole)) as executions:
            async for execution, alone in executions:
                if execution is None:
                    break
                reason = await _reason(problem, execution, tally.done)
                if reason is not None and not alone:
                    break
                tally.spent(execution)
                if tally.note(reason):
                    return
            else:
                return
        # Not earlier: an executor with one slot runs one submission after the other.
        again = await single(executor, replace(whole, cases=(whole.cases[tally.done],)))
        reason = await _reason(problem, again, tally.done)
        if reason is not None and not tally.every:
            tally.spent(again)
            tally.note(reason)
            return
        tally.begin_again()
    async with contextlib.aclosing(executions_of(executor, whole)) as ones:
        async for execution in ones:
            tally.spent(execution)
            if tally.note(await _reason(problem, execution, tally.done)):
                return


async def _reason(problem: Problem, execution: Execution, index: int) -> Reason | None:
    """Return why test number `index` failed, or None. Under `lcb-official` the output of a program
    that ended with an exit code of its own is compared all the same."""
    test = problem.tests[index]
    if problem.compare.rule == "lcb-official" and left_by_itself(execution, test):
        return await _compared(problem, test, execution)
    return status_reason(execution, test) or await _compared(problem, test, execution)


async def _run_checked(
    problem: Problem, code: str, executor: Executor, limits: Limits, tally: _Tally
) -> None:
    """Run the program and have the checker judge its outputs, into `tally`, up to its stop. Tests
    run in growing chunks, bounded in bytes, each in a process of its own, and the checker gets the
    outputs of each chunk.

    The program's submission ends before the checker's begins, so an executor with one slot cannot
    deadlock. Raises SandboxError.
    """
    chunk, budget = 1, CheckerBudget.of(problem.compare)
    while tally.done < len(problem.tests):
        tests = problem.tests[tally.done : tally.done + chunk]
        asked: list[Asked] = []
        held = 0
        async with contextlib.aclosing(
            executions_of(executor, program_job(problem, code, tests, limits))
        ) as executions:
            async for execution in executions:
                tally.spent(execution)
                asked.append(await _to_ask(problem, tests[len(asked)], execution))
                held += len(execution.stdout) + len(execution.value or b"")
                stop = isinstance(asked[-1], Reason) and not tally.every
                if stop or held > MAX_CHECKER_BYTES or execution.status is Status.COMPILE_ERROR:
                    break
        async with contextlib.aclosing(
            put_to_checker(problem, asked, executor, limits, budget)
        ) as reasons:
            async for reason in reasons:
                if tally.note(reason):
                    return
        chunk = min(2 * chunk, MAX_CHECKER_CHUNK)


async def _to_ask(problem: Problem, test: TestCase, execution: Execution) -> Asked:
    """Return the answer to give to the checker, the reason of a failure that needs no checker, or
    None for a passed test."""
    reason = status_reason(execution, test)
    if reason is not None:
        return reason
    if isinstance(test, CallTest) and test.raises is not None:
        return await _compared(problem, test, execution)
    given = execution.stdout if execution.value is None else execution.value
    try:
        return await asyncio.to_thread(read_answer, test, given, problem.compare)
    except UnreadableError as error:
        return Reason(VerdictKind.WRONG_ANSWER, str(error))


async def _compared(problem: Problem, test: TestCase, execution: Execution) -> Reason | None:
    """Return why the answer is wrong, or None. Texts of more than 64 KiB are compared in a thread,
    so that the event loop keeps running."""

    def compare() -> str | None:
        """Return a message if the answer is wrong, else None."""
        if isinstance(test, StdinTest):
            return compare_printed(execution.stdout, test, problem.compare)
        return compare_returned(execution.value or b"", test, problem.compare)

    long = len(execution.stdout) + len(execution.value or b"") > THREAD_ABOVE_BYTES
    message = await asyncio.to_thread(compare) if long else compare()
    return None if message is None else wrong(message, test, execution)


def _verdict(problem: Problem, tally: _Tally) -> Verdict:
    """Return the verdict for the first failure, or for none. What the program gave is in it only if
    the failed test is public."""
    failure, kind = None, VerdictKind.PASSED
    if tally.reason is not None:
        public = problem.tests[tally.failed].public
        failure = Failure(
            tally.failed, public, tally.reason.shown(public), tally.reason.got if public else None
        )
        kind = tally.reason.kind
    total = len(problem.tests)
    return Verdict(
        kind, tally.passed, total, problem.compare.rule, failure, tally.cpu_s, tally.wall_s
    )
