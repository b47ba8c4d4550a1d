"""Rates and J: faultless, useless and unknown rewards, and intervals that count problems."""

from __future__ import annotations

import pytest

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
