"""Makes the job that runs a program on a problem's tests. A job cannot contain expected outputs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from code_rl.grading.problem import CallTest, Problem, SequenceTest, StdinTest, TestCase
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
    check_seconds,
)
from code_rl.grading.values import MAX_DEPTH, BinaryTree, LinkedList, ValueCodecError
from code_rl.util.concurrency import closing
from code_rl.util.errors import DataError, SandboxError
from code_rl.util.memo import once_per_object

USUAL, OFFICIAL = Limits(), Limits(processes=1024, open_files=1024)
"""More threads than any benchmark's program starts, and Linux's default of open files."""


def program_job(problem: Problem, code: str, tests: Sequence[TestCase], limits: Limits) -> Job:
    """Return the submission of `code` for some tests of `problem`, in order. If `tests` is
    `problem.tests` itself, the encoded inputs are kept for later submissions. A value that cannot
    be encoded is reported by the executor, not here."""
    return Job(
        code=code,
        cases=_inputs(problem) if tests is problem.tests else _inputs_of(tests, problem),
        fn_name=problem.fn_name or ("" if problem.calls else None),
        preamble=problem.meta.get("preamble", ""),
        setup=problem.meta.get("setup", ""),
        limits=limits,
        language=problem.language,
    )


@once_per_object
def _inputs(problem: Problem) -> tuple[CaseInput, ...]:
    """Return the sandbox's inputs of all tests, with calls already encoded. If one cannot be
    encoded, none is; the executor then raises for it."""
    inputs = _inputs_of(problem.tests, problem)
    with contextlib.suppress(ValueCodecError):  # the executor says which cannot be encoded
        inputs = tuple(
            replace(case, message=case_bytes(case)) if isinstance(case, CallInput) else case
            for case in inputs
        )
    return inputs


def _inputs_of(tests: Sequence[TestCase], problem: Problem) -> tuple[CaseInput, ...]:
    """Return the sandbox's inputs of some of the problem's tests, in order; expected outputs are
    not among them."""
    # For all calls or none: the input must not reveal that a test expects an exception.
    catch = any(isinstance(test, CallTest) and test.raises is not None for test in problem.tests)
    return tuple(_input(test, catch) for test in tests)


def _input(test: TestCase, catch: bool) -> CaseInput:
    """Return one test's input: bytes of stdin, or a call. With `catch` an exception of the call is
    returned as its value."""
    if isinstance(test, StdinTest):
        return StdinInput(test.input.encode("utf-8", "surrogatepass"))
    if isinstance(test, SequenceTest):
        (_, args), *calls = test.calls
        return CallInput(args, fn_name=test.class_name, calls=tuple(calls))
    return CallInput(test.args, test.kwargs, fn_name=test.fn_name, catch=catch)


def in_one_process(problem: Problem, code: str) -> Problem | None:
    """Return the problem with one test that makes all calls in one process, on one object if `code`
    mentions a `class Solution`, as LiveCodeBench runs call tests.

    Return None if that is impossible: a test is more than a call of `fn_name` with positional
    arguments, tests differ in their tolerances, or the rule is `checker`. The new test is hidden.
    """
    name, tolerances = problem.fn_name, {(test.abs_tol, test.rel_tol) for test in problem.tests}
    tests = [
        test
        for test in problem.tests
        if isinstance(test, CallTest)
        and not test.kwargs
        and test.raises is None
        and test.fn_name in (None, name)
    ]
    if (
        name is None
        or len(tests) < len(problem.tests)
        or len(tolerances) != 1
        or problem.compare.rule == "checker"
    ):
        return None
    setup, owner = problem.meta.get("setup", ""), "Solution"
    if "class Solution" not in code:  # LiveCodeBench's own criterion
        owner = "_ModuleOfTheProgram"
        setup += f"\n{owner} = type({owner!r}, (), {{{name!r}: staticmethod({name})}})\n"
    calls = ((owner, ()), *((name, test.args) for test in tests))
    whole = SequenceTest(
        owner, calls, (None, *(test.expected for test in tests)), False, *tolerances.pop()
    )
    return replace(problem, tests=(whole,), meta={**problem.meta, "setup": setup})


def limits_of(problem: Problem, cpu_limit_s: float | None = None) -> Limits:
    """Return the problem's limits, with a CPU limit of at most `cpu_limit_s` seconds (None: the
    problem's). The output limit grows with the expected output. Raises ConfigError for a
    `cpu_limit_s` that is no time, and DataError for an expected value nested too deeply.

    LiveCodeBench's utility forbids processes and sets no other limit, so the threads and open files
    of all its calls in one process must be allowed.
    """
    check_seconds("cpu_limit_s", cpu_limit_s)
    rule = OFFICIAL if problem.compare.rule == "lcb-official" else USUAL
    return Limits(
        cpu_s=problem.time_limit_s
        if cpu_limit_s is None
        else min(problem.time_limit_s, cpu_limit_s),
        memory_mb=problem.memory_limit_mb,
        output_bytes=max(USUAL.output_bytes, 8 * _longest_expected(problem)),
        processes=rule.processes,
        open_files=rule.open_files,
    )


@once_per_object
def _longest_expected(problem: Problem) -> int:
    """Return the approximate bytes of the largest expected output; 0 without tests. Raises
    DataError for a value nested too deeply for a program to return."""
    return max((_expected_size(problem, index) for index in range(len(problem.tests))), default=0)


def _expected_size(problem: Problem, index: int) -> int:
    """Return the approximate size of a test's expected output, in bytes as encoded, walked level by
    level without recursion.

    Raises DataError for a value nested too deeply for a program to return.
    """
    test, size, depth = problem.tests[index], 0, 0
    level: list[Any] = list(test.expected) if isinstance(test, SequenceTest) else [test.expected]
    while level:
        below: list[Any] = []
        size += 2 * len(level)
        for part in level:
            kind = type(part)
            if kind in (str, bytes, bytearray):
                size += len(part)
            elif kind in (list, tuple, set, frozenset):
                below += part
            elif kind is dict:
                below += [*part.keys(), *part.values()]
            elif kind in (LinkedList, BinaryTree):
                below += part.items
            else:
                size += 6 + (part.bit_length() // 3 if kind is int else 0)
        level, depth = below, depth + 1
        if depth > MAX_DEPTH + 1:
            raise DataError(
                f"problem {problem.id!r}: tests[{index}]: expected is nested deeper than "
                f"{MAX_DEPTH}; simplify it"
            )
    return size


async def executions_of(executor: Executor, job: Job) -> AsyncGenerator[Execution, None]:
    """Yield one execution for each case, in order, or up to the first COMPILE_ERROR. Closing it
    stops the submission. Raises SandboxError, also if the executor ends before the last case."""
    seen = 0
    async with closing(executor.run(job)) as executions:
        async for execution in executions:
            yield execution
            seen += 1
            if seen == len(job.cases) or execution.status is Status.COMPILE_ERROR:
                return
    raise SandboxError(f"the sandbox gave {seen} executions for {len(job.cases)} tests")


async def single(executor: Executor, job: Job) -> Execution:
    """Return the execution of a job with one case. Raises SandboxError if the sandbox fails."""
    async with closing(executions_of(executor, job)) as executions:
        return await anext(executions)
