"""The decisions of a stage: one by one, or several at once within a budget of bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from code_rl.util.concurrency import gather_or_cancel

if TYPE_CHECKING:
    from code_rl.data.preparation.workspace import Candidate

BYTES_IN_FLIGHT = 192 << 20
SANDBOX_ERROR = "sandbox_error"
BROKEN_CHECKER = "broken_checker"
MISSING_LIBRARY = "missing_library"
UNSETTLED = frozenset({SANDBOX_ERROR, MISSING_LIBRARY})
"""Reasons that depend on this machine and not on the problem. They are never stored, so that a
rerun decides again."""

OnItem = Callable[[], None]
"""Called once for each decided item."""


Verdicts = Mapping[str, Mapping[str, int]]
"""Counts by verdict of each kind of program that was judged for a problem."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A stage's decision on one problem: kept if `reason`, a code for counting, is empty. `detail`
    is a short text for users.

    `metadata` is added to the problem's `meta.prepare`, and `time_limit_s` replaces its limit.
    `programs` are the verdicts of stage `verify`, `overlap` the sets that have the problem.
    """

    reason: str = ""
    detail: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    time_limit_s: float | None = None
    programs: Verdicts = field(default_factory=dict)
    overlap: tuple[str, ...] = ()

    @property
    def keep(self) -> bool:
        """True if the problem is kept."""
        return not self.reason


def one_by_one(
    candidates: Sequence[Candidate], on_item: OnItem, decide: Callable[[Candidate], Decision]
) -> list[Decision]:
    """Return a decision on each candidate, in order."""
    made = []
    for candidate in candidates:
        made.append(decide(candidate))
        on_item()
    return made


async def at_once(
    candidates: Sequence[Candidate], decide: Callable[[Candidate], Awaitable[None]], places: int
) -> None:
    """Decide on all candidates, `places` at once, within a budget of bytes."""
    queue, held, changed = iter(candidates), 0, asyncio.Condition()

    async def work() -> None:
        nonlocal held
        for candidate in queue:
            size = min(candidate.entry.length, BYTES_IN_FLIGHT)  # a larger one runs alone
            async with changed:
                while held + size > BYTES_IN_FLIGHT:
                    await changed.wait()
                held += size
            await decide(candidate)
            async with changed:
                held -= size
                changed.notify_all()

    await gather_or_cancel(work() for _ in range(min(places, len(candidates))))
