"""From a request for a whole job to the lines of its executions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from code_rl.grading.sandbox.executor import Executor, Job
from code_rl.grading.sandbox.fusion.jobs import ALIVE_S, job_from_json, last_line, line_of
from code_rl.grading.sandbox.retries import RefusedError
from code_rl.grading.sandbox.server.requests import MalformedRequestError
from code_rl.grading.sandbox.server.runs import RunLimits
from code_rl.util.concurrency import closing
from code_rl.util.errors import SandboxError


def read_job(body: bytes, limits: RunLimits) -> Job:
    """Read a job. Raises MalformedRequestError for an unreadable one, and for one whose limits are
    above the server's own."""
    try:
        job = job_from_json(json.loads(body))
        asked = job.limits
        for setting, wanted, most in (
            ("memory_mb", asked.memory_mb, limits.memory_mb),
            ("max_output_mb", asked.output_bytes >> 20, limits.output_bytes >> 20),
            ("processes", asked.processes, limits.processes),
            ("max_run_s", asked.wall_cap_s, limits.longest_s),
        ):
            if wanted > most:
                raise ValueError(f"{wanted:g} is above the server's {setting}={most:g}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise MalformedRequestError.of("job", f"{error}") from error
    return job


async def job_lines(
    sandbox: Executor, job: Job, turn: asyncio.Semaphore
) -> AsyncGenerator[bytes, None]:
    """Yield a line for each execution, an empty one after `ALIVE_S` without any, and the last
    one."""

    async def executions() -> AsyncGenerator[bytes, None]:
        try:
            async with turn, closing(sandbox.run(job)) as found:
                async for execution in found:
                    yield line_of(execution)
        except SandboxError as error:
            yield last_line(str(error), isinstance(error, RefusedError))
        else:
            yield last_line()

    lines = executions()
    following = asyncio.ensure_future(anext(lines, None))
    try:
        while True:
            if not (await asyncio.wait([following], timeout=ALIVE_S))[0]:
                yield b"\n"
                continue
            line = following.result()
            if line is None:
                return
            yield line
            following = asyncio.ensure_future(anext(lines, None))
    finally:
        following.cancel()
        await asyncio.wait([following])
        await lines.aclose()
