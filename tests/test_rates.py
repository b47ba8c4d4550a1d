"""Rates, their intervals and J: faultless, useless and unknown rewards, and intervals that count problems."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.util.rates import Rate, RewardQuality, wilson


@pytest.mark.parametrize(
    ("right", "wrong", "j"), [(10, 0, 1.0), (10, 10, 0.0), (0, 0, 0.0), (0, 10, -1.0), (9, 1, 0.8)]
)
def test_j_is_one_for_a_faultless_reward_and_zero_for_one_that_tells_nothing(right: int, wrong: int, j: float) -> None:
    found = RewardQuality(Rate(right, 10, 10), Rate(wrong, 10, 10))
    assert found.j == pytest.approx(j)
    low, high = found.ends
    assert low <= j <= high


def test_j_has_newcombes_interval() -> None:
    """Newcombe 1998, table II, method 10: 56 of 70 and 48 of 80."""
    low, high = RewardQuality(Rate(56, 70, 70), Rate(48, 80, 80)).ends
    assert (low, high) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_without_right_or_wrong_programs_nothing_is_known() -> None:
    none = Rate(0, 0, 0)
    assert none.ends == (0.0, 1.0)
    found = RewardQuality(none, Rate(0, 5, 5))
    assert (found.j, found.ends) == (None, (-1.0, 1.0))


def test_an_interval_counts_problems_and_not_their_programs() -> None:
    assert Rate(0, 60, 10).ends[1] == pytest.approx(wilson(0, 10)[1])
    assert Rate(0, 60, 60).ends[1] < Rate(0, 60, 10).ends[1]


@pytest.mark.parametrize(
    ("passed", "n", "low", "high"),
    [(0, 8, 0.0, 0.3244), (8, 8, 0.6756, 1.0), (4, 8, 0.2152, 0.7848), (1, 10, 0.0179, 0.4042)],
)
def test_wilson_intervals_are_those_of_the_books(passed: int, n: int, low: float, high: float) -> None:
    assert wilson(passed, n) == pytest.approx((low, high), abs=1e-4)


@given(st.integers(1, 500), st.data())
def test_wilson_holds_the_rate_within_zero_and_one(n: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, n))
    low, high = wilson(passed, n)
    assert 0 <= low <= passed / n + 1e-12
    assert passed / n - 1e-12 <= high <= 1
    assert math.isclose(wilson(n - passed, n)[1], 1 - low, abs_tol=1e-9)
