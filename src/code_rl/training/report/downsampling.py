"""The rollouts that a page carries: whole steps, evenly spaced, as many as fit a budget.

Rule: all groups of every `stride`-th step and of the last one; `stride` starts at 1 and doubles
whenever the budget is full.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

BUDGET = 3_200_000
"""Bytes of compressed groups; in the page, base64 adds a third."""

Place = tuple[int, int]


def pack(value: Any) -> bytes:
    """Encode as JSON, deflated without a header (a browser's `deflate-raw` reads it)."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    return deflate.compress(orjson.dumps(value)) + deflate.flush()


@dataclass(slots=True)
class DownsampledGroups:
    """Packed groups by (step, group), thinned out so that they stay within `budget` bytes."""

    budget: int = BUDGET
    stride: int = 1
    size: int = 0
    groups: dict[Place, bytes] = field(default_factory=dict)

    def wants(self, step: int) -> bool:
        """True when the rule keeps the whole of this step."""
        return step % self.stride == 0

    def put(self, place: Place, record: Any) -> None:
        """Keep a group of a step that is wanted."""
        self.groups[place] = packed = pack(record)
        self.size += len(packed)
        while self.size > self.budget and len({step for step, _ in self.groups}) > 2:
            self.stride *= 2
            self.forget(lambda step: not self.wants(step))

    def forget(self, which: Callable[[int], bool]) -> None:
        """Drop the groups of these steps."""
        self.groups = {place: each for place, each in self.groups.items() if not which(place[0])}
        self.size = sum(map(len, self.groups.values()))

    def rule(self) -> str:
        """The final rule, in words."""
        if self.stride == 1:
            return "every group of every step"
        return f"all groups of every {self.stride}th step and of the last one"
