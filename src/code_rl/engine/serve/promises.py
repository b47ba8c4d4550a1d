"""Futures of the wire protocol: made when a request is accepted, fulfilled by an engine, fetched by
the client.

A fetched promise is kept for a while, so that a lost answer can be fetched again. It is dropped
then, or if nobody has fetched it for an hour, or when its session is over. All belong to the event
loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from .wire import SERVER, bad, busy, category, encoded

KEPT_AFTER_FETCH_S = 120.0
KEPT_UNFETCHED_S = 3600.0


@dataclass
class ServiceLimits:
    """The limits of the server; counts and seconds."""

    max_models: int
    max_samplers: int
    max_queue: int
    max_queued_bytes: int
    idle_s: float
    session_timeout_s: float


def session_of(member_id: str) -> str:
    """Return the session id of a run, of a sampling session, or of a request of either."""
    return member_id.partition(":")[0]


@dataclass(eq=False)
class Promise:
    """One accepted request. `fingerprint` distinguishes a retry from another request with the same
    number."""

    request_id: str
    kind: str
    fingerprint: bytes
    request_bytes: int
    created: float = field(default_factory=time.monotonic)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    body: bytes = b""
    content_type: str = ""
    error: str | None = None
    error_category: str = SERVER
    fetched: float | None = None
    cancel: Callable[[], bool] | None = None
    on_end: Callable[[], None] | None = None

    @property
    def session_id(self) -> str:
        """The id of its session, with which its own id begins."""
        return session_of(self.request_id)


class Promises:
    """All promises. `on_done` is called with each promise that ends and its result."""

    def __init__(self, limits: ServiceLimits) -> None:
        """Begin without promises, as idle. `limits` applies to open ones only."""
        self._all: dict[str, Promise] = {}
        self._limits = limits
        self.open = 0
        self.request_bytes = 0
        self.idle = asyncio.Event()
        """Set when no promise is open."""
        self.idle.set()
        self.on_done: Callable[[Promise, object], None] | None = None

    def __len__(self) -> int:
        """Return the number of promises that are kept, ended ones too."""
        return len(self._all)

    def find(self, request_id: str) -> Promise | None:
        """Return the promise of this id, open or ended, or None if it is no longer kept."""
        return self._all.get(request_id)

    def seen(self, asked: Promise) -> Promise | None:
        """Return the promise that an earlier copy of this request made, or None. Raises a Refusal
        (400) if its id was used for another request."""
        found = self._all.get(asked.request_id)
        if found and (found.kind, found.fingerprint) != (asked.kind, asked.fingerprint):
            raise bad(
                f"{asked.request_id} was used for another request before; a retry must repeat it "
                "exactly"
            )
        return found

    def check_room(self, size: int) -> None:
        """Raise a Refusal (429) if another request of `size` bytes would exceed the limits on open
        ones, by number or bytes. The first request with a body always has room for its bytes."""
        if self.open >= self._limits.max_queue:
            raise busy(f"{self.open} requests are queued, the limit")
        if self.request_bytes and self.request_bytes + size > self._limits.max_queued_bytes:
            raise busy(
                f"queued requests hold {self.request_bytes} bytes; {size} more are over the limit"
            )

    def add(self, promise: Promise) -> None:
        """Keep a new promise, which counts as open until `end`. Its id is not in use (`seen`), and
        limits are not checked."""
        self._all[promise.request_id] = promise
        self.open += 1
        self.request_bytes += promise.request_bytes
        self.idle.clear()

    def follow(self, promise: Promise, future: Future[Any], then: Callable[[Any], object]) -> None:
        """Fulfill the promise with `then` of the result of `future`; the thread that computes it
        also encodes it. An exception, of `then` too, ends the promise with an error. Call it on the
        event loop."""
        loop = asyncio.get_running_loop()
        promise.cancel = future.cancel

        def finish(finished: Future[Any]) -> None:
            """Encode the result on the engine's thread, and end the promise on the event loop."""
            result: object = None
            error: BaseException | None = None
            try:
                result = then(finished.result())
                promise.body, promise.content_type = encoded(result)
            except CancelledError:
                error = bad("the request was cancelled")
            except BaseException as caught:  # noqa: BLE001 - it is the answer
                error = caught
            loop.call_soon_threadsafe(self.end, promise, result, error)

        future.add_done_callback(finish)

    def end(self, promise: Promise, result: object, error: BaseException | None = None) -> None:
        """Fulfill a promise whose body is set, or end it with an error, on the event loop; then
        call its `on_end` and `on_done`. A promise that has ended stays unchanged."""
        if promise.done.is_set():
            return
        if error is not None:
            promise.body = b""
            promise.error = " ".join(str(error).split()) or type(error).__name__
            promise.error_category = category(error)
        promise.cancel = None
        promise.done.set()
        self.open -= 1
        self.request_bytes -= promise.request_bytes
        if not self.open:
            self.idle.set()
        if promise.on_end is not None:
            promise.on_end()
            promise.on_end = None
        if self.on_done is not None:
            self.on_done(promise, result)

    def unfetched(self) -> int:
        """Return the number of results that were not fetched, of requests accepted in the last two
        minutes."""
        recent = time.monotonic() - KEPT_AFTER_FETCH_S
        return sum(
            p.fetched is None and p.done.is_set() and p.created >= recent
            for p in self._all.values()
        )

    def sweep(self) -> None:
        """Forget results that were fetched more than two minutes ago, or accepted more than an hour
        ago and not fetched. Open promises stay."""
        now = time.monotonic()

        def is_old(promise: Promise) -> bool:
            """Return True if the promise was fetched, or made, so long ago that no client asks
            again."""
            if promise.fetched is not None:
                return now - promise.fetched > KEPT_AFTER_FETCH_S
            return now - promise.created > KEPT_UNFETCHED_S

        self.drop(lambda promise: promise.done.is_set() and is_old(promise))

    def drop(self, which: Callable[[Promise], bool], error: Exception | None = None) -> None:
        """Forget the promises of which `which` is true. Those that are still open are cancelled and
        end with `error`; give one unless all have ended."""
        for promise in [promise for promise in self._all.values() if which(promise)]:
            if promise.cancel is not None:
                promise.cancel()
            self.end(promise, None, error)
            del self._all[promise.request_id]


def unchanged(result: Any) -> Any:
    """Return the result itself: the default `then` of a request."""
    return result
