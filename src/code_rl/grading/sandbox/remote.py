"""An Executor on other machines, whatever they are: retries around a pool of them. A trusted job,
which may see expected outputs, runs on this machine."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from code_rl.grading.sandbox.blame import Retries
from code_rl.grading.sandbox.executor import Execution, Job, require_linux
from code_rl.grading.sandbox.pooled import Pool
from code_rl.util.concurrency import closing
from code_rl.util.errors import IsolationError

if TYPE_CHECKING:
    from code_rl.grading.sandbox.local.pool import EmbeddedSandbox

logger = logging.getLogger("code_rl.grading.sandbox")


class RemoteExecutor(abc.ABC):
    """Runs submissions on the machines of `pool`. It belongs to one event loop.

    It waits out outages of up to `outage_timeout_s` seconds. `stop` ends such a wait.
    """

    pool: Pool[Any]
    oversubscription = 0.0
    """See `Retries`."""

    def __init__(self, outage_timeout_s: float, stop: asyncio.Event | None) -> None:
        """Make an empty pool, which `ready` fills."""
        self.pool = Pool()
        # A machine repeats a test that only slept by itself.
        self._retries = Retries(
            self.pool.attempt,
            outage_timeout_s=outage_timeout_s,
            oversubscription=self.oversubscription,
            repeats_sleepers=False,
            stop=stop,
        )
        self._here: EmbeddedSandbox | None = None

    @abc.abstractmethod
    async def ready(self) -> None:
        """Fill the pool, on the first call; later calls wait for that. `run` calls it before each
        job."""

    @abc.abstractmethod
    async def release(self) -> None:
        """Release everything that `ready` made. Idempotent."""

    @property
    def retries(self) -> int:
        """The number of failed attempts so far."""
        return self._retries.count

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        """Yield one Execution per case, in order, as `Executor.run` says. A trusted job runs in a
        sandbox of this machine, made on first use, and never elsewhere. Raises ConfigError if this
        machine can have none."""
        if job.trusted:
            self._here = self._here or _sandbox_here()
            executions = self._here.run(job)
        else:
            await self.ready()
            executions = self._retries.run(job)
        async with closing(executions):
            async for execution in executions:
                yield execution

    async def aclose(self) -> None:
        """Release everything: the pool's machines, the wait for an outage, and the sandbox for
        trusted jobs. Idempotent."""
        await self._retries.aclose()
        await self.pool.aclose()
        await self.release()
        if self._here is not None:
            await self._here.aclose()


def _sandbox_here() -> EmbeddedSandbox:
    """Return a new sandbox for trusted jobs, which the caller closes. These are the problem
    author's programs, so weak isolation, with a warning in the log, is better than no checker.
    Raises ConfigError if this machine has no embedded sandbox."""
    require_linux(
        "a problem's checker, which runs on this machine,",
        "leave such problems out, or start this command on Linux",
    )
    from code_rl.grading.sandbox.local.pool import EmbeddedSandbox

    try:
        return EmbeddedSandbox()
    except IsolationError as error:
        logger.warning("checkers run on this machine without isolation: %s", error)
        return EmbeddedSandbox(isolation="none")
