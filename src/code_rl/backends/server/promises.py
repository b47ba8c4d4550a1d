"""Futures of the wire protocol: made when a request is accepted, fulfilled by an engine, fetched by the client.

A promise lives until its result was fetched and some time has passed (an answer that was lost can be fetched again), or until
nobody has wanted it for an hour, or its session is over. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import Any

from .wire import SERVER, bad, busy, category, gone, size_of

KEPT_AFTER_FETCH_S = 120.0
KEPT_UNFETCHED_S = 3600.0


@dataclass(eq=False)
class Promise:
    """One accepted request. `fingerprint` tells a retry from another request under the same number."""

    request_id: str
    kind: str
    session_id: str
    fingerprint: bytes
    request_bytes: int
    model_id: str | None = None
    queue: str | None = None
    created: float = field(default_factory=time.monotonic)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    result: object = None
    error: str | None = None
    error_category: str = SERVER
    size: int = 0
    fetched: float | None = None
    cancel: Callable[[], bool] | None = None
    on_end: Callable[[], None] | None = None


@dataclass
class Completions:
    """Finished requests of one sampling client, in the order in which they ended, for `retrieve_futures`."""

    events: deque[tuple[int, Promise]] = field(default_factory=deque)
    cursor: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class Promises:
    """All promises. `on_done` hears of each that ends."""

    def __init__(self, max_open: int, max_request_bytes: int, max_result_bytes: int) -> None:
        self._all: dict[str, Promise] = {}
        self._completions: dict[str, Completions] = {}
        self._max_open = max_open
        self._max_request_bytes = max_request_bytes
        self._max_result_bytes = max_result_bytes
        self.open = 0
        self.request_bytes = 0
        self.result_bytes = 0
        self.idle = asyncio.Event()
        """Set while no promise is open."""
        self.idle.set()
        self.on_done: Callable[[Promise], None] | None = None

    def __len__(self) -> int:
        return len(self._all)

    def find(self, request_id: str) -> Promise | None:
        """The promise of this id, if it is still kept."""
        return self._all.get(request_id)

    def seen(self, request_id: str, kind: str, fingerprint: bytes) -> Promise | None:
        """The promise that an earlier copy of this request made; a Refusal when it was another request."""
        found = self._all.get(request_id)
        if found is not None and (found.kind, found.fingerprint) != (kind, fingerprint):
            raise bad(f"{request_id} was used for another request before; a retry must repeat it exactly")
        return found

    def check_room(self, size: int) -> None:
        """Refuse (429) when accepting another request of `size` bytes would exceed what may wait or be kept."""
        if self.open >= self._max_open:
            raise busy(f"{self.open} requests are queued, the limit")
        if self.request_bytes and self.request_bytes + size > self._max_request_bytes:
            raise busy(f"queued requests hold {self.request_bytes} bytes; {size} more are over the limit")
        if self.result_bytes > self._max_result_bytes:
            self._drop(p for p in list(self._all.values()) if p.fetched is not None)
            if self.result_bytes > self._max_result_bytes:
                raise busy(f"results that wait to be fetched hold {self.result_bytes} bytes, over the limit")

    def add(self, promise: Promise) -> Promise:
        """Keep a new promise."""
        self._all[promise.request_id] = promise
        self.open += 1
        self.request_bytes += promise.request_bytes
        self.idle.clear()
        return promise

    def follow(self, promise: Promise, future: Future[Any], then: Callable[[Any], object]) -> None:
        """Fulfil the promise with `then` of another thread's result, made on that thread."""
        loop = asyncio.get_running_loop()
        promise.cancel = future.cancel

        def finish(finished: Future[Any]) -> None:
            made: Future[object] = Future()
            try:
                made.set_result(then(finished.result()))
            except CancelledError:
                made.set_exception(bad("the request was cancelled"))
            except BaseException as error:  # noqa: BLE001 - it is the answer
                made.set_exception(error)
            loop.call_soon_threadsafe(self._settle, promise, made)

        future.add_done_callback(finish)

    def fail(self, promise: Promise, error: BaseException) -> None:
        """End the promise with an error."""
        if not promise.done.is_set():
            promise.error = " ".join(str(error).split()) or type(error).__name__
            promise.error_category = category(error)
            self._end(promise)

    def unfetched(self) -> int:
        """Recent results that nobody has fetched."""
        recent = time.monotonic() - KEPT_AFTER_FETCH_S
        return sum(p.fetched is None and p.done.is_set() and p.created >= recent for p in self._all.values())

    def completions(self, queue: str) -> Completions:
        """The finished requests of one sampling client."""
        return self._completions.setdefault(queue, Completions())

    def drop_samples(self, session_id: str) -> None:
        """Cancel and forget the samples of a session. The SDK submits a sample again that is gone (410)."""
        mine = [p for p in self._all.values() if p.session_id == session_id and p.kind == "sample"]
        for promise in mine:
            if promise.cancel is not None:
                promise.cancel()
            self.fail(promise, gone("the request was cancelled: its client showed no life"))
        self._drop(mine)

    def drop_session(self, session_id: str) -> None:
        """Cancel and forget the samples of a session, and forget its results."""
        self.drop_samples(session_id)
        self._drop(p for p in list(self._all.values()) if p.session_id == session_id and p.done.is_set())
        for queue in [q for q in self._completions if q.startswith(session_id)]:
            del self._completions[queue]

    def drop_request(self, request_id: str) -> None:
        """Forget a result that its client has taken in."""
        promise = self._all.get(request_id)
        if promise is not None and promise.done.is_set():
            promise.fetched = promise.fetched or time.monotonic()

    def sweep(self) -> None:
        """Forget results that were fetched a while ago and those that nobody wanted for long."""
        now = time.monotonic()
        self._drop(
            p
            for p in list(self._all.values())
            if p.done.is_set()
            and (now - p.fetched > KEPT_AFTER_FETCH_S if p.fetched is not None else now - p.created > KEPT_UNFETCHED_S)
        )

    def _settle(self, promise: Promise, made: Future[object]) -> None:
        error = made.exception()
        if error is not None:
            self.fail(promise, error)
        elif not promise.done.is_set():
            promise.result = made.result()
            promise.size = size_of(promise.result)
            self._end(promise)

    def _end(self, promise: Promise) -> None:
        promise.cancel = None
        promise.done.set()
        self.open -= 1
        self.request_bytes -= promise.request_bytes
        self.result_bytes += promise.size
        if promise.queue is not None:
            found = self.completions(promise.queue)
            found.cursor += 1
            found.events.append((found.cursor, promise))
            found.changed.set()
        if not self.open:
            self.idle.set()
        if promise.on_end is not None:
            promise.on_end()
            promise.on_end = None
        if self.on_done is not None:
            self.on_done(promise)

    def _drop(self, which: Iterable[Promise]) -> None:
        for promise in list(which):
            if self._all.pop(promise.request_id, None) is not None:
                self.result_bytes -= promise.size


def unchanged(result: Any) -> Any:
    """The result itself."""
    return result
