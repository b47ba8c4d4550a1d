"""Threads that compute: one runs operations in order, with futures like Tinker's, and all are ended
with the process.

If a thread is inside torch when the interpreter exits, the process is aborted with exit code 134,
whatever the program's own exit code. So computing threads are started here, and long operations
pass `safe_point` every few milliseconds.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from code_rl.util.errors import BackendError

# For work without safe points: loading a model, writing a checkpoint.
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

    `wake` makes `work` return if it waits for work. Neither may hold a reference to the thread's
    owner.
    """

    def run() -> None:
        try:
            work()
        finally:
            with _lock:
                _threads.pop(thread, None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    with _lock:
        # Handlers run in reverse order: this one runs before those that torch registered when it
        # was loaded.
        atexit.unregister(end_threads)
        atexit.register(end_threads)
        thread.start()
        _threads[thread] = wake
    return thread


def safe_point() -> None:
    """Raise BackendError if the process is ending; work in progress is then abandoned."""
    if _ending.is_set():
        raise BackendError(
            "the process is ending: the embedded engine stopped in the middle of this request"
        )


def end_threads() -> None:
    """Make every thread stop at its next safe point, and wait at most `GRACE_S` for them."""
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

    An operation that is cancelled before it begins is skipped. One that has begun runs to its end,
    unless the process ends first (`ending`). The thread ends after `close`, or when the worker is
    no longer referenced.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        weakref.finalize(self, self._jobs.put, None).atexit = False

    def submit(self, operation: Callable[[], T]) -> AwaitableConcurrentFuture[T]:
        """Queue `operation`. Raises BackendError after `close`."""
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
    """Runs each operation at once in the caller's thread, for callers with their own queue and
    thread."""

    def submit(self, operation: Callable[[], T]) -> AwaitableConcurrentFuture[T]:
        """Run `operation`; the future is finished when this returns."""
        future: Future[T] = Future()
        run_into(future, operation)
        return AwaitableConcurrentFuture(future)

    def close(self) -> None:
        """Do nothing."""


def _run(jobs: queue.SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        operation, future = job
        run_into(future, operation)
        # Drop all references, so that a waiting thread keeps no client alive.
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
