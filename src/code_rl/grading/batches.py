"""Call tests of one program that share a process, so that hundreds of them need few processes.

The first test runs alone. Then calls are made in growing batches. A batch is one test of the
sandbox, under the limits of one call: all its calls together may use the CPU time, memory and
output that each of them may use alone. Whatever ends a batch early (an exception, an exit, a limit)
is no result: the calls without a value, and all that follow, run alone in fresh processes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace

from code_rl.grading.problem import CallTest, Problem, SequenceTest, TestCase
from code_rl.grading.sandbox.executor import (
    CallInput,
    CaseInput,
    Execution,
    Executor,
    Job,
    Limits,
    Status,
    case_bytes,
)
from code_rl.grading.submission import executions_of, program_job
from code_rl.grading.values import ValueCodecError
from code_rl.util.concurrency import closing

FEWEST, FIRST_BATCH, GROWTH, LARGEST_BATCH = 10, 32, 4, 512
LARGEST_BYTES = 1 << 20
"""Bytes of arguments in one batch."""
CPU_SHARE = 0.5
"""A batch is planned for at most this share of the CPU limit."""
_DIGITS = 18


async def executions_together(
    executor: Executor, job: Job, together: bool
) -> AsyncGenerator[tuple[Execution, bool], None]:
    """Do the same as `executions_of`, if `together` with calls in batches. Yield each execution
    with True if its process was its own.

    `cpu_s` of a call in a batch is its own time, as its process measured it, and the time that the
    batch took beside its calls, which a fresh process would also take.
    """
    texts = _texts(job) if together else ()
    done, call_s, together = 0, 0.0, len(texts) >= FEWEST
    while done < len(job.cases):
        left = len(job.cases) - done
        most = CPU_SHARE * job.limits.cpu_s / call_s if call_s else LARGEST_BATCH
        sizes = _sizes(texts, done, most) if together else [1] * left
        cases = tuple(_cases(job.cases[done:], texts[done:], sizes))
        async with closing(executions_of(executor, replace(job, cases=cases))) as executions:
            async for execution in executions:
                size = sizes.pop(0)
                found = [execution] if size == 1 else _parted(execution, size)
                for each in found:
                    yield each, size == 1
                done, together = done + len(found), together and len(found) == size
                if execution.status is Status.COMPILE_ERROR:
                    return
                call_s = execution.cpu_s / size
                slow = sizes and sizes[0] > 1 and call_s * sizes[0] > job.limits.cpu_s * CPU_SHARE
                if len(found) < size or slow:
                    break


def runs_of(
    executor: Executor, problem: Problem, code: str, tests: Sequence[TestCase], limits: Limits
) -> AsyncGenerator[tuple[Execution, bool], None]:
    """Run a program on tests of a problem; see `executions_together`."""
    return executions_together(executor, program_job(problem, code, tests, limits), True)


def in_one_process(problem: Problem, code: str) -> Problem | None:
    """Return the problem with one test that makes all calls in one process, on one object if `code`
    mentions a `class Solution`. Return None if a test is more than a call with positional
    arguments.

    LiveCodeBench runs call tests in this way.
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


def _texts(job: Job) -> Sequence[bytes]:
    """Return each call as its bytes, or nothing if these cases cannot share a process."""
    plain = [case for case in job.cases if isinstance(case, CallInput) and case.calls is None]
    if len(plain) < len(job.cases) or job.files or job.fetch:
        return ()
    try:
        return [case_bytes(case) for case in plain]
    except ValueCodecError:  # the executor says which
        return ()


def _sizes(texts: Sequence[bytes], done: int, most: float) -> list[int]:
    """Return the sizes of the batches from `done` on; 1 is a call alone."""
    sizes, room = [1] * (done == 0), FIRST_BATCH
    at = done + len(sizes)
    while at < len(texts):
        size, held = 1, len(texts[at])
        while at + size < len(texts) and size < min(room, most) and held < LARGEST_BYTES:
            held += len(texts[at + size])
            size += 1
        sizes.append(size)
        at, room = at + size, min(room * GROWTH, LARGEST_BATCH)
    return sizes


def _cases(
    cases: Sequence[CaseInput], texts: Sequence[bytes], sizes: Sequence[int]
) -> Iterator[CaseInput]:
    """Yield one case for each batch; `runner` makes its calls."""
    at = 0
    for size in sizes:
        if size == 1:
            yield cases[at]
        else:
            calls = b",".join(texts[at : at + size])
            yield CallInput((), message=b'[[],{},{"batch":[%s]}]' % calls)
        at += size


def _parted(execution: Execution, size: int) -> list[Execution]:
    """Return the executions of a batch's calls, up to the first without a value."""
    if execution.status is not Status.OK or not execution.value:
        return []
    lines = [line.partition(b" ") for line in execution.value.split(b"\n")[:size]]
    # The program could forge these times. Nothing is decided by them.
    own = [int(ns) / 1e9 if ns.isdigit() and len(ns) <= _DIGITS else 0.0 for ns, _, _ in lines]
    beside = max(0.0, execution.cpu_s - sum(own))
    wall_s, peak = execution.wall_s / len(lines), execution.peak_memory_bytes
    return [
        Execution(
            Status.OK,
            value=text,
            exit_code=0,
            cpu_s=min(cpu_s + beside, execution.cpu_s),
            wall_s=wall_s,
            peak_memory_bytes=peak,
        )
        for cpu_s, (_, _, text) in zip(own, lines, strict=True)
    ]
