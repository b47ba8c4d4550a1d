"""An Executor on other machines, whatever they are: retries around a pool of them. A trusted job,
which may see expected outputs, runs on this machine."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Protocol

from code_rl.grading.sandbox.executor import Execution, Job, require_linux
from code_rl.grading.sandbox.pooled import Pool
from code_rl.grading.sandbox.retries import Retries
from code_rl.util.concurrency import closing
from code_rl.util.errors import IsolationError

if TYPE_CHECKING:
    from code_rl.grading.sandbox.local.pool import EmbeddedSandbox

logger = logging.getLogger("code_rl.grading.sandbox")


class Fleet(Protocol):
    """The machines of a remote executor: `pool` has those that run programs."""

    pool: Pool[Any]
    oversubscription: float
    """See `Retries`."""

    @property
    def description(self) -> str:
        """One line about the machines for users."""
        ...

    @property
    def slots(self) -> int:
        """The number of submissions that run at once, on all machines."""
        ...

    async def ready(self) -> None:
        """Fill the pool, on the first call."""
        ...

    async def check(self) -> None:
        """Raise SandboxError if no machine can run programs."""
        ...

    async def aclose(self) -> None:
        """Release everything that `ready` made. Idempotent."""
        ...


class RemoteExecutor:
    """Runs submissions on a fleet. It belongs to one event loop.

    It waits out outages of up to `outage_timeout_s` seconds. `stop` ends such a wait.
    """

    def __init__(
        self, fleet: Fleet, outage_timeout_s: float, stop: asyncio.Event | None = None
    ) -> None:
        self._fleet = fleet
        # A machine repeats a test that only slept by itself.
        self._retries = Retries(
            fleet.pool.attempt,
            outage_timeout_s=outage_timeout_s,
            oversubscription=fleet.oversubscription,
            repeats_sleepers=False,
            stop=stop,
        )
        self._here: EmbeddedSandbox | None = None

    @property
    def description(self) -> str:
        """One line about the machines for users."""
        return self._fleet.description

    @property
    def slots(self) -> int:
        """The number of submissions that run at once, on all machines."""
        return self._fleet.slots

    @property
    def retries(self) -> int:
        """The number of failed attempts so far."""
        return self._retries.count

    async def check(self) -> None:
        """Raise SandboxError, with the reasons, if no machine can run programs."""
        await self._fleet.check()

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        """Yield one Execution per case, in order; see the Executor contract."""
        if job.trusted:
            self._here = self._here or _sandbox_here()
            executions = self._here.run(job)
        else:
            await self._fleet.ready()
            executions = self._retries.run(job)
        async with closing(executions):
            async for execution in executions:
                yield execution

    async def aclose(self) -> None:
        """Release everything. Idempotent."""
        await self._retries.aclose()
        await self._fleet.pool.aclose()
        await self._fleet.aclose()
        if self._here is not None:
            await self._here.aclose()


def _sandbox_here() -> EmbeddedSandbox:
    """Return the sandbox for trusted jobs. These are the problem author's programs, so weak
    isolation is better than no checker. Raises ConfigError if this machine has no embedded
    sandbox."""
    require_linux(
        "a problem's checker, which runs on this machine,",
        "leave such problems out (code-rl prepare checkers=drop), or start this command on Linux",
    )
    from code_rl.grading.sandbox.local.pool import EmbeddedSandbox

    try:
        return EmbeddedSandbox()
    except IsolationError as error:
        logger.warning("checkers run on this machine without isolation: %s", error)
        return EmbeddedSandbox(isolation="none")
