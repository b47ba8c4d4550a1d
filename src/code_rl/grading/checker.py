"""The rule `checker`: a trusted program decides among many valid answers.

The checker sees expected outputs, so it runs in processes that no policy program shares or descends
from (`Job.trusted`). Its source defines `check(input, output, expected)`, which returns True for a
right output, and False or a reason for a wrong one. For call tests `input` is `(args, kwargs)`; for
a sequence of calls it is the pairs of name and arguments.

A checker of another language (`Compare.checker_language`) follows testlib's convention: it gets the
names of three files, input, output and answer, and exits with 0 for a right output, with 1 or 2 for
a wrong one.

An answer that the checker cannot read is wrong. The checker counts as broken only if it cannot read
the answer of the problem's first solution either. A problem without a solution has no broken
checker, so that no program can get itself masked.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from code_rl.grading.comparison import UnreadableError, parse_value
from code_rl.grading.languages import PYTHON
from code_rl.grading.problem import (
    CHECK,
    Compare,
    Problem,
    SequenceTest,
    StdinTest,
    TestCase,
)
from code_rl.grading.reasons import Reason, clip, last_lines, status_reason
from code_rl.grading.sandbox.executor import (
    CallInput,
    CaseInput,
    Execution,
    Executor,
    Job,
    Limits,
    Status,
    StdinInput,
    case_bytes,
)
from code_rl.grading.submission import executions_of, program_job, single
from code_rl.grading.values import ENVELOPE, Encoded, ValueCodecError, dumps
from code_rl.grading.verdict import VerdictKind

OUTPUT_BYTES = 1 << 20
UNDECIDED_ANSWERS = 4
"""How many times its own limit a checker may spend on one program's undecided answers."""


class UndecidedError(Exception):
    """A checker did not decide: it failed, exceeded a limit, or gave an unknown answer. The message
    is for the problem's author."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A program's answer to one test, as given to the checker."""

    test: TestCase
    case: CaseInput


@dataclass(slots=True)
class CheckerBudget:
    """The seconds that a checker has left for undecided answers of one program. Decided answers
    cost nothing."""

    left_s: float

    @classmethod
    def of(cls, compare: Compare) -> CheckerBudget:
        """Return the budget for all tests of one program: four times the checker's CPU limit."""
        return cls(UNDECIDED_ANSWERS * compare.checker_time_limit_s)

    def charge(self, execution: Execution, compare: Compare) -> None:
        """Subtract the CPU seconds of one execution of the checker, compilation included. One that
        ended by a time limit costs at least the whole limit, even if it slept. The rest may become
        negative."""
        least = compare.checker_time_limit_s if execution.status is Status.TIME_LIMIT else 0.0
        self.left_s -= max(execution.cpu_s + execution.compile_s, least)


Asked = Answer | Reason | None
"""The question about one test: an answer, or the reason (None: passed) if no checker is needed."""


def checker_job(compare: Compare, answers: Sequence[Answer]) -> Job:
    """Return one trusted submission that asks the checker about each answer, in order, under the
    checker's own limits."""
    return Job(
        code=compare.checker or "",
        cases=tuple(answer.case for answer in answers),
        fn_name=CHECK if compare.checker_language == PYTHON else None,
        language=compare.checker_language,
        limits=Limits(
            cpu_s=compare.checker_time_limit_s,
            memory_mb=compare.checker_memory_limit_mb,
            output_bytes=OUTPUT_BYTES,
        ),
        trusted=True,
    )


def read_answer(test: TestCase, given: bytes, compare: Compare) -> Answer:
    """Convert a printed output (stdin tests) or an encoded value (call tests) for the checker, in
    linear time. Raises UnreadableError if `given` is not UTF-8 and the checker is in Python; other
    checkers get the bytes."""
    if compare.checker_language != PYTHON:
        return Answer(test, _files(test, given))
    case = _call(test, given)
    with contextlib.suppress(ValueCodecError):  # the executor reports it
        case = dataclasses.replace(case, message=case_bytes(case))
    return Answer(test, case)


def read_decision(execution: Execution, compare: Compare) -> str | None:
    """Return None for a right answer, else the checker's reason, short and printable. Raises
    UndecidedError if a Python checker failed, or returned anything but True, False or a text, and
    if one in another language did not end with exit code 0, 1 or 2."""
    if compare.checker_language != PYTHON and execution.status is not Status.COMPILE_ERROR:
        if execution.exit_code in (1, 2):
            return last_lines(execution) or "it says wrong"
        if execution.status is Status.OK:
            return None
    if execution.status is not Status.OK:
        said = last_lines(execution)
        raise UndecidedError(
            f"it ended with {execution.status.value}" + (f": {said}" if said else "")
        )
    try:
        decision = parse_value(execution.value or b"")
    except UnreadableError as error:
        raise UndecidedError(str(error)) from error
    if decision is True:
        return None
    if decision is False:
        return "it says wrong"
    if isinstance(decision, str):
        return clip(decision) or "it says wrong"
    raise UndecidedError(f"it returned {clip(repr(decision))[:80]}, not True, False or a reason")


