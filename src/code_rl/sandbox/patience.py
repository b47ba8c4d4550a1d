"""An executor that outlasts an outage of the sandbox: it tells one lost submission from a sandbox that is gone, and waits for the latter.

A submission that fails with SandboxError may be to blame itself. So a control program runs: when the sandbox answers it, the error goes on to
the judge, which tries again and then masks the completion. When it does not, every submission that fails waits, the control is tried with
growing pauses, and what waited goes on from its first test without a result. After `patience_s` the run stops; nothing of it is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncIterator

from code_rl.errors import OutageError, SandboxError
from code_rl.sandbox.executor import Execution, Executor, Job, Limits, StdinInput, closing, retries_of

CONTROL = Job("print(input()[::-1])", (StdinInput(b"control\n"),), limits=Limits(cpu_s=10))
CONTROL_OUTPUT = b"lortnoc\n"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0

logger = logging.getLogger("code_rl.outages")


class PatientExecutor:
    """`inner`, with outages of up to `patience_s` seconds bridged, unless `stop` is set meanwhile. Belongs to one event loop."""

    def __init__(self, inner: Executor, patience_s: float, stop: asyncio.Event | None = None) -> None:
        self._inner, self._patience_s, self._stop = inner, patience_s, stop or asyncio.Event()
        self._outage: asyncio.Task[bool] | None = None

    @property
    def description(self) -> str:
        """The executor's own."""
        return self._inner.description

    @property
    def retries(self) -> int:
        """The executor's own."""
        return retries_of(self._inner)

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        """As `Executor.run`; raises OutageError when the sandbox stays away."""
        seen = 0
        while True:
            rest = dataclasses.replace(job, cases=job.cases[seen:]) if seen else job
            try:
                async with closing(self._inner.run(rest)) as executions:
                    async for execution in executions:
                        seen += 1
                        yield execution
                return
            except SandboxError as error:
                if not await self._bridged(error):
                    raise

    async def aclose(self) -> None:
        """Stop waiting, and close the executor."""
        if self._outage is not None:
            self._outage.cancel()
            await asyncio.wait([self._outage])
        await self._inner.aclose()

    async def _bridged(self, error: SandboxError) -> bool:
        """False when the sandbox answers at once; True when it was gone and is back. All who ask meanwhile wait for one answer."""
        if self._outage is None or self._outage.done():
            self._outage = asyncio.create_task(self._wait(error))
            self._outage.add_done_callback(_seen)
        return await asyncio.shield(self._outage)

    async def _wait(self, error: SandboxError) -> bool:
        began = time.monotonic()
        pause_s = min(FIRST_PAUSE_S, self._patience_s / 20)
        waited = False
        while (trouble := await self._trouble()) is not None:
            away = time.monotonic() - began
            if self._stop.is_set():
                raise OutageError(f"the sandbox does not answer ({trouble}), and the run was asked to stop") from error
            if away > self._patience_s:
                raise OutageError(
                    f"the sandbox has not answered for {away:.0f} s (sandbox_patience={self._patience_s:g}): {trouble}"
                ) from error
            if not waited:
                waited = True
                logger.warning("the sandbox does not answer (%s); waiting for up to %g s", trouble, self._patience_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), min(pause_s, max(self._patience_s - away, 0.01)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        if waited:
            logger.warning("the sandbox answers again after %.0f s", time.monotonic() - began)
        return waited

    async def _trouble(self) -> str | None:
        """What is wrong with the sandbox, by a program whose answer is known; None when it is well."""
        try:
            async with closing(self._inner.run(CONTROL)) as executions:
                answers = [execution async for execution in executions]
        except SandboxError as error:
            return str(error)
        outputs = [answer.stdout for answer in answers]
        return None if outputs == [CONTROL_OUTPUT] else f"a control program came back with {answers!r:.200}"


def _seen(outage: asyncio.Task[bool]) -> None:
    """Look at the outcome, which nobody may be waiting for any more."""
    if not outage.cancelled():
        outage.exception()
