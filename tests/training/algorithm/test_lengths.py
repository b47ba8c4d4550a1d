"""Context stages: by step and by criterion, and that a stage depends on settings and known steps alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.data.load import with_tests, within_difficulty
from code_rl.grading import Problem, StdinTest
from code_rl.training.config import make_config
from tests.kinds import each_is
from tests.refusals import refused


@cache
def scheduled(text, **shape):
    """The token limits of a setting, with another window or lag."""
    return replace(make_config({"max_tokens_schedule": text}).schedule(), **shape)


def shown(truncated, correct):
    return {"truncated_rate": truncated, "mean_correct": correct}


def limits(schedule, facts, steps):
    return [schedule.stages[schedule.stage(step, facts)].max_tokens for step in range(steps)]


def test_truncation_above_the_share_over_the_window_begins_the_next_stage():
    facts = [shown(share, 0.5) for share in (0.1, 0.3, 0.3, 0.3, 0.3, 0.3)]
    schedule = scheduled("0:16,truncated>0.2:32,truncated>0.2:64", window=2)
    assert limits(schedule, facts, 7) == [16, 16, 16, 32, 32, 64, 64]


def test_a_plateau_needs_two_windows_without_a_rise():
    facts = [shown(0.0, correct) for correct in (0.1, 0.2, 0.3, 0.4, 0.3, 0.4, 0.9)]
    schedule = scheduled("0:16,plateau:32", window=2)
    assert limits(schedule, facts, 8) == [16] * 6 + [32] * 2


@pytest.mark.parametrize("criterion", ["plateau", "truncated>0.2"])
def test_a_stage_begins_at_its_step_also_behind_a_criterion_that_is_not_met(criterion):
    rising = [shown(0.0, step / 10) for step in range(8)]
    schedule = scheduled(f"0:16,{criterion}:32,4:64", window=1)
    assert limits(schedule, rising, 8) == [16] * 4 + [64] * 4


def test_a_criterion_that_is_met_in_time_begins_its_stage_before_the_step_behind_it():
    schedule = scheduled("0:16,truncated>0.2:32,4:64,truncated>0.2:128", window=2)
    assert limits(schedule, [shown(0.5, 0.5)] * 8, 8) == [16, 16, 32, 32, 64, 64, 128, 128]


def test_steps_without_a_verdict_meet_no_criterion():
    facts = [shown(None, None)] * 8
    for criterion in ("plateau", "truncated>0"):
        schedule = scheduled(f"0:16,{criterion}:32", window=1)
        assert limits(schedule, facts, 9) == [16] * 9


facts_of = st.lists(st.builds(shown, st.floats(0, 1), st.floats(0, 1)), min_size=12, max_size=12)


def test_stages_begin_at_their_steps():
    schedule = scheduled("0:16, 2:32,4:64")
    assert limits(schedule, [], 6) == [16, 16, 32, 32, 64, 64]
    assert schedule.longest == 64


texts = st.sampled_from(["0:16,truncated>0.5:32,plateau:64", "0:16,3:32,truncated>0.4:64", "0:16,plateau:32,9:64"])


@given(facts_of, facts_of, texts, st.integers(0, 3))
def test_no_stage_looks_at_steps_that_are_not_known_when_its_sampling_begins(facts, others, text, lag):
    schedule = scheduled(text, window=2, lag=lag)
    for step in range(12):
        known = max(step - lag, 0)
        assert schedule.stage(step, facts[:known]) == schedule.stage(step, facts[:known] + others[known:])


@given(facts_of, texts, st.integers(0, 3))
def test_stages_never_go_back(facts, text, lag):
    schedule = scheduled(text, window=2, lag=lag)
    stages = [schedule.stage(step, facts) for step in range(13)]
    assert stages == sorted(stages)


@pytest.mark.parametrize(
    "text", ["16384", "5:16", "0:16,0:32", "0:0", "0:16,truncated>2:32", "0:16,soon:32", "", "0:x"]
)
def test_what_cannot_be_read_is_refused(text):
    with refused("max_tokens_schedule"):
        make_config({"max_tokens_schedule": text})


def rated(rate: float | None) -> Problem:
    meta = {} if rate is None else {"prepare": {"difficulty": {"pass_rate": rate}}}
    return Problem(id=f"p{rate}", statement="s", tests=(StdinTest(input="", expected=""),), meta=meta)


def test_difficulty_keeps_problems_within_its_bounds_ends_included():
    problems = [rated(rate) for rate in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert [p.id for p in within_difficulty(problems, "0.1..0.9")] == ["p0.1", "p0.5", "p0.9"]


@pytest.mark.parametrize(("rates", "words"), [((0.5, None), "1 of 2 problems lack"), ((0.0, 1.0), "leaves none of 2")])
def test_difficulty_without_pass_rates_or_without_problems_left_is_refused(rates, words):
    with refused(words):
        within_difficulty([rated(rate) for rate in rates], "0.1..0.9")


def with_inputs(name: str, *inputs: str) -> Problem:
    tests = tuple(StdinTest(text, "", public=text.startswith("public")) for text in inputs)
    return Problem(id=name, statement="s", tests=tests)


def test_problems_with_too_few_tests_are_left_out_and_others_keep_public_and_longest_ones_in_order():
    few, many = with_inputs("few", "1", "22"), with_inputs("many", "22", "1", "4444", "public", "333")
    (kept,) = with_tests([few, many], 3, 3)
    assert [test.input for test in each_is(StdinTest, kept.tests)] == ["4444", "public", "333"]
    assert [each.id for each in with_tests([few, many], 1, None)] == ["few", "many"]
    assert [len(each.tests) for each in with_tests([few, many], 1, 1)[:]] == [1, 1]
    with refused("min_tests="):
        with_tests([few, many], 9, None)
