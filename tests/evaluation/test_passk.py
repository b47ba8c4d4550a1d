"""pass@k against brute force, and how often an interval covers the true value."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.evaluation.pass_at_k import (
    Estimate,
    SampleOutcome,
    combined,
    crossed_difference,
    figures,
    mean_with_interval,
    pass_at_k,
)
from code_rl.grading import VerdictKind
from code_rl.util.rates import wilson
from tests.refusals import refused

PUBLISHED = [
    (5, 2, 3, 0.9), (8, 3, 4, 0.9285714285714286), (16, 1, 8, 0.5), (20, 5, 10, 0.9837461300309598), (200, 0, 100, 0.0),
    (200, 13, 1, 0.06500000000000017), (200, 13, 100, 0.9999194971988055), (200, 190, 5, 0.9999999006172003),
]  # fmt: skip
"""(n, c, k, pass@k): what the estimator published with HumanEval gives, as evalplus 0.3.1 carries it."""


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_pass_at_k_equals_the_share_of_all_draws_that_hold_a_right_one(case):
    n, correct, k = case
    draws = list(combinations(range(n), k))
    share = sum(any(i < correct for i in draw) for draw in draws) / len(draws)
    assert pass_at_k(n, correct, k) == pytest.approx(share)


@pytest.mark.parametrize(("n", "correct", "k", "published"), PUBLISHED)
def test_pass_at_k_is_the_published_estimators_to_the_last_bit(n, correct, k, published):
    assert pass_at_k(n, correct, k) == published


@pytest.mark.parametrize(("n", "correct", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5)])
def test_undefined_cases_are_refused(n, correct, k):
    with refused(kind=ValueError):
        pass_at_k(n, correct, k)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_interval_holds_the_mean_and_is_reproducible(values):
    estimate = mean_with_interval(values)
    assert estimate.low - 1e-9 <= estimate.value <= estimate.high + 1e-9
    assert mean_with_interval(values) == estimate


COVERED = [(n, mean) for n in (1, 16) for mean in (0.05, 0.5, 0.95)]
SIMULATED = 300


@pytest.mark.long
@pytest.mark.parametrize("problems", [16, 64])
@pytest.mark.parametrize(("n", "mean"), COVERED)
@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_an_interval_covers_the_mean_in_19_of_20_evaluations_also_near_0_and_1(n, mean, problems, spread):
    """Problems' own pass rates are Beta distributed: nearly all or nothing (0.3), or alike (3)."""
    rng = np.random.default_rng(n * problems)
    hits = 0
    for _ in range(SIMULATED):
        right_P = rng.binomial(n, rng.beta(mean * spread, (1 - mean) * spread, problems))
        estimate = mean_with_interval((right_P / n).tolist())
        hits += estimate.low <= mean <= estimate.high
    assert hits >= 0.915 * SIMULATED


@pytest.mark.parametrize("gain", [0.0, 0.1, 0.6])
def test_the_interval_of_a_paired_difference_covers_it(gain):
    rng = np.random.default_rng(5)
    hits = 0
    for _ in range(SIMULATED):
        rates_P = rng.beta(0.05, 0.95, 32) * (1 - gain)
        first_P, second_P = rng.binomial(4, rates_P) / 4, rng.binomial(4, rates_P + gain) / 4
        estimate = crossed_difference([first_P.tolist()], [second_P.tolist()])
        hits += estimate.low <= gain <= estimate.high
    assert hits >= 0.915 * SIMULATED


@pytest.mark.parametrize(
    ("values", "low", "high"), [([0.0] * 16, 0.0, 0.19), ([1.0] * 16, 0.81, 1.0), ([0.0] * 15 + [0.25], 0.0, 0.15)]
)
def test_few_problems_without_success_prove_no_zero(values, low, high):
    estimate = mean_with_interval(values)
    assert estimate.low == pytest.approx(low, abs=0.02)
    assert estimate.high == pytest.approx(high, abs=0.06)


def test_a_problem_with_fewer_verdicts_than_k_is_not_in_pass_at_k():
    def outcomes(*kinds):
        return [SampleOutcome(kind, format_ok=True, truncated=False) for kind in kinds]

    right, wrong, ours = VerdictKind.PASSED, VerdictKind.WRONG_ANSWER, VerdictKind.SANDBOX_ERROR
    found = figures([outcomes(right, wrong), outcomes(wrong, ours), outcomes(ours, ours)], (1, 2, 4)).pass_at
    assert {k: (estimate.value, estimate.problems) for k, estimate in found.items()} == {1: (0.25, 2), 2: (1.0, 1)}


def test_a_combined_difference_of_two_rates_is_newcombes():
    first, second = (Estimate(x / n, *wilson(x, n), n) for x, n in ((56, 70), (48, 80)))
    found = combined([(1, first), (-1, second)])
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)
    mean = combined([(0.5, first), (0.5, second)])
    assert first.value > mean.value > second.value
    assert mean.high - mean.low < min(each.high - each.low for each in (first, second))