async def put_to_checker(
    problem: Problem,
    asked: Sequence[Asked],
    executor: Executor,
    limits: Limits,
    budget: CheckerBudget,
) -> AsyncGenerator[Reason | None, None]:
    """Yield the reason for each test in order, None for a passed one. Consecutive answers share a
    submission of the checker. `limits` are the program's: the reference solution runs under them.

    Once the budget is spent, the remaining answers are wrong without a check. Raises SandboxError.
    """
    at = 0
    while at < len(asked):
        answers: list[Answer] = []
        for item in asked[at:]:
            if not isinstance(item, Answer):
                break
            answers.append(item)
        if not answers:
            item = asked[at]
            assert not isinstance(item, Answer)
            yield item
            at += 1
            continue
        if budget.left_s <= 0:
            yield Reason(
                VerdictKind.WRONG_ANSWER,
                "answers before this one, unreadable too, used up the checker's time",
            )
            at += 1
            continue
        try:
            async with contextlib.aclosing(
                executions_of(executor, checker_job(problem.compare, answers))
            ) as executions:
                async for execution in executions:
                    said = read_decision(execution, problem.compare)
                    at += 1
                    yield (
                        None
                        if said is None
                        else Reason(VerdictKind.WRONG_ANSWER, "the checker says wrong", said)
                    )
        except UndecidedError as error:
            item = asked[at]
            assert isinstance(item, Answer)
            budget.charge(execution, problem.compare)
            if execution.status is Status.COMPILE_ERROR:  # no answer is to blame for that
                yield Reason(
                    VerdictKind.CHECKER_ERROR, f"the problem's checker does not compile: {error}"
                )
            else:
                yield await _blame(problem, item.test, executor, limits, error, budget)
            at += 1


def unreadable(trouble: UndecidedError, tried: UndecidedError | None) -> Reason:
    """Return the reason why the checker did not decide: `wrong_answer`, with `trouble`, its failure
    on this answer. `tried` is its failure on the reference solution (None: it has not failed
    there); the reason then is `checker_error`."""
    if tried is None:
        return Reason(
            VerdictKind.WRONG_ANSWER, "the checker could not read the answer", str(trouble)
        )
    return Reason(
        VerdictKind.CHECKER_ERROR, f"the problem's checker fails on its own reference: {tried}"
    )


async def _blame(
    problem: Problem,
    test: TestCase,
    executor: Executor,
    limits: Limits,
    trouble: UndecidedError,
    budget: CheckerBudget,
) -> Reason:
    """Return the reason for an answer that the checker did not decide: `checker_error` if it does
    not decide the first solution's own answer either, else `wrong_answer`. Without solutions the
    answer is wrong. The trials are charged to `budget`. Raises SandboxError."""
    tried: UndecidedError | None = None
    if not problem.solutions:
        return unreadable(trouble, None)
    async with contextlib.aclosing(_references(problem, test, executor, limits)) as references:
        async for solved, reference in references:
            try:
                answer = await asyncio.to_thread(read_answer, test, reference, problem.compare)
                trial = await single(executor, checker_job(problem.compare, [answer]))
                budget.charge(trial, problem.compare)
                read_decision(trial, problem.compare)
            except (UnreadableError, UndecidedError) as error:
                tried = UndecidedError(str(error)) if solved else None
            else:
                return unreadable(trouble, None)
    return unreadable(trouble, tried)


async def _references(
    problem: Problem, test: TestCase, executor: Executor, limits: Limits
) -> AsyncGenerator[tuple[bool, bytes], None]:
    """Yield the problem's own answers to a test: (False, the expected output, if there is one),
    then (True, the output of the first solution), which runs in the sandbox and is left out if it
    fails. The problem has a solution. Raises SandboxError."""
    if isinstance(test, StdinTest):
        if test.expected.strip():
            yield False, test.expected.encode("utf-8", "surrogatepass")
    elif test.expected is not None:
        expected = list(test.expected) if isinstance(test, SequenceTest) else test.expected
        yield False, dumps(expected, -ENVELOPE).encode()
    execution = await single(executor, program_job(problem, problem.solutions[0], [test], limits))
    if status_reason(execution, test) is None:
        yield True, execution.stdout if execution.value is None else execution.value


def _call(test: TestCase, given: bytes) -> CallInput:
    """Return the checker's call for one answer: `check(input, output, expected)`. The program's
    value stays encoded until the checker's process decodes it. Raises UnreadableError if `given` is
    not UTF-8."""
    if isinstance(test, StdinTest):
        return CallInput((test.input, _text(given, "the output is not UTF-8 text"), test.expected))
    value = Encoded(_text(given, "the returned value cannot be read"))
    if isinstance(test, SequenceTest):
        return CallInput((test.calls, value, list(test.expected)))
    return CallInput(((test.args, dict(test.kwargs)), value, test.expected))


def _files(test: TestCase, given: bytes) -> StdinInput:
    """Return a stdin test's three files of testlib's convention (input, output, answer), one after
    the other, after a line with their lengths in bytes."""
    assert isinstance(test, StdinTest)
    data = test.input.encode("utf-8", "surrogatepass")
    expected = test.expected.encode("utf-8", "surrogatepass")
    lengths = b"%d %d %d\n" % (len(data), len(given), len(expected))
    return StdinInput(lengths + data + given + expected)


def _text(data: bytes, trouble: str) -> str:
    """Decode UTF-8. Raises UnreadableError with the message `trouble`."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise UnreadableError(trouble) from None
