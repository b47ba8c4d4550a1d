"""What is commonly got wrong in the four functions: what each mistake would have answered, and what to say of it.

A check fails because an answer is not the right one; these only find the words. An answer that fits none is shown as it came.
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
    says: str
    variant: bool = False


def _over(rewards: Sequence[float], deviation: float) -> list[float]:
    return [(reward - mean(rewards)) / deviation for reward in rewards]


_Z_SCORES = "You divide by the group's standard deviation, as in the first GRPO paper. Allowed, but raw deviations keep what the size of a difference says."

ADVANTAGES = (
    Mistake("standard_deviation", lambda r: _over(r, pstdev(r)), _Z_SCORES, variant=True),
    Mistake("standard_deviation", lambda r: _over(r, stdev(r)), _Z_SCORES, variant=True),
    Mistake(
        "leave_one_out",
        lambda r: [(x - mean(r)) * len(r) / (len(r) - 1) for x in r],
        "Your baseline is the mean of the others (RLOO). Allowed: it is the deviation from the group's mean times G / (G − 1).",
        variant=True,
    ),
    Mistake(
        "mean_not_subtracted",
        lambda r: list(r),
        "These are the rewards themselves: without a baseline, wrong answers are never pushed down. Subtract the group's mean.",
    ),
    Mistake(
        "sign_flipped",
        lambda r: [mean(r) - x for x in r],
        "The sign is flipped: the best answer gets the lowest advantage, so training makes it less likely. It is reward − mean.",
    ),
    Mistake(
        "sum_subtracted",
        lambda r: [x - sum(r) for x in r],
        "You subtract the sum of the rewards. Divide it by their number first: the baseline is the mean.",
    ),
    Mistake(
        "best_subtracted",
        lambda r: [x - max(r) for x in r],
        "You subtract the best reward, so no answer is ever reinforced. The baseline is the mean.",
    ),
    Mistake(
        "worst_subtracted",
        lambda r: [x - min(r) for x in r],
        "You subtract the lowest reward, so no answer is ever pushed down. The baseline is the mean.",
    ),
    Mistake(
        "median_subtracted",
        lambda r: [x - median(r) for x in r],
        "You subtract the median; advantages then do not sum to zero. The baseline is the mean.",
    ),
    Mistake(
        "divided_by_count",
        lambda r: [(x - mean(r)) / len(r) for x in r],
        "The deviations are right but divided by the number of answers. Losses are sums; leave them whole.",
    ),
    Mistake(
        "absolute_values",
        lambda r: [abs(x - mean(r)) for x in r],
        "These are distances from the mean, all positive: answers below the mean would be reinforced too.",
    ),
    Mistake(
        "order_changed",
        lambda r: sorted(x - mean(r) for x in r),
        "The right numbers in another order: advantage i must belong to reward i, so do not sort.",
    ),
    Mistake(
        "order_changed",
        lambda r: sorted((x - mean(r) for x in r), reverse=True),
        "The right numbers in another order: advantage i must belong to reward i, so do not sort.",
    ),
)


Groups = frozenset[str]
SKIPPING: tuple[tuple[str, Callable[[Groups], bool], str], ...] = (
    # name of the mistake, whether it explains which groups were decided wrongly, what to say
    ("inverted", lambda w: {"zeros", "mixed", "all positive"} <= w, "The answer is inverted: True means that the group is left out."),
    ("never_skips", lambda w: {"zeros", "rounding noise"} <= w and "mixed" not in w and "all positive" not in w, "Nothing is ever skipped: a group whose rewards are all equal has no gradient and only costs time."),
    ("always_skips", lambda w: {"mixed", "all positive", "all negative"} <= w, "Everything is skipped, so nothing would be learned. Skip only where every advantage is zero."),
    ("sum_is_zero", lambda w: "mixed" in w and "all positive" not in w, "You look at the sum (or mean) of the advantages, which is zero in every group. Look at each: skip where all of them are zero."),
    ("skips_all_positive", lambda w: "all positive" in w, "A group whose advantages are all positive is skipped; it has a gradient. Look at the distance from zero, not at the sign."),
    ("looks_at_the_largest", lambda w: "all negative" in w, "A group whose advantages are all negative is skipped; take absolute values before you compare."),
    ("any_instead_of_all", lambda w: "one zero" in w, "One zero among the advantages is enough for you to skip; it must be all of them."),
    ("no_tolerance", lambda w: "rounding noise" in w, "You compare with exactly zero, so that rounding noise (1e-17) counts as a signal. Allow for a tolerance such as 1e-8."),
    ("tolerance_too_wide", lambda w: "small" in w, "Small advantages, which a small difference in rewards makes, are taken for zero. A tolerance such as 1e-8 is enough."),
    ("empty_group", lambda w: w == {"empty"}, "An empty group has nothing to train on: return True for [], and do not fail."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drawn:
    """A trajectory that is given: `prompt` tokens of its `tokens` were not sampled."""

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


def right_fields(case: Drawn) -> dict[str, list[Any]]:
    """What a datum of `case` holds."""
    return {
        "inputs": case.tokens[:-1],
        "target_tokens": case.tokens[1:],
        "logprobs": case.moved(0),
        "advantages": case.advantages(case.first),
    }


_SHIFT = "A model reads tokens[:-1] and predicts tokens[1:]: the target of each position is the token after it."
FIELDS: dict[str, tuple[Mistake, ...]] = {
    "inputs": (
        Mistake("inputs_not_cut", lambda c: c.tokens, f"The last token stays in the inputs, though nothing follows that it could predict. {_SHIFT}"),
        Mistake("inputs_shifted", lambda c: c.tokens[1:], f"The inputs are what should be the targets. {_SHIFT}"),
    ),
    "target_tokens": (
        Mistake("targets_not_shifted", lambda c: c.tokens[:-1], f"The targets are the inputs: the model would learn to repeat what it reads. {_SHIFT}"),
        Mistake("targets_not_cut", lambda c: c.tokens, f"The targets are all tokens. {_SHIFT}"),
    ),
    "logprobs": (
        Mistake("logprobs_in_front", lambda c: (c.logprobs + [0.0] * len(c.tokens))[: len(c.tokens) - 1], "The log-probabilities stand at the front, on the prompt. Put as many zeros before them as targets belong to the prompt."),
        Mistake("logprobs_late", lambda c: c.moved(1), "The log-probabilities stand one position late: targets are shifted by one, so the first sampled token is target ob_len − 1."),
        Mistake("logprobs_early", lambda c: c.moved(-1), "The log-probabilities stand one position early."),
        Mistake("logprobs_left_out", lambda c: c.along(lambda _: 0.0), "All log-probabilities are zero: the ratio of new and old policy is wrong everywhere. Use those of the sampler."),
        Mistake("probabilities", lambda c: [math.exp(x) if x else 0.0 for x in c.moved(0)], "These are probabilities; log-probabilities are wanted, as the sampler gives them."),
        Mistake("logprobs_negated", lambda c: [-x for x in c.moved(0)], "The log-probabilities have the wrong sign; they are at most zero."),
    ),
    "advantages": (
        Mistake("prompt_not_masked", lambda c: c.advantages(0), "The prompt has the advantage too, so that the model is trained on tokens that it did not write. Use zeros there."),
        Mistake("last_token_only", lambda c: c.advantages(len(c.tokens) - 2), "Only the last token has the advantage; every sampled token needs it."),
        Mistake("mask_late", lambda c: c.advantages(c.first + 1), "The advantages begin one position late: the first sampled token is never trained. Targets are shifted by one."),
        Mistake("mask_early", lambda c: c.advantages(c.first - 1), "The advantages begin one position early: the last token of the prompt is trained. Targets are shifted by one."),
        Mistake("mask_inverted", lambda c: c.advantages(0, c.first), "The mask is inverted: the prompt has the advantage, the completion has none."),
        Mistake("advantage_flipped", lambda c: [-a for a in c.advantages(c.first)], "The sign of the advantage is flipped; the loss function has the minus already."),
        Mistake("advantage_ignored", lambda c: c.along(lambda t: float(t >= c.first)), "The advantage is not used: every sampled token has 1, whatever the reward."),
        Mistake("mean_over_tokens", lambda c: [a / len(c.logprobs) for a in c.advantages(c.first)], "The advantage is divided by the number of tokens: a mean, where each token has the whole advantage and losses are summed."),
        Mistake("advantage_cut", lambda c: [float(int(a)) for a in c.advantages(c.first)], "The advantage was cut to a whole number, perhaps by an array of integers. Use float32."),
        Mistake("advantage_once_more", lambda c: [a * lp for a, lp in zip(c.advantages(c.first), c.moved(0), strict=True)], "The advantage is multiplied by the log-probability; the loss function does that."),
    ),
}  # fmt: skip
