"""Threads that compute: one that runs operations in order, with futures of Tinker's shape, and the
end of them all.

A thread that is inside torch when the interpreter goes takes the process down with `abort`: exit
code 134, whatever the program meant to say. So computing threads are started here, and long
operations pass `safe_point` every few milliseconds.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from code_rl.util.errors import BackendError

# For what has no safe points: a model that is being loaded, a checkpoint that is being written.
GRACE_S = 30.0

_ending = threading.Event()
_lock = threading.Lock()
_threads: dict[threading.Thread, Callable[[], object]] = {}
T = TypeVar("T")
_Job = tuple[Callable[[], Any], "Future[Any]"]


def start_thread(
    name: str, work: Callable[[], object], wake: Callable[[], object]
) -> threading.Thread:
    """Start a daemon thread that is joined before the interpreter exits.

    `wake` makes `work` return when it waits for work; neither may keep alive the object that owns
    the thread.
    """

    def run() -> None:
        try:
            work()
        finally:
            with _lock:
                _threads.pop(thread, None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    with _lock:
        # Handlers run in reverse order: this one before those that torch registered when it was
        # loaded.
        atexit.unregister(end_threads)
        atexit.register(end_threads)
        thread.start()
        _threads[thread] = wake
    return thread


def safe_point() -> None:
    """Raise BackendError when the process is ending; begun work is not finished then."""
    if _ending.is_set():
        raise BackendError(
            "the process is ending: the embedded engine stopped in the middle of this request"
        )


def end_threads() -> None:
    """Have every thread stop at its next safe point, and wait for them, `GRACE_S` at most."""
    _ending.set()
    with _lock:
        waited = dict(_threads)
    for wake in waited.values():
        wake()
    end = time.monotonic() + GRACE_S
    for thread in waited:
        thread.join(max(0.0, end - time.monotonic()))


class EngineWorker:
    """FIFO executor on one daemon thread, started with the first operation.

    An operation that was cancelled before it began is skipped; one that began runs to its end,
    unless the process ends first (`ending`). The thread ends after `close`, or when nothing refers
    to the worker any more.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def submit(self, operation: Callable[[], T]) -> AwaitableConcurrentFuture[T]:
        """Queue `operation`; raises BackendError after `close`."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise BackendError(f"{self._name} is closed and accepts no further requests")
            self._jobs.put((operation, future))
            if self._thread is None:
                jobs = self._jobs
                self._thread = start_thread(self._name, lambda: _run(jobs), lambda: jobs.put(None))
        return AwaitableConcurrentFuture(future)

    def close(self) -> None:
        """Refuse new operations; those already queued still run."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._jobs.put(None)


class Inline:
    """Runs each operation at once in the caller's thread, for a caller that has its own queue and
    thread."""

    def submit(self, operation: Callable[[], T]) -> AwaitableConcurrentFuture[T]:
        """Run `operation`; the future is finished when this returns."""
        future: Future[T] = Future()
        run_into(future, operation)
        return AwaitableConcurrentFuture(future)

    def close(self) -> None:
        """There is nothing to end."""


def _run(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        operation, future = job
        run_into(future, operation)
        # Nothing may keep a client alive while the thread waits.
        del job, operation, future


def run_into(future: Future[T], operation: Callable[[], T]) -> None:
    """Run `operation` unless the future was cancelled, and put its result or exception into the
    future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        safe_point()
        result = operation()
    except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits for the future
        future.set_exception(error)
    else:
        future.set_result(result)


def submitted(call: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
    """The `…_async` form of a method that submits a request, for callers that await the
    submission."""

    async def submit(*args: Any, **kwargs: Any) -> T:
        return call(*args, **kwargs)

    return submit


def awaited(
    call: Callable[..., AwaitableConcurrentFuture[T]],
) -> Callable[..., Coroutine[Any, Any, T]]:
    """The `…_async` form of a method that makes something, awaited."""

    async def wait(*args: Any, **kwargs: Any) -> T:
        return await call(*args, **kwargs).result_async()

    return wait
