"""From a request for a whole job to the lines of its executions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from code_rl.grading.sandbox.executor import Executor, Job
from code_rl.grading.sandbox.fusion.jobs import ALIVE_S, job_from_json, last_line, line_of
from code_rl.grading.sandbox.server.run_code import MalformedRequestError, RunLimits
from code_rl.util.concurrency import closing
from code_rl.util.errors import CodeRLError

MOST_OPEN_FILES, MOST_FILE_MB = 4096, 1 << 16


def read_job(body: bytes, limits: RunLimits) -> Job:
    """Read a job. Raises MalformedRequestError for an unreadable one, and for one whose limits are
    above the server's own; limits are not lowered."""
    try:
        job = job_from_json(json.loads(body))
        asked = job.limits
        for setting, value, most in (
            ("memory_mb", asked.memory_mb, limits.memory_mb),
            ("max_output_mb", asked.output_bytes >> 20, limits.output_bytes >> 20),
            ("processes", asked.processes, limits.processes),
            ("max_run_s", asked.wall_cap_s, limits.longest_s),
            ("max_run_s", asked.cpu_s, limits.longest_s),
            ("open files", asked.open_files, MOST_OPEN_FILES),
            ("megabytes of a file", asked.file_mb, MOST_FILE_MB),
        ):
            if not 0 <= value <= most:  # also for NaN
                raise ValueError(f"{value:g} is not from 0 to the server's {setting}={most:g}")
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise MalformedRequestError.of("job", f"{error}") from error
    return job


async def job_lines(
    sandbox: Executor, job: Job, turn: asyncio.Semaphore
) -> AsyncGenerator[bytes, None]:
    """Yield a line for each execution, an empty one after 10 s without any, and the last one, which
    has the failure if there is one. The job runs while it holds `turn`. Closing the iterator stops
    it."""

    async def executions() -> AsyncGenerator[bytes, None]:
        """Yield the line of each execution, and the last line, with the failure that ended the job,
        if any."""
        try:
            async with turn, closing(sandbox.run(job)) as found:
                async for execution in found:
                    yield line_of(execution)
        except CodeRLError as error:
            yield last_line(error)
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
