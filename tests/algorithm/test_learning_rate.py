"""The learning rate of a step: warm-up, and decays that reach 0 at the end."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.training.algorithm.learning_rate import LearningRateSchedule, learning_rate

BASE = 2e-3
schedules = st.sampled_from(["constant", "linear", "cosine"])


def rates(schedule: LearningRateSchedule, warmup_steps: int, max_steps: int) -> list[float]:
    return [
        learning_rate(BASE, step, schedule=schedule, warmup_steps=warmup_steps, max_steps=max_steps)
        for step in range(max_steps + 1)
    ]


def test_constant_without_warm_up_is_the_base_to_the_bit_also_without_an_end():
    for step in (0, 7, 10**9):
        assert learning_rate(BASE, step, schedule="constant", warmup_steps=0, max_steps=-1) == BASE


def test_warm_up_rises_by_equal_parts_and_ends_at_the_base():
    assert rates("constant", 4, 6)[:5] == pytest.approx([BASE / 4, BASE / 2, BASE * 3 / 4, BASE, BASE])


def test_a_line_falls_by_equal_parts_to_zero_at_max_steps():
    assert rates("linear", 2, 6) == pytest.approx([BASE / 2, BASE, BASE, BASE * 3 / 4, BASE / 2, BASE / 4, 0])


def test_half_a_cosine_is_at_its_middle_half_way_and_slow_at_both_ends():
    found = rates("cosine", 0, 100)
    assert found[50] == pytest.approx(BASE / 2)
    assert found[25] == pytest.approx(BASE * (1 + math.cos(math.pi / 4)) / 2)
    assert found[100] == pytest.approx(0, abs=1e-12)


@given(schedules, st.integers(0, 30), st.integers(1, 60))
def test_every_trained_step_has_a_rate_above_zero_and_never_above_the_base(schedule, warmup_steps, more):
    found = rates(schedule, warmup_steps, warmup_steps + more)
    assert all(0 < rate <= BASE for rate in found[:-1])
    assert found[warmup_steps:] == sorted(found[warmup_steps:], reverse=True)
    assert found[:warmup_steps] == sorted(found[:warmup_steps])


@given(schedules, st.integers(0, 50))
def test_past_its_end_a_decay_stays_at_zero(schedule, beyond):
    rate = learning_rate(BASE, 20 + beyond, schedule=schedule, warmup_steps=3, max_steps=20)
    assert rate == pytest.approx(BASE if schedule == "constant" else 0, abs=1e-18)
