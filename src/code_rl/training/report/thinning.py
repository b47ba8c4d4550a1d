"""The rollouts that a page carries: a sample whose rule is simple to say, kept within a budget in
one pass.

Rule: all groups of every `stride`-th step and of the last one; `stride` starts at 1 and doubles
whenever the budget is full.
Beside them, within budgets of their own: every appearance of the problems of the first step (to
follow them through the run), and the groups in which a program was flagged or the sandbox failed.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any

import orjson

STEPS_BUDGET = 3_200_000
FOLLOWED_BUDGET = 700_000
FLAGGED_BUDGET = 400_000
"""Bytes of compressed groups; in the page, base64 adds a third."""

Place = tuple[int, int]


def pack(value: Any) -> bytes:
    """JSON, deflated without a header (what a browser's `deflate-raw` reads)."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    return deflate.compress(orjson.dumps(value)) + deflate.flush()


@dataclass(slots=True)
class ThinnedGroups:
    """Packed groups by (step, group), thinned out so that they stay within `budget` bytes."""

    budget: int = STEPS_BUDGET
    stride: int = 1
    _sampled: dict[Place, bytes] = field(default_factory=dict)
    _tracked: dict[Place, tuple[str, bool]] = field(default_factory=dict)
    """Problem and flag of sampled groups that are to be kept aside when their step is thinned
    out."""
    _followed: dict[Place, bytes] = field(default_factory=dict)
    _flagged: dict[Place, bytes] = field(default_factory=dict)
    _sizes: list[int] = field(default_factory=lambda: [0, 0, 0])
    _first_step: int | None = None
    _problems: set[str] = field(default_factory=set)

    def on_stride(self, step: int) -> bool:
        """True when the rule keeps the whole of this step."""
        return step % self.stride == 0

    def wants(self, step: int, problem: str, flagged: bool) -> bool:
        """True when a group would be kept, so that it is worth making."""
        if self._first_step is None:
            self._first_step = step
        if step == self._first_step:
            self._problems.add(problem)
        return (
            self.on_stride(step)
            or (flagged and self._sizes[2] < FLAGGED_BUDGET)
            or (problem in self._problems and self._sizes[1] < FOLLOWED_BUDGET)
        )

    def put(self, step: int, group: int, problem: str, flagged: bool, record: Any) -> None:
        """Keep a group that was wanted."""
        place, packed = (step, group), pack(record)
        if self.on_stride(step):
            self._sampled[place] = packed
            self._sizes[0] += len(packed)
            if flagged or problem in self._problems:
                self._tracked[place] = (problem, flagged)
            self._thin()
        else:
            self._put_aside(place, packed, problem, flagged)

    def kept(self) -> dict[Place, bytes]:
        """Every kept group once."""
        return self._flagged | self._followed | self._sampled

    def forget_from(self, step: int) -> None:
        """Drop every group of `step` and later ones."""
        for place, groups in enumerate((self._sampled, self._followed, self._flagged)):
            for each in [each for each in groups if each[0] >= step]:
                self._sizes[place] -= len(groups.pop(each))

    def rule(self) -> str:
        """The rule, in words, as it ended up."""
        if self.stride == 1:
            return "every group of every step"
        return (
            f"all groups of every {self.stride}th step and of the last one, every appearance of "
            "the first step's problems and groups with a flagged program as far as room allows"
        )

    def _put_aside(self, place: Place, packed: bytes, problem: str, flagged: bool) -> None:
        if flagged and self._sizes[2] < FLAGGED_BUDGET:
            self._flagged[place] = packed
            self._sizes[2] += len(packed)
        elif problem in self._problems and self._sizes[1] < FOLLOWED_BUDGET:
            self._followed[place] = packed
            self._sizes[1] += len(packed)

    def _thin(self) -> None:
        while self._sizes[0] > self.budget and len({step for step, _ in self._sampled}) > 2:
            self.stride *= 2
            for place in [place for place in self._sampled if not self.on_stride(place[0])]:
                packed = self._sampled.pop(place)
                self._sizes[0] -= len(packed)
                if place in self._tracked:
                    self._put_aside(place, packed, *self._tracked.pop(place))
