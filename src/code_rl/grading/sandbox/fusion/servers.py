"""One Sandbox Fusion server as a member of a pool. Our own server, if it lets us, takes whole jobs
(`jobs`); any other gets the harness and the inputs (`payload`).

With the harness, the first test travels alone, so that a wrong program is cheap; then all others
in one request; a test without a result is sent once more, by itself. The harness and the program
may run under the same account there, so a program can kill or stop the harness: it writes the
result file last, and results count only if it reached its end. A lost result is the program's doing
only if a probe program on the same server returns its own (`sandbox.blame`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import aiohttp

from code_rl.grading.languages import PYTHON
from code_rl.grading.sandbox.blame import CONTROL, CONTROL_OUTPUT, only_slept
from code_rl.grading.sandbox.executor import Execution, Job, LostError, RefusedError, Status
from code_rl.grading.sandbox.fusion.harness import RESULT_FILE
from code_rl.grading.sandbox.fusion.jobs import post_job
from code_rl.grading.sandbox.fusion.payload import (
    Chunk,
    Records,
    execution_of_program,
    make_chunk,
    program_request,
    read_records,
)
from code_rl.grading.sandbox.fusion.protocol import (
    JOBS_HEADER,
    JOBS_PATH,
    PING_PATH,
    TIME_LIMIT_EXCEEDED,
    beside,
)
from code_rl.grading.sandbox.fusion.transport import (
    OverloadedError,
    TroubleError,
    ping,
    post_run,
)
from code_rl.grading.sandbox.pooled import Member
from code_rl.util.concurrency import closing


class FusionServer(Member):
    """The server at the `/run_code` address `url`. `busy_s` is the total time that it may ask to
    wait, `grace_s` the time for an answer beyond its run's own limit, both in seconds."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        slots: int,
        busy_s: float,
        grace_s: float,
        *,
        name: str | None = None,
    ) -> None:
        """Use a session that the caller opened and closes. `slots` is the number of requests at
        once; `name` (None: the URL) is for messages. Nothing is sent yet."""
        super().__init__(name or url, slots)
        self.session, self.url, self._busy_s, self._grace_s = session, url, busy_s, grace_s
        self.takes_jobs = False

    async def well(self) -> bool:
        """Return True if the server passes its health check within 3 s. Its answer sets
        `takes_jobs`."""
        answer = await ping(self.session, beside(self.url, PING_PATH))
        if answer is not None:
            self.takes_jobs = JOBS_HEADER in answer
        return answer is not None

    async def attempt(self, job: Job, alone: bool) -> AsyncIterator[Execution]:
        """Try `job` once and yield its executions in order. While the server asks for patience, it
        begins again after the last execution. `alone` sends one test per request to a server that
        is not ours.

        Raises LostError for a lost result, TroubleError if the server fails or stays busy for
        `busy_s`, RefusedError, IsolationError.
        """
        waited_s, done = 0.0, 0
        while True:
            rest = job.since(done)
            if self.takes_jobs:
                attempt = post_job(self.session, beside(self.url, JOBS_PATH), rest)
            elif job.language == PYTHON:
                attempt = self._harness(rest, alone)
            else:
                attempt = self._in_its_language(rest)
            try:
                async with closing(attempt) as executions:
                    async for execution in executions:
                        waited_s, done = 0.0, done + 1
                        yield execution
                return
            except OverloadedError as error:
                # Only the pauses that the server asks for: a slow client is not a busy server.
                pause_s = error.retry_after_s * random.uniform(1.0, 1.5)
                waited_s += pause_s
                if waited_s > self._busy_s:
                    raise TroubleError(
                        f"the server stayed busy for {self._busy_s:g} s: {error}"
                    ) from error
                await asyncio.sleep(pause_s)

    async def _in_its_language(self, job: Job) -> AsyncIterator[Execution]:
        """Yield executions of a program that the server compiles and runs itself, one request a
        test, up to a COMPILE_ERROR. It measures wall time only. Raises as `post_run` and
        `program_request` do."""
        for case in job.cases:
            request = program_request(job, case)
            patience_s = request.run_timeout + request.compile_timeout + self._grace_s
            answer = await post_run(self.session, self.url, request, patience_s)
            execution = execution_of_program(answer)
            yield execution
            if execution.status is Status.COMPILE_ERROR:
                return

    async def _harness(self, job: Job, alone: bool) -> AsyncIterator[Execution]:
        """Yield executions in order; `alone` sends one test per request. A test that only slept is
        sent once more, by itself. Raises LostError if the result of a single test is lost, and as
        `post_run` does."""
        start, single, slept = 0, True, -1
        while start < len(job.cases):
            chunk = make_chunk(job, start, 1 if single else len(job.cases))
            records = await self._try(chunk, single)
            single = alone or records.end not in ("done", "failed", "bytes")
            for execution in records.executions:
                if only_slept(execution, job.limits) and start > slept:
                    single, slept = True, start
                    break
                start += 1
                yield execution
                if execution.status is Status.COMPILE_ERROR:
                    return

    async def _try(self, chunk: Chunk, single: bool) -> Records:
        """Send one request and return its records. Raises LostError, which blames the program, if
        `single` and the result is lost although the probe program's is not; TroubleError if that is
        lost, too."""
        records, stopped = await self._exchange(chunk)
        if records.executions or not single:
            return records
        await self._control()
        late = stopped or records.end == "deadline"
        raise LostError(
            f"it removed its results or stopped their writer ({records.end or records.detail})",
            Status.TIME_LIMIT if late else Status.RUNTIME_ERROR,
        )

    async def _exchange(self, chunk: Chunk) -> tuple[Records, bool]:
        """Return the content of the result file, and True if the server had to stop the run. Raises
        as `post_run` does.

        Results count only if the harness reached its end: it writes the file when the programs are
        dead.
        """
        answer = await post_run(
            self.session, self.url, chunk.request, chunk.request.run_timeout + self._grace_s
        )
        stopped = answer.run_result is not None and answer.run_result.status == TIME_LIMIT_EXCEEDED
        ended = answer.run_result is not None and answer.run_result.return_code == 0
        data = answer.files.get(RESULT_FILE, b"") if ended else b""
        return read_records(data, chunk.nonce, chunk.count), stopped

    async def _control(self) -> None:
        """Run the probe program. Raises TroubleError if its result is lost too, RefusedError if the
        harness may not fork there."""
        records, _ = await self._exchange(make_chunk(CONTROL, 0, 1))
        if records.end == "error" and records.detail.startswith("PermissionError"):
            raise RefusedError(
                f"{self.name}: the harness may not fork there ({records.detail}); a server of "
                "ours needs isolation=full or none"
            )
        if not records.executions or records.executions[0].stdout != CONTROL_OUTPUT:
            raise TroubleError(f"{self.name}: a probe program came back broken: {records.detail}")
