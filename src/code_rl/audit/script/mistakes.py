"""What is commonly got wrong in the four functions: what each mistake would have answered. `messages.toml` says what to say of it.

A check fails because an answer is not the right one; these only find its name. An answer that fits none is shown as it came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median, pstdev, stdev
from typing import Any


@dataclass(frozen=True, slots=True)
class Mistake:
    """`answers`: what a function with this mistake gives; `variant`: a choice that others make, not a mistake."""

    name: str
    answers: Callable[..., Any]
    variant: bool = False


def _over(rewards: Sequence[float], deviation: float) -> list[float]:
    return [(reward - mean(rewards)) / deviation for reward in rewards]


TRL_EPSILON = 1e-4
"""Smaller ones change nothing that is compared."""
ADVANTAGES = (
    Mistake("standard_deviation", lambda r: _over(r, pstdev(r)), variant=True),
    Mistake("standard_deviation", lambda r: _over(r, stdev(r)), variant=True),
    Mistake("standard_deviation", lambda r: _over(r, pstdev(r) + TRL_EPSILON), variant=True),
    Mistake("standard_deviation", lambda r: _over(r, stdev(r) + TRL_EPSILON), variant=True),
    Mistake("leave_one_out", lambda r: [(x - mean(r)) * len(r) / (len(r) - 1) for x in r], variant=True),
    Mistake("mean_not_subtracted", lambda r: list(r)),
    Mistake("sign_flipped", lambda r: [mean(r) - x for x in r]),
    Mistake("sum_subtracted", lambda r: [x - sum(r) for x in r]),
    Mistake("best_subtracted", lambda r: [x - max(r) for x in r]),
    Mistake("worst_subtracted", lambda r: [x - min(r) for x in r]),
    Mistake("median_subtracted", lambda r: [x - median(r) for x in r]),
    Mistake("divided_by_count", lambda r: [(x - mean(r)) / len(r) for x in r]),
    Mistake("absolute_values", lambda r: [abs(x - mean(r)) for x in r]),
    Mistake("order_changed", lambda r: sorted(x - mean(r) for x in r)),
    Mistake("order_changed", lambda r: sorted((x - mean(r) for x in r), reverse=True)),
)

Groups = frozenset[str]
SKIPPING: tuple[tuple[str, Callable[[Groups], bool]], ...] = (
    # name of the mistake, whether it explains which groups were decided wrongly
    ("inverted", lambda w: {"zeros", "mixed", "all positive"} <= w),
    ("never_skips", lambda w: {"zeros", "rounding noise"} <= w and "mixed" not in w and "all positive" not in w),
    ("always_skips", lambda w: {"mixed", "all positive", "all negative"} <= w),
    ("sum_is_zero", lambda w: "mixed" in w and "all positive" not in w),
    ("skips_all_positive", lambda w: "all positive" in w),
    ("looks_at_the_largest", lambda w: "all negative" in w),
    ("any_instead_of_all", lambda w: "one zero" in w),
    ("looks_at_the_first", lambda w: "first is zero" in w),
    ("looks_at_the_last", lambda w: "last is zero" in w),
    ("no_tolerance", lambda w: "rounding noise" in w),
    ("tolerance_too_wide", lambda w: "small" in w),
    ("empty_group", lambda w: w == {"empty"}),
)


@dataclass(frozen=True, slots=True)
class DatumCase:
    """A trajectory that `make_datum` is given: `prompt` tokens of its `tokens` were not sampled."""

    tokens: list[int]
    logprobs: list[float]
    prompt: int
    advantage: float

    @property
    def first(self) -> int:
        """The first target that was sampled."""
        return self.prompt - 1

    def along(self, value: Callable[[int], float]) -> list[float]:
        """A number for each target."""
        return [value(target) for target in range(len(self.tokens) - 1)]

    def moved(self, by: int) -> list[float]:
        """The log-probabilities, so many targets later, zeros elsewhere."""
        place = {self.first + by + number: logprob for number, logprob in enumerate(self.logprobs)}
        return self.along(lambda target: place.get(target, 0.0))

    def advantages(self, first: int, last: int | None = None) -> list[float]:
        """The advantage at targets from `first` on, zeros elsewhere."""
        return self.along(lambda t: self.advantage if first <= t and (last is None or t < last) else 0.0)


def right_fields(case: DatumCase) -> dict[str, list[Any]]:
    """What a datum of `case` holds."""
    return {
        "inputs": case.tokens[:-1],
        "target_tokens": case.tokens[1:],
        "logprobs": case.moved(0),
        "advantages": case.advantages(case.first),
    }


FIELDS: dict[str, tuple[Mistake, ...]] = {
    "inputs": (
        Mistake("inputs_not_cut", lambda c: c.tokens),
        Mistake("inputs_shifted", lambda c: c.tokens[1:]),
    ),
    "target_tokens": (
        Mistake("targets_not_shifted", lambda c: c.tokens[:-1]),
        Mistake("targets_not_cut", lambda c: c.tokens),
    ),
    "logprobs": (
        Mistake("logprobs_in_front", lambda c: (c.logprobs + [0.0] * len(c.tokens))[: len(c.tokens) - 1]),
        Mistake("logprobs_late", lambda c: c.moved(1)),
        Mistake("logprobs_early", lambda c: c.moved(-1)),
        Mistake("logprobs_left_out", lambda c: c.along(lambda _: 0.0)),
        Mistake("probabilities", lambda c: [0.0] * c.first + [math.exp(x) for x in c.logprobs]),
        Mistake("logprobs_negated", lambda c: [-x for x in c.moved(0)]),
    ),
    "advantages": (
        Mistake("prompt_not_masked", lambda c: c.advantages(0)),
        Mistake("last_token_only", lambda c: c.advantages(len(c.tokens) - 2)),
        Mistake("mask_late", lambda c: c.advantages(c.first + 1)),
        Mistake("mask_early", lambda c: c.advantages(c.first - 1)),
        Mistake("mask_inverted", lambda c: c.advantages(0, c.first)),
        Mistake("advantage_flipped", lambda c: [-a for a in c.advantages(c.first)]),
        Mistake("advantage_ignored", lambda c: c.along(lambda t: float(t >= c.first))),
        Mistake("mean_over_tokens", lambda c: [a / len(c.logprobs) for a in c.advantages(c.first)]),
        Mistake(
            "mask_by_value", lambda c: [c.advantage if c.tokens.index(t) >= c.prompt else 0.0 for t in c.tokens[1:]]
        ),
        Mistake("advantage_cut", lambda c: [float(int(a)) for a in c.advantages(c.first)]),
        Mistake(
            "advantage_once_more", lambda c: [a * lp for a, lp in zip(c.advantages(c.first), c.moved(0), strict=True)]
        ),
    ),
}
