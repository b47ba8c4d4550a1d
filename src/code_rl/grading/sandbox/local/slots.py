"""The slots of running submissions: a fixed number, filled in order of arrival. An idle submission
may lend its slot."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator


class Slot:
    """A running submission's slot."""

    lent = 0
    """Bytes that the holder may use while its slot is lent; 0 if it is not lent."""


class Slots:
    """`count` slots. Usable from several event loops in turn."""

    def __init__(self, count: int, lending_bytes: int) -> None:
        """Make `count` free slots. `lending_bytes` is the most memory that submissions with lent
        slots may use together."""
        self._count, self._lending = count, lending_bytes
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._offers: dict[Slot, int] = {}

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[Slot]:
        """Wait in line for a slot, and hold it during the block. A lent slot is not given back
        again at the end."""
        await self._take()
        slot = Slot()
        try:
            yield slot
        finally:
            self._offers.pop(slot, None)
            if slot.lent:
                self._lending += slot.lent
                self._lend()
            else:
                self._give_back()

    def offer(self, slot: Slot, memory_bytes: int) -> None:
        """Lend the slot to the next waiting submission, now or when one waits, if its memory is
        allowed. The holder continues and may use this much memory. It has no effect on a slot that
        is lent already."""
        if not slot.lent:
            self._offers[slot] = memory_bytes
            self._lend()

    def _lend(self) -> None:
        """Give offered slots to waiting submissions, as far as memory allows."""
        for slot, memory_bytes in list(self._offers.items()):
            if not self._waiting:
                return
            if memory_bytes <= self._lending:
                self._lending -= memory_bytes
                slot.lent = self._offers.pop(slot)
                self._give_back()

    async def _take(self) -> None:
        """Take a slot, or wait in line for one, which may be lent; a turn that is cancelled is
        given back."""
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
        """Give a slot to the first submission that is still waiting, else free it. Turns of event
        loops that are closed are dropped."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done() and not turn.get_loop().is_closed():
                turn.set_result(None)
                return
        self._taken -= 1
