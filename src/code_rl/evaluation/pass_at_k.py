"""The unbiased pass@k estimator and intervals over problems.

Problems are resampled, not completions: the completions of one problem are not independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from code_rl.grading import VerdictKind
from code_rl.util.errors import SandboxError
from code_rl.util.rates import wilson

Floats = npt.NDArray[np.float64]
RESAMPLES = 2000
BOUND_WEIGHT = 0.5
"""Weight of an assumed value at each bound, against 1 for each problem: values that are absent
among few problems may still exist. With values of 0 and 1 this is Jeffreys' interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `problems` with its 95% interval."""

    value: float
    low: float
    high: float
    problems: int


def rate(value: float, ends: Sequence[float]) -> str:
    """Return a rate with its interval (low, high), all from 0 to 1, as text in per cent."""
    low, high = ends
    return f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the probability that at least one of k completions, drawn without replacement from n
    with `correct` right, is right.

    1 - C(n - c, k) / C(n, k), computed as in Chen et al. 2021 (arXiv:2107.03374), without large
    binomials. Raises ValueError unless 0 <= correct <= n and 1 <= k <= n.
    """
    if not (0 <= correct <= n and 1 <= k <= n):
        raise ValueError(
            f"pass@{k} of {correct} right among {n} is undefined; need 0 <= correct <= n and 1 "
            "<= k <= n"
        )
    if n - correct < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - correct + 1, n + 1)))


@lru_cache(1)  # consecutive figures of a benchmark use the same weights
def _drawn_weights(problems: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Return, for each resample: the weights of the problems [RESAMPLES, problems], those of the
    two bounds, and their sum. They are the same for the same number of problems, so intervals can
    be repeated; they must not be changed in place."""
    rng = np.random.default_rng(0)
    weights_RP = rng.standard_exponential((RESAMPLES, problems))
    at_least_R, at_most_R = rng.standard_gamma(BOUND_WEIGHT, (2, RESAMPLES))
    return weights_RP, at_least_R, at_most_R, weights_RP.sum(axis=1) + at_least_R + at_most_R


def mean_with_interval(values_P: Sequence[float]) -> Estimate:
    """Return the mean of one value per problem, each from 0 to 1, with its 95% interval over
    problems. There is at least one; equal values give equal intervals.

    If every value is 0 or 1 (one completion per problem), this is Wilson's interval. Otherwise it
    is Rubin's Bayesian bootstrap (2,000 seeded draws of weights) with half an assumed value at each
    bound. Coverage is simulated in `tests/evaluation/test_passk.py`.
    """
    found_P = np.asarray(values_P, dtype=np.float64)
    mean, problems = float(found_P.mean()), len(found_P)
    if np.isin(found_P, (0.0, 1.0)).all():
        low, high = wilson(round(found_P.sum()), problems)
        return Estimate(mean, min(low, mean), max(high, mean), problems)
    weights_RP, _, at_most_R, total_R = _drawn_weights(problems)
    means_R = (weights_RP @ found_P + at_most_R) / total_R
    low, high = np.quantile(means_R, [0.025, 0.975])
    return Estimate(mean, min(float(low), mean), max(float(high), mean), problems)


def crossed_difference(
    first_SP: Sequence[Sequence[float]], second_SP: Sequence[Sequence[float]]
) -> Estimate:
    """Return the mean of second minus first over S seeds and P problems, with its interval over
    both.

    Pairing removes the problems' own difficulty from the interval. A Bayesian bootstrap draws
    weights of the seeds and of the problems, crossed. Half a problem with difference 1 and half a
    problem with difference −1 are added, so that the interval of few problems stays wide however
    many samples they have. With one seed the interval is over problems only. With few seeds it is
    too narrow rather than too wide. Raises ValueError for sequences of different lengths.
    """
    differences_SP = np.asarray(second_SP, dtype=np.float64) - np.asarray(first_SP)
    seeds, problems = differences_SP.shape
    weights_RP, at_least_R, at_most_R, total_R = _drawn_weights(problems)
    weights_RS = np.random.default_rng(1).dirichlet(np.ones(seeds), RESAMPLES)
    drawn_R = np.einsum("rs,sp,rp->r", weights_RS, differences_SP, weights_RP)
    means_R = (drawn_R - at_least_R + at_most_R) / total_R
    mean = float(differences_SP.mean())
    low, high = np.quantile(means_R, [0.025, 0.975])
    return Estimate(mean, min(float(low), mean), max(float(high), mean), problems)


