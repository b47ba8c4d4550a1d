"""Waiting for several coroutines without leaving any behind, and work beside a loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

Result = TypeVar("Result")
LEAST_IN_FLIGHT = 16
IN_FLIGHT_PER_PLACE = 2


async def together(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run them concurrently; results in their order. When one fails, the others are cancelled and waited for, then it is raised."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await abandon(tasks)


async def abandon(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel what is not done and wait until all have ended. Their own exceptions are dropped: the caller has the first."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def results(tasks: Sequence[asyncio.Task[Result]]) -> list[Result]:
    """Wait for tasks that run already; results in their order, or the first failure as soon as it happens."""
    if tasks:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    return [task.result() for task in tasks]


class SideWork:
    """Jobs that run one after the other, beside the loop or (`waits`) before `do` returns. The first error ends it, and the loop."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._jobs: asyncio.Queue[Callable[[], Awaitable[None]] | None] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._loop_task: asyncio.Task[Any] | None = None
        self._interrupted = self._abandoned = False

    def interrupts(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel this task as soon as a job fails, wherever it waits: a step may take long, and be paid for in vain."""
        self._loop_task = task

    async def do(self, job: Callable[[], Awaitable[None]]) -> None:
        """Run a job, or queue it; raises what an earlier one raised."""
        if self._waits:
            await job()
            return
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
            self._worker.add_done_callback(self._failed)
        if self._worker.done():
            self._worker.result()
        self._jobs.put_nowait(job)

    async def finish(self) -> None:
        """Wait until all jobs are done; raises what one of them raised."""
        if self._worker is not None:
            self._jobs.put_nowait(None)
            try:
                await self._worker
            except BaseException as error:
                self.explain(type(error))
                raise

    def explain(self, kind: type[BaseException]) -> None:
        """When the loop ends because a job failed, raise what the job raised."""
        if self._interrupted and self._loop_task is not None and self._worker is not None:
            self._interrupted = False
            self._loop_task.uncancel()
            if issubclass(kind, asyncio.CancelledError):
                self._worker.result()

    async def abandon(self) -> None:
        """Cancel what is not done."""
        self._abandoned = True
        if self._worker is not None:
            await abandon([self._worker])

    def _failed(self, worker: asyncio.Task[None]) -> None:
        failed = worker.cancelled() or worker.exception() is not None
        if failed and not self._abandoned and self._loop_task is not None:
            self._interrupted = True
            self._loop_task.cancel()

    async def _work(self) -> None:
        while (job := await self._jobs.get()) is not None:
            await job()


def default_concurrency(executor: object = None) -> int:
    """Enough programs in flight to keep all places of `executor` filled; it holds back what is too many."""
    places = getattr(executor, "places", None) or getattr(executor, "concurrency", None) or 2 * (os.cpu_count() or 1)
    return max(LEAST_IN_FLIGHT, IN_FLIGHT_PER_PLACE * int(places))
