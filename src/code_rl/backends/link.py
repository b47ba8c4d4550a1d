"""The wire to a remote back end: futures that end, whatever happens to the server, and errors of ours in place of the SDK's.

The SDK retries what may be retried (connection errors, 408, 429, 5xx) and keeps asking for results without limit. `Link` sets two
limits: a server that has not answered a health check for `patience_s` ends the wait, and so does one that is well but has not
answered a request for `request_patience_s`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

from code_rl.backends.places import Place
from code_rl.errors import BackendError, CodeRLError

T = TypeVar("T")
logger = logging.getLogger("code_rl.backends")
outages = logging.getLogger("code_rl.outages")
_CHECK_EVERY_S = 5.0
_LONGEST_PAUSE_S = 30.0


class Link:
    """One server, watched: for how long it has been away, and how its errors read."""

    def __init__(self, place: Place, patience_s: float, request_patience_s: float = math.inf) -> None:
        self.place = place
        self.patience_s = patience_s
        self.request_patience_s = request_patience_s
        self.check_every_s = min(_CHECK_EVERY_S, patience_s / 2)
        self._checking = threading.Lock()
        self._next_check = 0.0
        self._away, self._away_since = 0, 0.0

    def check(self, waited_s: float = 0.0) -> None:
        """Ask the server for its health, unless that was done lately; `waited_s` is how long the caller has waited for its answer.

        Raises BackendError when the server has been silent for longer than its patience, or this request for longer than its own.
        """
        if waited_s > self.request_patience_s:
            raise BackendError(
                f"{self.place.url} answers, but not one request of {waited_s:.0f} s ago (request_patience={self.request_patience_s:g})"
            )
        if not self._checking.acquire(blocking=False):
            return
        try:
            if time.monotonic() >= self._next_check:
                self._check()
        finally:
            self._checking.release()

    def _check(self) -> None:
        import httpx

        try:
            httpx.get(f"{self.place.url}/api/v1/healthz", timeout=self.check_every_s)
        except httpx.HTTPError as error:
            if not self._away:
                self._away_since = time.monotonic()
            silent = time.monotonic() - self._away_since
            if silent > self.patience_s:
                raise BackendError(
                    f"{self.place.url} has not answered for {silent:.0f} s ({self.place.redacted(str(error))})"
                ) from None
            said = outages.info if self._away else outages.warning
            said("%s does not answer (%s); waiting for up to %g s", self.place.url, self.place.redacted(str(error)), self.patience_s)  # fmt: skip
            self._away += 1
        else:
            if self._away:
                outages.warning("%s answers again after %.0f s", self.place.url, time.monotonic() - self._away_since)
            self._away = 0
        pause = min(self.check_every_s * 2 ** min(self._away, 10), _LONGEST_PAUSE_S, self.patience_s / 2)
        self._next_check = time.monotonic() + (pause if self._away > 1 else 0.0)

    def outcome(self, future: Future[T]) -> T:
        """A finished future's result. Raises BackendError in place of what the SDK raised."""
        try:
            result = future.result()
        except CodeRLError:
            raise
        except Exception as error:  # the SDK's own kinds differ between versions; the cause is kept
            raise BackendError(f"{self.place.url}: {self.place.redacted(_in_words(error))}") from error
        return result

    def submit(self, call: Callable[[], Any], then: Callable[[Any], T]) -> RemoteFuture[T]:
        """Make a call of the SDK now; the future resolves to `then` of its result, or raises BackendError."""
        immediate: Future[Any] = Future()
        try:
            answer = call()
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits for the future
            immediate.set_exception(error)
            answer = immediate
        return RemoteFuture(_plain(answer), self, then)


class SdkLog(logging.Handler):
    """What the SDK logs, without the key, for the run's own log."""

    def __init__(self, place: Place) -> None:
        super().__init__(logging.INFO)
        self._place = place

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on."""
        logger.log(record.levelno, "sdk: %s", self._place.redacted(record.getMessage()))

    @classmethod
    def install(cls, place: Place) -> None:
        """Take the place of an earlier one."""
        sdk = logging.getLogger("tinker")
        sdk.handlers = [handler for handler in sdk.handlers if not isinstance(handler, cls)] + [cls(place)]
        sdk.propagate = False


class RemoteFuture(Generic[T]):
    """A result that is on its way. `result()` and `await` both raise BackendError when it cannot come."""

    def __init__(self, future: Future[Any], link: Link, then: Callable[[Any], T]) -> None:
        self._future = future
        self._link = link
        self._then = then
        self._since = time.monotonic()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the result, at most `timeout` seconds (TimeoutError)."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = self._link.check_every_s if deadline is None else deadline - time.monotonic()
            if wait([self._future], timeout=max(0.0, min(left, self._link.check_every_s))).done:
                return self._then(self._link.outcome(self._future))
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError
            self._link.check(time.monotonic() - self._since)

    async def result_async(self) -> T:
        """`result`, awaited; cancelling the wait cancels the request."""
        waiting = asyncio.wrap_future(self._future)
        try:
            while not (await asyncio.wait({waiting}, timeout=self._link.check_every_s))[0]:
                await asyncio.to_thread(self._link.check, time.monotonic() - self._since)
        except BaseException:
            waiting.cancel()
            raise
        if not waiting.cancelled():
            waiting.exception()  # looked at, or asyncio reports it as forgotten
        return self._then(self._link.outcome(self._future))

    def done(self) -> bool:
        """True when `result` would not wait."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, T]:
        return self.result_async().__await__()


def _plain(answer: Any) -> Future[Any]:
    """The standard future behind what a version of the SDK returns, or a finished one around a value."""
    inner = getattr(answer, "future", None)
    if callable(inner):
        found: Future[Any] = inner()
        return found
    if isinstance(answer, Future):
        return answer
    finished: Future[Any] = Future()
    finished.set_result(answer)
    return finished


def _in_words(error: BaseException) -> str:
    """An error of the SDK and what caused it, once each."""
    cause = error.__cause__
    text = str(error) or type(error).__name__
    return f"{text} ({cause})" if cause is not None and str(cause) and str(cause) not in text else text
