"""Waiting for several coroutines without leaving any running, and background tasks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import signal
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Sequence,
)
from typing import Any, TypeVar

from code_rl.util.errors import BackendError

Result = TypeVar("Result")
LEAST_IN_FLIGHT = 16
IN_FLIGHT_PER_PLACE = 2


def wait_for(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end and return its result, or raise its exception. Inside a running
    event loop, which it blocks, it runs on a loop in another thread. Ctrl-C cancels it and raises
    KeyboardInterrupt."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    begun: concurrent.futures.Future[asyncio.Task[Any] | None] = concurrent.futures.Future()

    async def whole() -> Result:
        """Run the coroutine and tell the other thread its task, by which it is cancelled."""
        begun.set_result(asyncio.current_task())
        return await coroutine

    with concurrent.futures.ThreadPoolExecutor(1, "code-rl") as pool:
        result = pool.submit(asyncio.run, whole())
        try:
            return result.result()
        except KeyboardInterrupt:
            task = begun.result()
            if task is not None:
                task.get_loop().call_soon_threadsafe(task.cancel)
            raise


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Make Ctrl-C end the block, which waits for a network without awaiting, by KeyboardInterrupt.
    A running event loop would first let the block finish. Outside the main thread it does nothing;
    the former handler is put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def on_loop_signal(
    loop: asyncio.AbstractEventLoop, number: signal.Signals, call: Callable[..., object], *args: Any
) -> None:
    """Have the loop call `call(*args)` on a signal, also on Windows, whose loops do not support
    signals. It replaces an earlier handler, and works only in the main thread."""
    try:
        loop.add_signal_handler(number, call, *args)
    except NotImplementedError:
        signal.signal(number, lambda *_: loop.call_soon_threadsafe(call, *args))


def forget_signals(loop: asyncio.AbstractEventLoop, numbers: Iterable[signal.Signals]) -> None:
    """Undo `on_loop_signal`: the signals end the process again. A handler from before it is not put
    back."""
    for number in numbers:
        try:
            loop.remove_signal_handler(number)
        except NotImplementedError:
            signal.signal(number, signal.SIG_DFL)


async def gather_or_cancel(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Run coroutines concurrently and return their results in order. If one fails, or the caller
    is cancelled, cancel the others, wait for them, and raise the failure. No task outlives the
    call."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel unfinished tasks and wait until all have ended. Their exceptions are dropped, so the
    caller must have raised or noted the first one."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def gather_tasks(tasks: Sequence[asyncio.Task[Result]]) -> list[Result]:
    """Wait for running tasks and return their results in order. Raises the first failure as soon as
    it happens; the other tasks go on, since the caller owns them."""
    if tasks:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    return [task.result() for task in tasks]


@contextlib.contextmanager
def cancelled_by_service() -> Iterator[None]:
    """Turn a cancellation in the block into a BackendError, unless this task itself was cancelled:
    a service cancelled a request.

    Otherwise the task would count as cancelled by its owner, and a TaskGroup would ignore that
    silently.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise BackendError("a request was cancelled by the service") from None


class BackgroundTasks:
    """Jobs that run one after the other, concurrently with the body of `async with`. With `waits`
    each runs before `do` returns.

    The first failure cancels the body and is raised at its end. Leaving without an error waits for
    all jobs.
    """

    def __init__(self, *, waits: bool) -> None:
        """With `waits`, each job runs before `do` returns, so nothing runs in the background."""
        self._waits = waits
        self._tasks = asyncio.TaskGroup()
        self._last: asyncio.Task[None] | None = None

    async def __aenter__(self) -> BackgroundTasks:
        """Begin; `do` needs this. Jobs run in the current event loop."""
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        """Wait for all jobs, or cancel them if the body failed. Raise the first failure alone,
        without a group around it."""
        first: BaseException | None = None
        try:
            await self._tasks.__aexit__(*raised)
        except BaseExceptionGroup as group:
            first = group.exceptions[0]
        if first is not None:
            raise first

    async def do(self, job: Callable[[], Awaitable[None]]) -> None:
        """Queue a job behind the earlier ones and return at once; with `waits`, run it and return
        when it has ended. Raises the job's exception only with `waits`."""
        if self._waits:
            await job()
        else:
            self._last = self._tasks.create_task(self._after(self._last, job))

    async def rest(self) -> None:
        """Wait until every queued job has ended. Failures are not raised here but at the end of
        `async with`."""
        if self._last is not None:
            await asyncio.wait([self._last])

    async def _after(
        self, earlier: asyncio.Task[None] | None, job: Callable[[], Awaitable[None]]
    ) -> None:
        """Run a job once the earlier one has ended. It is not run if that failed. Raises
        BackendError if a service cancels a request of the job."""
        with cancelled_by_service():
            if earlier is not None:
                await earlier
            await job()


def default_concurrency(slots: int | None = None) -> int:
    """Return a number of programs in flight that keeps all `slots` of an executor filled: twice as
    many, 16 at least; the executor queues the surplus. `slots` None is two for each processor of
    this machine."""
    return max(LEAST_IN_FLIGHT, IN_FLIGHT_PER_PLACE * (slots or 2 * (os.cpu_count() or 1)))


@contextlib.asynccontextmanager
async def closing(items: AsyncIterator[Result]) -> AsyncIterator[AsyncIterator[Result]]:
    """Yield an iterator, and close it on exit if it has `aclose`, which stops its producer early.
    Leaving a loop over it by `break` or an exception would not."""
    try:
        yield items
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()
