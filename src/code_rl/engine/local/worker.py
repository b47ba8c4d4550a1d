"""Threads that compute: each runs operations in lanes, with futures like Tinker's. All are ended
with the process.

If a thread is inside torch when the interpreter exits, the process is aborted with exit code 134,
whatever the program's own exit code. So computing threads are started here, and long operations
pass `safe_point` every few milliseconds.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from code_rl.util.errors import BackendError

# For work without safe points: loading a model, writing a checkpoint.
GRACE_S = 30.0

_ending = threading.Event()
_lock = threading.Lock()
_threads: dict[threading.Thread, _Queue] = {}
T = TypeVar("T")
_Job = tuple[Callable[[], Any], "Future[Any]"]


def _start(name: str, queue: _Queue) -> None:
    """Run a queue on a daemon thread that is joined before the interpreter exits. The thread ends
    when the queue is closed and empty."""

    def run() -> None:
        """Run the queue until it is closed, then forget the thread."""
        try:
            queue.work()
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
        _threads[thread] = queue


def safe_point() -> None:
    """Raise BackendError if the process is ending; work in progress is then abandoned. Long
    operations call it every few milliseconds."""
    if _ending.is_set():
        raise BackendError(
            "the process is ending: the embedded engine stopped in the middle of this request"
        )


def end_threads() -> None:
    """Make every thread stop at its next safe point, for good, and wait at most `GRACE_S` seconds
    for all of them. It runs at exit; no operation runs afterwards."""
    _ending.set()
    with _lock:
        waited = dict(_threads)
    for queue in waited.values():
        queue.close()
    end = time.monotonic() + GRACE_S
    for thread in waited:
        thread.join(max(0.0, end - time.monotonic()))


class _Queue:
    """Operations that wait, by lane. The thread holds it, and not the lanes' owner."""

    def __init__(self) -> None:
        """Begin without operations. Its fields are used under `changed` only."""
        self.changed = threading.Condition()
        self.lanes: dict[Hashable, deque[_Job]] = {}
        self.closed = False

    def close(self) -> None:
        """Let the thread end after the operations that wait. Idempotent."""
        with self.changed:
            self.closed = True
            self.changed.notify()

    def take(self) -> _Job | None:
        """Wait for an operation of the lane whose turn it is, and remove it; that lane is then
        last. Return None if the queue is closed and empty."""
        with self.changed:
            while not self.lanes:
                if self.closed:
                    return None
                self.changed.wait()
            lane, jobs = next(iter(self.lanes.items()))
            del self.lanes[lane]
            job = jobs.popleft()
            if jobs:
                self.lanes[lane] = jobs
            return job

    def work(self) -> None:
        """Run operations, one at a time, until the queue is closed and empty. An operation's
        exception goes into its future."""
        while (job := self.take()) is not None:
            operation, future = job
            run_into(future, operation)
            # Drop all references, so that a waiting thread keeps no client alive.
            del job, operation, future


class Lanes:
    """Runs operations on one daemon thread, started with the first: those of a lane in order, and
    the lanes in turn, so that no lane can block another.

    An operation that is cancelled before it begins is skipped. One that has begun runs to its end,
    unless the process ends first (`ending`). The thread ends after `close`, or when the lanes are
    no longer referenced.
    """

    def __init__(self, name: str) -> None:
        """`name` is the thread's; it starts with the first operation."""
        self._name = name
        self._queue = _Queue()
        self._started = False
        weakref.finalize(self, self._queue.close).atexit = False

    def submit(
        self, operation: Callable[[], T], lane: Hashable = None
    ) -> AwaitableConcurrentFuture[T]:
        """Queue `operation` behind the others of its lane (None is a lane too), and return the
        future of its result. Raises BackendError after `close`."""
        future: Future[T] = Future()
        queue = self._queue
        with queue.changed:
            if queue.closed:
                raise BackendError(f"{self._name} is closed and accepts no further requests")
            queue.lanes.setdefault(lane, deque()).append((operation, future))
            queue.changed.notify()
            if not self._started:
                self._started = True
                _start(self._name, queue)
        return AwaitableConcurrentFuture(future)

    def close(self) -> None:
        """Refuse new operations; those already queued still run. Idempotent."""
        self._queue.close()


def run_into(future: Future[T], operation: Callable[[], T]) -> None:
    """Run `operation` unless the future was cancelled, and put its result or exception, of any
    kind, into the future. It is not run if the process is ending."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        safe_point()
        result = operation()
    except BaseException as error:  # noqa: BLE001 - it is handed to whoever waits for the future
        future.set_exception(error)
    else:
        future.set_result(result)
