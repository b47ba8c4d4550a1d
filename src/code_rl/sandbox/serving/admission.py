"""Who may come in: so many runs at once, a bounded queue, one budget for the bytes of all requests, and nobody while draining."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class BusyError(Exception):
    """Not now: `status` is the HTTP status, `retry_after_s` when to come back."""

    def __init__(self, status: int, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


class Held:
    """The bytes of one request, from the first that arrives to the answer."""

    def __init__(self, admission: Admission) -> None:
        self.size = 0
        self._admission = admission

    def add(self, count: int) -> None:
        """So many more arrived, or came out of what arrived. Raises BusyError when all requests together hold too much."""
        self._admission.check_bytes(self, count)
        self.size += count
        self._admission.bytes += count


class Admission:
    """Counts requests and their bytes. Belongs to one event loop."""

    def __init__(self, concurrency: int, max_queue: int, max_bytes: int) -> None:
        self.draining = False
        self.bytes = 0
        self._room = concurrency + max_queue
        self._max_bytes = max_bytes
        self._admitted = 0
        self.running = asyncio.Semaphore(concurrency)
        """Held while a program runs; its waiters are the queue."""
        self.idle = asyncio.Event()
        """Set while nothing is admitted."""
        self.idle.set()

    @contextmanager
    def receiving(self, declared: int) -> Iterator[Held]:
        """Count the bytes of a request that says it has `declared`; it holds no place yet. Raises BusyError at once where that is known."""
        held = Held(self)
        self._check_room()
        self.check_bytes(held, declared)
        try:
            yield held
        finally:
            self.bytes -= held.size

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Give a request that has arrived a place in the queue, or raise BusyError at once."""
        self._check_room()
        self._admitted += 1
        self.idle.clear()
        try:
            yield
        finally:
            self._admitted -= 1
            if not self._admitted:
                self.idle.set()

    def check_bytes(self, held: Held, count: int) -> None:
        """Raise BusyError when `count` more are over the budget. A request that is alone may exceed it; its own limit is another."""
        others = self.bytes - held.size
        if others and self.bytes + count > self._max_bytes:
            raise BusyError(429, f"requests hold {self.bytes} bytes; {count} more are over the limit", 1)

    def _check_room(self) -> None:
        if self.draining:
            raise BusyError(503, "the server is shutting down", 5)
        if self._admitted >= self._room:
            raise BusyError(429, f"{self._admitted} requests are running or queued, the limit", 1)
