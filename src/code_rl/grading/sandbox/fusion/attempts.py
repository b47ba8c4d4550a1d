"""One attempt at a submission, in chunks of tests; each chunk is a request to the least loaded
server.

The harness and the program may run under the same account in a remote sandbox, so a program can
kill or stop the harness. The harness writes the result file last, and results count only if it
reached its end. `sandbox.retries` distinguishes two kinds of failure:

- Outage: no connection, an HTTP error, an unreadable answer, the server's own SandboxError.
- Lost result: the answer is valid but its result file lacks the test, while a probe program on
  the same server returns its result; or the connection broke, or the answer was late, after the
  request was sent.

The client waits for a busy server and halves a chunk that is too large. If a chunk ran out of time,
its unfinished test is sent again with ample time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp

from code_rl.grading.sandbox.executor import Execution, Job, Status
from code_rl.grading.sandbox.fusion.harness import RESULT_FILE
from code_rl.grading.sandbox.fusion.payload import ALONE_SPARE_S, SPARE_S, Chunk, make_chunk
from code_rl.grading.sandbox.fusion.protocol import TIME_LIMIT_EXCEEDED
from code_rl.grading.sandbox.fusion.records import Records, read_records
from code_rl.grading.sandbox.fusion.transport import (
    OverloadedError,
    TooLargeError,
    TroubleError,
    UnansweredError,
    post_run,
)
from code_rl.grading.sandbox.pooled import Server, ServerPool
from code_rl.grading.sandbox.retries import CONTROL, CONTROL_OUTPUT, LostError, RefusedError

CHUNK_GROWTH = 4
LARGEST_CHUNK = 64
GAMBLE_AFTER_S = 1.0
"""Seconds without a healthy server after which an unhealthy one is tried."""


@dataclass(frozen=True, slots=True)
class Attempts:
    """Attempts on the servers of `pool`. `busy_s` is the total time that a busy server may
    ask to wait, `grace_s` the time for an answer beyond its run's own limit, both in seconds."""

    session: aiohttp.ClientSession
    pool: ServerPool[Server]
    busy_s: float
    grace_s: float

    async def run(self, job: Job, alone: bool) -> AsyncIterator[Execution]:
        """Yield executions in order, as a `retries.Attempt`. `alone` sends one test per request,
        ahead of all waiting ones.

        Raises SandboxError.
        """
        start, size, ample = 0, 1, False
        waited_s = 0.0
        while start < len(job.cases):
            spare_s = ALONE_SPARE_S if alone else SPARE_S
            chunk = make_chunk(
                job,
                start,
                size,
                ample_time=ample,
                spare_s=spare_s,
                longest_s=self.pool.longest_run_s,
            )
            try:
                records = await self._try(chunk, ahead=alone or start > 0, ample=ample)
            except OverloadedError as error:
                # Only the pauses that the server asks for: a slow client is not a busy server.
                pause_s = error.retry_after_s * random.uniform(1.0, 1.5)
                waited_s += pause_s
                if waited_s > self.busy_s:
                    raise TroubleError(
                        f"the server stayed busy for {self.busy_s:g} s: {error}"
                    ) from error
                await asyncio.sleep(pause_s)
                continue
            except TooLargeError:
                if chunk.count == 1:
                    raise
                size = chunk.count // 2
                continue
            waited_s = 0.0
            for execution in records.executions:
                yield execution
                if execution.status is Status.COMPILE_ERROR:
                    return
            start += len(records.executions)
            ample = not records.executions
            clean = records.end in ("done", "bytes") and not alone
            size = min(size * CHUNK_GROWTH, LARGEST_CHUNK) if clean else 1

    async def _try(self, chunk: Chunk, ahead: bool, ample: bool) -> Records:
        """Send one request. If it ran out of time the records have no executions."""
        async with self.pool.slot(priority=-int(ahead), outage_timeout_s=GAMBLE_AFTER_S) as server:
            try:
                records, stopped = await self._exchange(server, chunk)
                lost = not records.executions and (ample or records.end != "deadline")
                if lost:
                    await self._control(server)
            except (TroubleError, UnansweredError) as error:
                self.pool.failed(server, str(error))
                raise
            self.pool.succeeded(server)
            if not lost:
                return records
            blame = (
                Status.TIME_LIMIT if stopped or records.end == "deadline" else Status.RUNTIME_ERROR
            )
            raise LostError(
                f"it removed its results or stopped their writer ({records.end or records.detail})",
                blame,
            )

    async def _exchange(self, server: Server, chunk: Chunk) -> tuple[Records, bool]:
        """Return the content of the result file, and whether the server had to stop the run.

        Results count only if the harness reached its end: it writes the file when the programs are
        dead.
        """
        answer = await post_run(
            self.session, server.name, chunk.request, chunk.request.run_timeout + self.grace_s
        )
        stopped = answer.run_result is not None and answer.run_result.status == TIME_LIMIT_EXCEEDED
        ended = answer.run_result is not None and answer.run_result.return_code == 0
        data = answer.files.get(RESULT_FILE, b"") if ended else b""
        return read_records(data, chunk.nonce, chunk.count), stopped

    async def _control(self, server: Server) -> None:
        """Run the probe program on the same server. Raises TroubleError if its result is lost
        too."""
        records, _ = await self._exchange(
            server,
            make_chunk(CONTROL, 0, 1, spare_s=ALONE_SPARE_S, longest_s=self.pool.longest_run_s),
        )
        if records.end == "error" and records.detail.startswith("PermissionError"):
            raise RefusedError(
                f"{server.name}: the harness may not fork there ({records.detail}); a server of "
                "ours needs isolation=full or none"
            )
        if not records.executions or records.executions[0].stdout != CONTROL_OUTPUT:
            raise TroubleError(f"{server.name}: a probe program came back broken: {records.detail}")
