"""Many problems at once, within a budget of bytes: each decision is stored as it comes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from code_rl.errors import SandboxError
from code_rl.preparation.bench import Decision, Ledger, OnItem, Survivor, drop

BYTES_IN_FLIGHT = 192 << 20
SANDBOX_ERROR = "sandbox_error"
BROKEN_CHECKER = "broken_checker"
MISSING_LIBRARY = "missing_library"
UNSETTLED = frozenset({SANDBOX_ERROR, MISSING_LIBRARY})
"""Reasons that say something of this machine, not of the problem: never stored, so that a rerun asks again."""

Decide = Callable[[Survivor], Awaitable[Decision | None]]
"""None: later."""


class Flight:
    """The survivors of a stage: those whose decision the ledger has, and the places of those that are `waiting`."""

    def __init__(self, survivors: Sequence[Survivor], keys: list[str], ledger: Ledger, on_item: OnItem) -> None:
        self._survivors, self._keys, self._ledger, self._on_item = survivors, keys, ledger, on_item
        self._budget = ByteBudget()
        known = {index: ledger.get(key) for index, key in enumerate(keys)}
        self._decisions = {index: decision for index, decision in known.items() if decision is not None}
        for _ in self._decisions:
            on_item()

    @property
    def waiting(self) -> list[int]:
        """Who has no decision, in order."""
        return [index for index in range(len(self._survivors)) if index not in self._decisions]

    @property
    def decisions(self) -> list[Decision]:
        """What is decided, in the survivors' order."""
        return [decision for _, decision in sorted(self._decisions.items())]

    async def decide(self, decide: Decide, places: int) -> None:
        """Ask about all that wait, `places` at once."""
        waiting = self.waiting
        queue = iter(waiting)

        async def work() -> None:
            for index in queue:
                async with self._budget.take(self._survivors[index].entry.length):
                    await self._one(decide, index)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(places, len(waiting))):
                group.create_task(work())

    async def _one(self, decide: Decide, index: int) -> None:
        try:
            decision = await decide(self._survivors[index])
        except SandboxError as error:
            decision = drop(SANDBOX_ERROR, str(error))
        if decision is None:
            return
        if decision.reason not in UNSETTLED:
            self._ledger.put(self._keys[index], decision)
        self._decisions[index] = decision
        self._on_item()


class ByteBudget:
    """Lets work begin while the bytes in flight stay within a budget; one piece larger than it goes alone."""

    def __init__(self, total: int = BYTES_IN_FLIGHT) -> None:
        self._total = total
        self._used = 0
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes while the block runs."""
        size = min(size, self._total)
        async with self._changed:
            await self._changed.wait_for(lambda: self._used + size <= self._total)
            self._used += size
        try:
            yield
        finally:
            self._used -= size
            async with self._changed:
                self._changed.notify_all()
