"""The decisions of a stage: one by one, or several at once within a budget of bytes. The latter are
stored on disk as they are made."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from code_rl.util.concurrency import gather_or_cancel
from code_rl.util.errors import SandboxError
from code_rl.util.files import KeyedLog

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
    `programs` are the verdicts of stage `verify`, `overlap` the set that has the problem.
    """

    reason: str = ""
    detail: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    time_limit_s: float | None = None
    programs: Verdicts = field(default_factory=dict)
    overlap: str = ""

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


class Decisions:
    """The decisions of one costly stage: those stored in `log` under the candidates' `keys`, and
    those still to be made.

    An interruption loses at most the items in progress.
    """

    def __init__(
        self, candidates: Sequence[Candidate], keys: list[str], log: KeyedLog[str], on_item: OnItem
    ) -> None:
        self._survivors, self._keys, self._log, self._on_item = candidates, keys, log, on_item
        kept = {index: row for index, key in enumerate(keys) if (row := log.get(key))}
        self._made = {index: Decision(**row["decision"]) for index, row in kept.items()}
        for _ in self._made:
            on_item()

    @property
    def waiting(self) -> list[int]:
        """The candidates without a decision, in order."""
        return [index for index in range(len(self._survivors)) if index not in self._made]

    @property
    def made(self) -> list[Decision]:
        """The decisions, in the candidates' order."""
        return [decision for _, decision in sorted(self._made.items())]

    async def at_once(
        self, decide: Callable[[Candidate], Awaitable[Decision]], places: int
    ) -> None:
        """Decide on all waiting candidates, `places` at once."""
        waiting, held, changed = self.waiting, 0, asyncio.Condition()
        queue = iter(waiting)

        async def work() -> None:
            nonlocal held
            for index in queue:
                candidate = self._survivors[index]
                size = min(candidate.entry.length, BYTES_IN_FLIGHT)  # a larger one runs alone
                async with changed:
                    while held + size > BYTES_IN_FLIGHT:
                        await changed.wait()
                    held += size
                try:
                    decision = await decide(candidate)
                except SandboxError as error:
                    decision = Decision(SANDBOX_ERROR, str(error))
                self._take(index, decision)
                async with changed:
                    held -= size
                    changed.notify_all()

        await gather_or_cancel(work() for _ in range(min(places, len(waiting))))

    def _take(self, index: int, decision: Decision) -> None:
        if decision.reason not in UNSETTLED:
            self._log.put({"key": self._keys[index], "decision": asdict(decision)})
        self._made[index] = decision
        self._on_item()
