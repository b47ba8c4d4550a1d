"""The places at which submissions run: so many at once, in order of arrival, and a way to lend one's place while being idle."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Place:
    """What a submission holds while it runs."""

    lent = 0
    """Bytes of memory that its holder may use without having it; 0 while it has it."""


class Places:
    """`count` places. Usable from several event loops in turn."""

    def __init__(self, count: int, lending_bytes: int) -> None:
        """`lending_bytes`: how much memory submissions whose places are lent may be allowed, all together."""
        self._count, self._lending = count, lending_bytes
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._offers: dict[Place, int] = {}

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[Place]:
        """Wait for a place, and hold it."""
        await self._take()
        place = Place()
        try:
            yield place
        finally:
            self._offers.pop(place, None)
            if place.lent:
                self._lending += place.lent
                self._lend()
            else:
                self._give_back()

    def offer(self, place: Place, memory_bytes: int) -> None:
        """Let another submission have the place, as soon as one waits; the holder goes on, and may use so much memory."""
        if not place.lent:
            self._offers[place] = memory_bytes
            self._lend()

    def _lend(self) -> None:
        """Give those who wait the places that are offered, as far as memory allows."""
        for place, memory_bytes in list(self._offers.items()):
            if not self._waiting:
                return
            if memory_bytes <= self._lending:
                self._lending -= memory_bytes
                place.lent = self._offers.pop(place)
                self._give_back()

    async def _take(self) -> None:
        if self._taken < self._count and not self._waiting:
            self._taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._lend()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back()
            raise

    def _give_back(self) -> None:
        """Hand a place to the first who waits and is still there."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_result(None)
                return
        self._taken -= 1
