"""pass@k against brute force, and the interval's behaviour."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.evaluation.passk import mean_with_interval, pass_at_k

PUBLISHED = [
    (6, 3, 1, 0.4999999999999999),
    (5, 2, 3, 0.9),
    (8, 3, 4, 0.9285714285714286),
    (10, 1, 10, 1.0),
    (16, 1, 8, 0.5),
    (20, 5, 10, 0.9837461300309598),
    (64, 2, 8, 0.23611111111111116),
    (100, 3, 10, 0.2734693877551021),
    (200, 0, 100, 0.0),
    (200, 1, 100, 0.5),
    (200, 13, 1, 0.06500000000000017),
    (200, 13, 10, 0.4975511147306061),
    (200, 13, 100, 0.9999194971988055),
    (200, 101, 100, 1.0),
    (200, 190, 5, 0.9999999006172003),
]
"""(n, c, k, pass@k): what the estimator published with HumanEval gives, as evalplus 0.3.1 carries it; the first is printed in HumanEval's README."""


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
    with pytest.raises(ValueError, match="undefined"):
        pass_at_k(n, correct, k)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_interval_holds_the_mean_and_is_reproducible(values):
    estimate = mean_with_interval(values)
    assert estimate.low - 1e-9 <= estimate.value <= estimate.high + 1e-9
    assert mean_with_interval(values) == estimate


def test_interval_covers_a_known_mean_about_19_times_in_20():
    import numpy as np

    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        estimate = mean_with_interval((rng.random(60) < 0.3).astype(float).tolist())
        hits += estimate.low <= 0.3 <= estimate.high
    assert 175 <= hits <= 200


def test_no_problems_is_an_error():
    with pytest.raises(ValueError, match="no problems"):
        mean_with_interval([])
