"""The last step of reading: it runs a row's own solutions in the sandbox.

A `Draft` gets its expected values from its reference. An `Ambiguous` gets the one reading of its
tests under which one of its solutions passes them all. A row that fits no reading, or two, becomes
a `Skipped`.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque
from collections.abc import AsyncIterator, Iterable
from itertools import groupby

from code_rl.data.sources.asserts import expected_rule
from code_rl.data.sources.records import Ambiguous, Draft, Item, Reading, Skipped, item_id
from code_rl.data.sources.testcases import DOCUMENTED
from code_rl.grading import CallTest, Problem, StdinTest, values
from code_rl.grading.batches import answers_of
from code_rl.grading.comparison import compare_returned
from code_rl.grading.sandbox import Executor, Limits, Status
from code_rl.grading.submission import program_job
from code_rl.util.concurrency import cancel_all, closing
from code_rl.util.errors import SandboxError

MAX_REFERENCES = 5
"""Solutions tried per row before it is dropped."""

AT_ONCE = 16
HELD_TESTS_BYTES = 64 << 20

READING_LIMITS = Limits(cpu_s=20.0)
REFERENCE_LIMITS = Limits(cpu_s=60.0, memory_mb=4096)
"""Values may be as long as those of any judged program."""
_BEYOND = (Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.OUTPUT_LIMIT)
_MOST_LEFT_OUT = 0.05
"""The share of a problem's calls that may exceed the limits; with more, the reference has failed.
"""


async def resolve(item: Item, executor: Executor) -> Problem | Skipped:
    """Return the finished problem, or the reason against it. A Problem and a Skipped are returned
    as they are, without running anything. Raises SandboxError, naming the row, if the executor
    fails."""
    try:
        if isinstance(item, Draft):
            return await with_expected(item, executor)
        if isinstance(item, Ambiguous):
            return await _resolve_reading(item, executor)
        return item
    except SandboxError as error:
        raise SandboxError(f"row {item_id(item)}: {error}") from error


async def resolve_all(
    items: Iterable[Item], executor: Executor
) -> AsyncIterator[Problem | Skipped]:
    """Yield `resolve` of a stream of items, in order, with up to `AT_ONCE` rows in flight and
    bounded memory: a large row waits until it is alone. Raises SandboxError, and cancels the rows
    in flight when it ends early."""
    waiting: deque[tuple[asyncio.Task[Problem | Skipped], int]] = deque()
    held = 0
    try:
        for item in items:
            if isinstance(item, Problem | Skipped) and not waiting:
                yield item
                continue
            size = _weight(item)
            while waiting and (len(waiting) >= AT_ONCE or held + size > HELD_TESTS_BYTES):
                task, weight = waiting.popleft()
                held -= weight
                yield await task
            waiting.append((asyncio.create_task(resolve(item, executor)), size))
            held += size
        while waiting:
            yield await waiting.popleft()[0]
    finally:
        await cancel_all(task for task, _ in waiting)


async def with_expected(
    draft: Draft, executor: Executor, limits: Limits = REFERENCE_LIMITS
) -> Problem | Skipped:
    """Run the draft's reference on its inputs, and return the problem with the results as expected
    values.

    The reference runs under generous limits in the same sandbox as any program, its calls in shared
    processes where each has a value. Each call gets fresh inputs, so a reference that changes its
    arguments cannot disturb another test. If the reference fails, the row is a Skipped
    (`reference_failed`). A few calls that only exceed the limits (a value of a gigabyte) are
    dropped and listed in `meta["calls_left_out"]`. Raises SandboxError if the executor itself
    fails.
    """
    problem, calls = draft.problem, [CallTest(args) for args in draft.calls]
    job = program_job(problem, problem.solutions[0], calls, limits)
    executions = await answers_of(executor, job)
    beyond = {
        str(index): str(run.status) for index, run in enumerate(executions) if run.status in _BEYOND
    }
    if len(beyond) > _MOST_LEFT_OUT * len(calls):
        beyond = {}
    tests: list[CallTest] = []
    for index, run in enumerate(executions):
        if str(index) in beyond:
            continue
        if run.status is not Status.OK or run.value is None:
            return Skipped(
                problem.id, "reference_failed", f"call {index}: {run.status} {run.detail[:200]}"
            )
        tests.append(
            CallTest(draft.calls[index], values.loads(run.value), public=index < draft.public)
        )
    if len(executions) != len(calls):
        return Skipped(
            problem.id, "reference_failed", f"{len(executions)} of {len(calls)} calls answered"
        )
    compare = problem.compare
    if not compare.checker:
        compare = expected_rule([test.expected for test in tests], draft.abs_tol)
    meta = dict(problem.meta)
    if beyond:
        meta["calls_left_out"] = beyond
    return dataclasses.replace(problem, tests=tuple(tests), compare=compare, meta=meta)


async def _resolve_reading(item: Ambiguous, executor: Executor) -> Problem | Skipped:
    """Return the problem with the only reading of its tests under which a reference passes; tiers
    go in order. Without a reference, a single documented reading is taken. Else the row is a
    Skipped. Raises SandboxError."""
    problem, references = item.problem, item.problem.solutions[:MAX_REFERENCES]
    if not references:  # a row with a single reading needs no run
        documented = item.tiers[0]
        if len(documented) == 1 and documented[0].arguments in DOCUMENTED:
            return _chosen(problem, documented[0], "the only documented reading")
        names = ", ".join([reading.name for tier in item.tiers for reading in tier][:4])
        return Skipped(problem.id, "wrapping_unresolved", f"no solution to tell apart {names}")
    troubles: list[str] = []
    for tier in item.tiers:
        ways = [list(alive) for _, alive in groupby(tier, key=lambda reading: reading.arguments)]
        for reference in references:
            try:
                fitting = [
                    one
                    for way in ways
                    for one in await _survivors(problem, way, reference, executor, troubles)
                ]
            except values.ValueCodecError as error:
                return Skipped(problem.id, "value_not_plain", str(error))
            if len(fitting) > 1:
                names = ", ".join(reading.name for reading in fitting)
                detail = f"its solution passes under {names}"
                return Skipped(problem.id, "wrapping_ambiguous", detail)
            if fitting:
                return _chosen(problem, fitting[0], "its solution passes")
    detail = f"{len(references)} solutions tried; first {(*troubles, '')[0]}"
    return Skipped(problem.id, "no_reading_fits", detail)


def _chosen(problem: Problem, reading: Reading, why: str) -> Problem:
    """Return the problem with the tests of one reading, and its name with the reason in
    `meta["reading"]`."""
    meta = {**problem.meta, "reading": f"{reading.name} ({why})"}
    return dataclasses.replace(problem, tests=reading.tests, meta=meta)


async def _survivors(
    problem: Problem,
    readings: list[Reading],
    reference: str,
    executor: Executor,
    troubles: list[str],
) -> list[Reading]:
    """Return the readings under which `reference` passes every test. All take the same arguments,
    so one run decides for all; it ends when none is left. Failures are added to `troubles`. Raises
    ValueCodecError for arguments that cannot be written, and SandboxError."""
    calls = readings[0].tests
    for call in calls:
        values.dumps([call.args, dict(call.kwargs)])
    seen = 0
    async with closing(
        executor.run(program_job(problem, reference, calls, READING_LIMITS))
    ) as executions:
        async for execution in executions:
            if execution.status is not Status.OK or execution.value is None:
                how = f"{execution.status.value} {execution.detail[:120]}"
                troubles.append(f"{readings[0].arguments}: test {seen}: {how}")
                return []
            kept = []
            for reading in readings:
                message = compare_returned(execution.value, reading.tests[seen], problem.compare)
                if message is None:
                    kept.append(reading)
                else:
                    troubles.append(f"{reading.name}: test {seen}: {message}")
            readings, seen = kept, seen + 1
            if not readings or seen == len(calls):
                break
    return readings if seen == len(calls) else []


def _weight(item: Item) -> int:
    """Return the approximate size of an item's tests in memory, in bytes."""
    if isinstance(item, Skipped):
        return 0
    if isinstance(item, Problem):
        parts: Iterable[object] = item.tests
    else:
        parts = item.calls if isinstance(item, Draft) else item.tiers[0][0].tests
    return sum(
        len(part.input) + len(part.expected) if isinstance(part, StdinTest) else len(repr(part))
        for part in parts
    )
