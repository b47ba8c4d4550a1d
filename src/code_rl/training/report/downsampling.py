"""The rollouts that a page carries: whole steps, evenly spaced, as many as fit a budget of bytes.

All groups of every `stride`-th step and of the last step are kept. `stride` starts at 1 and doubles
whenever the budget is full.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import orjson

BUDGET = 3_200_000
"""Bytes of compressed groups; base64 adds a third in the page."""

Place = tuple[int, int]


def pack(value: Any) -> bytes:
    """Return the value as JSON, deflated without a header (a browser's `deflate-raw` reads it)."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    return deflate.compress(orjson.dumps(value)) + deflate.flush()


@dataclass(slots=True)
class DownsampledGroups:
    """Packed groups by (step, group), downsampled to at most `budget` bytes."""

    budget: int = BUDGET
    stride: int = 1
    size: int = 0
    groups: dict[Place, bytes] = field(default_factory=dict)

    def wants(self, step: int) -> bool:
        """Return True if the groups of this step are to be kept."""
        return step % self.stride == 0

    def put(self, place: Place, record: Any) -> None:
        """Keep a group of a step for which `wants` is True."""
        self.groups[place] = packed = pack(record)
        self.size += len(packed)
        while self.size > self.budget and len({step for step, _ in self.groups}) > 2:
            self.stride *= 2
            kept = {place: each for place, each in self.groups.items() if self.wants(place[0])}
            self.groups, self.size = kept, sum(map(len, kept.values()))

    def rule(self) -> str:
        """Return the final rule as text."""
        if self.stride == 1:
            return "every group of every step"
        return f"all groups of every {self.stride}th step and of the last one"
