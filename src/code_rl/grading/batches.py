"""Call tests of one program that share a process, so that hundreds of them need few processes.

The first test runs alone. Then calls are made in growing batches. A batch is one test of the
sandbox, under the limits of one call: all its calls together may use the CPU time, memory and
output that each of them may use alone. Whatever ends a batch early (an exception, an exit, a limit)
is no result, and ends the batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import replace

from code_rl.grading.sandbox.executor import (
    CallInput,
    CaseInput,
    Execution,
    Executor,
    Job,
    Status,
    case_bytes,
)
from code_rl.grading.submission import executions_of
from code_rl.grading.values import ValueCodecError
from code_rl.util.concurrency import closing

FEWEST, FIRST_BATCH, GROWTH, LARGEST_BATCH = 10, 32, 4, 512
LARGEST_BYTES = 1 << 20
"""Bytes of arguments in one batch."""
CPU_SHARE = 0.5
"""A batch is planned for at most this share of the CPU limit."""
_DIGITS = 18


async def executions_together(
    executor: Executor, job: Job
) -> AsyncGenerator[tuple[Execution | None, bool], None]:
    """Do the same as `executions_of`, with calls in batches. Yield each execution, in the order of
    the cases, with True if its process was its own. None stands for the first call without a result
    in its batch; it is the last.

    `cpu_s` of a call in a batch is its own time, as its process measured it, and the time that the
    batch took beside its calls, which a fresh process would also take. With fewer than 10 tests, or
    cases that cannot share a process, every process is its own. Raises SandboxError as
    `executions_of` does.
    """
    texts, done, call_s = _texts(job), 0, 0.0
    while done < len(job.cases):
        most = int(CPU_SHARE * job.limits.cpu_s / call_s) if call_s else LARGEST_BATCH
        if len(texts) < FEWEST or (most < 2 and done <= 1):  # nothing was shared so far
            rest = replace(job, cases=job.cases[done:])
            async with closing(executions_of(executor, rest)) as executions:
                async for execution in executions:
                    yield execution, True
            return
        sizes = _sizes(texts, done, max(2, most))
        cases = tuple(_cases(job.cases[done:], texts[done:], sizes))
        async with closing(executions_of(executor, replace(job, cases=cases))) as executions:
            async for execution in executions:
                size = sizes.pop(0)
                found = [execution] if size == 1 else _split_batch(execution, size)
                for each in found:
                    yield each, size == 1
                if len(found) < size:
                    yield None, False
                    return
                if execution.status is Status.COMPILE_ERROR:
                    return
                done, call_s = done + size, execution.cpu_s / size
                await asyncio.sleep(0)
                if sizes and sizes[0] > 1 and call_s * sizes[0] > job.limits.cpu_s:
                    break  # plan smaller batches


async def answers_of(executor: Executor, job: Job) -> list[Execution]:
    """Return one execution for each call of a trusted program: of batches if every call has a value
    there, else each call is made alone, and every status is possible. Raises SandboxError."""
    answers: list[Execution] = []
    async with closing(executions_together(executor, job)) as executions:
        async for execution, _ in executions:
            if execution is None or execution.status is not Status.OK:
                break
            answers.append(execution)
        else:
            return answers
    return [execution async for execution in executor.run(job)]


def _texts(job: Job) -> Sequence[bytes]:
    """Return each call as its bytes, or nothing if these cases cannot share a process: other cases
    than plain calls, files, or a value that cannot be encoded."""
    plain = [case for case in job.cases if isinstance(case, CallInput) and case.calls is None]
    if len(plain) < len(job.cases) or job.files or job.fetch:
        return ()
    try:
        return [case_bytes(case) for case in plain]
    except ValueCodecError:  # the executor says which
        return ()


def _sizes(texts: Sequence[bytes], done: int, most: int) -> list[int]:
    """Return the sizes of the batches from test `done` on, which cover all the rest; 1 is a call
    alone. Test 0 is always alone.

    Batches grow from 32 calls by a factor of 4 up to 512, with at most `most` calls, except that a
    last call joins the batch before it. A batch is closed once its arguments reach 1 MiB.
    """
    sizes, room = [1] * (done == 0), FIRST_BATCH
    at = done + len(sizes)
    while at < len(texts):
        size, held = 1, len(texts[at])
        while at + size < len(texts) and size < min(room, most) and held < LARGEST_BYTES:
            held += len(texts[at + size])
            size += 1
        size += size > 1 and at + size == len(texts) - 1  # no last call alone
        sizes.append(size)
        at, room = at + size, min(room * GROWTH, LARGEST_BATCH)
    return sizes


def _cases(
    cases: Sequence[CaseInput], texts: Sequence[bytes], sizes: Sequence[int]
) -> Iterator[CaseInput]:
    """Yield one case for each batch: the case itself for a size of 1, else a message of all its
    calls, which `runner` makes in order. `cases`, `texts` and `sizes` begin at the same test."""
    at = 0
    for size in sizes:
        if size == 1:
            yield cases[at]
        else:
            calls = b",".join(texts[at : at + size])
            yield CallInput((), message=b'[[],{},{"batch":[%s]}]' % calls)
        at += size


def _split_batch(execution: Execution, size: int) -> list[Execution]:
    """Return one execution per call of a batch of `size` calls, up to the first without a value;
    none if the batch itself failed.

    The value is lines of CPU nanoseconds and an encoded value (`runner`), which the program may
    have forged. Each call gets its own CPU time and all of the batch's time beside its calls; wall
    time is divided evenly.
    """
    if execution.status is not Status.OK or not execution.value:
        return []
    # The program may have forged the value: no more of it is looked at than calls need.
    lines = [line.partition(b" ") for line in execution.value.split(b"\n", size)[:size]]
    # And these times, by which nothing is decided.
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
