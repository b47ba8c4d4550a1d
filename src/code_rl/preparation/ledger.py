"""The decisions of a stage: stored on disk as they are made, and made one by one or many at once within a budget of bytes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from code_rl.concurrency import together
from code_rl.errors import SandboxError
from code_rl.files import JsonLines, truncate, whole_lines, write_lines_atomically

if TYPE_CHECKING:
    from code_rl.preparation.bench import Survivor

BYTES_IN_FLIGHT = 192 << 20
SANDBOX_ERROR = "sandbox_error"
BROKEN_CHECKER = "broken_checker"
MISSING_LIBRARY = "missing_library"
UNSETTLED = frozenset({SANDBOX_ERROR, MISSING_LIBRARY})
"""Reasons that say something of this machine, not of the problem: never stored, so that a rerun asks again."""

OnItem = Callable[[], None]
"""Called once for each item that a stage has decided."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A stage's word on one item. `reason` is a code to count by (empty when kept), `detail` a short text for people.

    `card` is what the stage adds to the problem's data card; `notes` what later stages need and the card does not.
    """

    keep: bool
    reason: str = ""
    detail: str = ""
    card: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


KEEP = Decision(keep=True)


def drop(reason: str, detail: str = "", **notes: Any) -> Decision:
    """A decision to drop."""
    return Decision(keep=False, reason=reason, detail=detail, notes=notes)


def content_key(*parts: object) -> str:
    """A hash of JSON-able parts; equal parts give equal keys."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Ledger:
    """What a stage decided, on disk as it decides: a cut loses at most the item in hand.

    A record is found again by the content hash of everything that its decision depends on, so that a rerun with other data or other
    settings reuses exactly what still holds. A torn last line is forgotten; everything before it stands.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[str, Decision] = {}
        truncate(path, self._take(path))
        self._lines = JsonLines(path)

    def get(self, key: str) -> Decision | None:
        """The decision stored under `key`."""
        return self._records.get(key)

    def put(self, key: str, decision: Decision) -> None:
        """Store a decision; it survives a kill of this process once this returns."""
        self._records[key] = decision
        self._lines.append(_row(key, decision))

    def close(self, wanted: Iterable[str]) -> None:
        """Keep only the records under the keys `wanted`, in that order, on disk, and close."""
        self.abandon()
        rows = (_row(key, self._records[key]) for key in wanted if key in self._records)
        write_lines_atomically(self._path, (json.dumps(row) + "\n" for row in rows))

    def abandon(self) -> None:
        """Close without rewriting: what was stored stays."""
        self._lines.close()

    def _take(self, path: Path) -> int:
        """Read the records of a file; returns how far it is whole."""
        whole = 0
        with contextlib.suppress(TypeError, KeyError):
            for end, row in whole_lines(path):
                key = row.pop("key")
                self._records[key] = Decision(**row)
                whole = end
        return whole


def _row(key: str, decision: Decision) -> dict[str, Any]:
    optional = {name: value for name in ("reason", "detail", "card", "notes") if (value := getattr(decision, name))}
    return {"key": key, "keep": decision.keep, **optional}


class Decisions:
    """Those of one stage on its survivors: what its ledger has, and what is yet to be decided."""

    def __init__(self, survivors: Sequence[Survivor], keys: list[str], ledger: Ledger, on_item: OnItem) -> None:
        self._survivors, self._keys, self._ledger, self._on_item = survivors, keys, ledger, on_item
        self._made = {index: decision for index, key in enumerate(keys) if (decision := ledger.get(key))}
        for _ in self._made:
            on_item()

    @property
    def waiting(self) -> list[int]:
        """Who has no decision, in order."""
        return [index for index in range(len(self._survivors)) if index not in self._made]

    @property
    def made(self) -> list[Decision]:
        """What is decided, in the survivors' order."""
        return [decision for _, decision in sorted(self._made.items())]

    def one_by_one(self, decide: Callable[[Survivor], Decision]) -> list[Decision]:
        """Decide on all that wait, in order; all decisions."""
        for index in self.waiting:
            self._take(index, decide(self._survivors[index]))
        return self.made

    async def at_once(self, decide: Callable[[Survivor], Awaitable[Decision | None]], places: int) -> list[Decision]:
        """Decide on all that wait, `places` at once; what is made so far. None: later."""
        waiting, held, changed = self.waiting, 0, asyncio.Condition()
        queue = iter(waiting)

        async def work() -> None:
            nonlocal held
            for index in queue:
                survivor = self._survivors[index]
                size = min(survivor.entry.length, BYTES_IN_FLIGHT)  # one that is larger goes alone
                async with changed:
                    while held + size > BYTES_IN_FLIGHT:
                        await changed.wait()
                    held += size
                try:
                    decision = await decide(survivor)
                except SandboxError as error:
                    decision = drop(SANDBOX_ERROR, str(error))
                if decision is not None:
                    self._take(index, decision)
                async with changed:
                    held -= size
                    changed.notify_all()

        await together(work() for _ in range(min(places, len(waiting))))
        return self.made

    def _take(self, index: int, decision: Decision) -> None:
        if decision.reason not in UNSETTLED:
            self._ledger.put(self._keys[index], decision)
        self._made[index] = decision
        self._on_item()
