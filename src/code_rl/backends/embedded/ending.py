"""The end of the process: threads that compute are told to end, and waited for.

A thread that is inside torch when the interpreter goes takes the process down with `abort`: exit code 134, whatever the program
meant to say. So computing threads are started here, and long operations pass `safe_point` every few milliseconds.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable

from code_rl.errors import BackendError

# For what has no safe points: a model that is being loaded, a checkpoint that is being written.
GRACE_S = 30.0

_ending = threading.Event()
_lock = threading.Lock()
_threads: dict[threading.Thread, Callable[[], object]] = {}


def start_thread(name: str, work: Callable[[], object], wake: Callable[[], object]) -> threading.Thread:
    """Start a daemon thread that is joined before the interpreter goes.

    `wake` makes `work` return when it waits for something to do; neither may hold what the thread's life depends on.
    """

    def run() -> None:
        try:
            work()
        finally:
            with _lock:
                _threads.pop(thread, None)

    thread = threading.Thread(target=run, name=name, daemon=True)
    with _lock:
        # Handlers run in reverse order: this one before those that torch registered when it was loaded.
        atexit.unregister(end_threads)
        atexit.register(end_threads)
        thread.start()
        _threads[thread] = wake
    return thread


def safe_point() -> None:
    """Raise BackendError when the process is ending; what was begun is not finished then."""
    if _ending.is_set():
        raise BackendError("the process is ending: the embedded engine stopped in the middle of this request")


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