def combined(parts: Sequence[tuple[float, Estimate]]) -> Estimate:
    """Return the weighted sum of independent estimates with its 95% interval (G. Y. Zou and A.
    Donner, 2008); a negative weight subtracts. There is at least one part.

    Each bound is computed from the parts' bounds in its direction. For two rates with Wilson's
    intervals this is Newcombe's interval. `problems` counts the parts that are added.
    """
    value = sum(weight * part.value for weight, part in parts)
    ends = [
        sorted((weight * (part.low - part.value), weight * (part.high - part.value)))
        for weight, part in parts
    ]
    low, high = (math.hypot(*side) for side in zip(*ends, strict=True))
    return Estimate(
        value, value - low, value + high, sum(part.problems for weight, part in parts if weight > 0)
    )


@dataclass(frozen=True, slots=True)
class SampleOutcome:
    """The outcome of one completion. `format_ok`: it had a fenced block; `truncated`: it was cut at
    the token limit."""

    kind: VerdictKind
    format_ok: bool
    truncated: bool
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def judged(self) -> bool:
        """True if the verdict is about the program; False for `sandbox_error` and
        `checker_error`."""
        return not self.kind.undecided

    @property
    def correct(self) -> bool:
        """True if every test passed; False also without a verdict."""
        return self.kind is VerdictKind.PASSED


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a set of problems.

    `problems` counts those with at least one verdict, `samples` all completions. `pass_at` maps k
    to pass@k over the problems with at least k verdicts; a k without such a problem is left out.
    Rates are over all completions.
    """

    problems: int
    samples: int
    pass_at: Mapping[int, Estimate]
    format_rate: float
    truncated_rate: float
    verdicts: Mapping[str, int]
    prompt_tokens: int
    completion_tokens: int


def figures(outcomes_P: Sequence[Sequence[SampleOutcome]], ks: Iterable[int]) -> Figures:
    """Return the figures of completions by problem, for each k of `ks`. Completions without a
    verdict count for the rates and tokens, not for pass@k. Raises SandboxError if no completion has
    a verdict."""
    everything = [outcome for outcomes in outcomes_P for outcome in outcomes]
    counted_P = [counts for outcomes in outcomes_P if (counts := verdict_counts(outcomes))[0]]
    if not counted_P:
        raise SandboxError(
            "no completion of a held-out split got a verdict; the sandbox failed on all of them"
        )
    return Figures(
        problems=len(counted_P),
        samples=len(everything),
        pass_at={
            k: mean_with_interval(values_P)
            for k in ks
            if (values_P := [pass_at_k(n, c, k) for n, c in counted_P if n >= k])
        },
        format_rate=sum(outcome.format_ok for outcome in everything) / len(everything),
        truncated_rate=sum(outcome.truncated for outcome in everything) / len(everything),
        verdicts=Counter(outcome.kind.value for outcome in everything),
        prompt_tokens=sum(outcome.prompt_tokens for outcome in everything),
        completion_tokens=sum(outcome.completion_tokens for outcome in everything),
    )


def verdict_counts(outcomes: Sequence[SampleOutcome]) -> tuple[int, int]:
    """Return (number of completions with a verdict, number of those that passed)."""
    judged = [outcome for outcome in outcomes if outcome.judged]
    return len(judged), sum(outcome.correct for outcome in judged)
