"""One executor for a whole process, for callers that do not manage one: `code_rl.judge`, the
course's `CodeEnv`.

It runs on its own event loop in a background thread, so it outlasts the caller's loops: course code
calls `asyncio.run` once per stage. It is made on first use: a Sandbox Fusion client if SANDBOX_URL
is set, else the embedded sandbox.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from code_rl.grading.sandbox.executor import Executor

Result = TypeVar("Result")
CLOSE_TIMEOUT_S = 10.0


class SharedExecutor:
    """Runs coroutines that need an executor on the background loop. Thread-safe; `make` is called
    once, on that loop."""

    def __init__(self, make: Callable[[], Executor]) -> None:
        """Make nothing yet: `run` starts the thread, and `make` runs there."""
        self._make = make
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._executor: Executor | None = None

    async def run(self, use: Callable[[Executor], Coroutine[Any, Any, Result]]) -> Result:
        """Await `use(executor)` on the background loop, from any event loop, and return its result
        or raise its exception. The first call makes the executor, and raises what `make` raises.
        Cancelling the caller cancels it."""
        future = asyncio.run_coroutine_threadsafe(self._use(use), self._started())
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Close the executor and end the thread. It blocks; running calls of `run` may never end,
        so let them end first. A later `run` starts again. Idempotent. Raises TimeoutError if
        closing takes more than 10 s."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._aclose(), loop).result(CLOSE_TIMEOUT_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CLOSE_TIMEOUT_S)
            if not loop.is_running():
                loop.close()

    async def _use(self, use: Callable[[Executor], Coroutine[Any, Any, Result]]) -> Result:
        """Make the executor on first use, and await `use` on it. It runs on the background loop
        alone."""
        if self._executor is None:
            self._executor = self._make()
        return await use(self._executor)

    async def _aclose(self) -> None:
        """Close the executor, if there is one, and forget it. It runs on the background loop."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await executor.aclose()

    def _started(self) -> asyncio.AbstractEventLoop:
        """Return the loop of the executor's thread, which the first call starts. Thread-safe."""
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=loop.run_forever, name="code-rl executor", daemon=True
                )
                self._loop = loop
                self._thread.start()
            return self._loop


def _from_environment() -> Executor:
    """Return the executor of SANDBOX_URL, or else the embedded sandbox. Imports are late, since
    `code_rl` is imported without either. Raises ConfigError, IsolationError."""
    from code_rl.grading.sandbox.connect import connect_executor

    return connect_executor("auto")


shared_executor = SharedExecutor(_from_environment)
"""The process's own executor, closed when the interpreter exits."""

atexit.register(shared_executor.close)
