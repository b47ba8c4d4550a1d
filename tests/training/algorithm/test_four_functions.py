"""The four functions: invariants, and alignment against a reference that is computed position by position."""

from __future__ import annotations

import math
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinker import types

from tests.refusals import refused
from train import compute_advantages, make_datum, should_skip, train_step

rewards = st.lists(st.floats(-10, 10, allow_nan=False), max_size=40)
finite = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(st.floats(-1e-8, 1e-8), max_size=20))
def test_a_group_is_skipped_for_rounding_noise_and_kept_for_any_advantage(advantages):
    assert should_skip(advantages)
    assert not should_skip([*advantages, 2e-8])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_advantages_that_are_not_finite_are_an_error_wherever_they_stand(bad):
    with refused("advantage 1", kind=ValueError):
        should_skip([0.0, bad])
    with refused("advantage 1", kind=ValueError):
        should_skip([1.0, bad])


def test_advantages_are_deviations_from_the_mean_without_normalisation():
    assert compute_advantages([0.0, 1.0]) == [-0.5, 0.5]
    assert compute_advantages([1.0, 0.0, 0.0, 0.0]) == [0.75, -0.25, -0.25, -0.25]


@given(rewards)
def test_advantages_sum_to_zero(values):
    assert math.isclose(sum(compute_advantages(values)), 0.0, abs_tol=1e-9)


@given(rewards, finite)
def test_a_constant_added_to_every_reward_changes_nothing(values, shift):
    shifted = compute_advantages([value + shift for value in values])
    assert shifted == pytest.approx(compute_advantages(values), abs=1e-7)


@given(rewards, st.randoms())
def test_advantages_follow_their_rewards_when_the_group_is_reordered(values, random):
    order = list(range(len(values)))
    random.shuffle(order)
    plain = compute_advantages(values)
    assert compute_advantages([values[i] for i in order]) == pytest.approx([plain[i] for i in order], abs=1e-12)


@given(st.floats(-10, 10, allow_nan=False), st.integers(1, 64))
def test_equal_rewards_make_a_degenerate_group(value, count):
    assert should_skip(compute_advantages([value] * count))


def test_reward_that_is_not_finite_is_an_error():
    with refused("reward 0", kind=ValueError):
        compute_advantages([math.nan, 1.0])


def test_members_without_a_verdict_are_no_part_of_the_baseline():
    advantages = compute_advantages([1.0, None, 0.0, None])
    assert advantages == [0.5, None, -0.5, None]
    assert not should_skip(advantages)
    assert should_skip(compute_advantages([None, None]))


@st.composite
def rollout(draw):
    prompt = draw(st.lists(st.integers(0, 50_000), min_size=1, max_size=30))
    completion = draw(st.lists(st.integers(0, 50_000), min_size=1, max_size=30))
    logprobs = draw(
        st.lists(st.floats(-30, 0, allow_nan=False, width=32), min_size=len(completion), max_size=len(completion))
    )
    return prompt, completion, logprobs, draw(st.floats(-2, 2, width=32))


@given(rollout(), st.booleans())
def test_datum_aligns_every_position(case, shifted):
    prompt, completion, logprobs, advantage = case
    tokens = prompt + completion
    datum = make_datum(tokens, logprobs, len(prompt) - shifted, advantage)
    inputs = datum.model_input.to_ints()
    targets = datum.loss_fn_inputs["target_tokens"].to_numpy().tolist()
    seen_logprobs = datum.loss_fn_inputs["logprobs"].to_numpy().tolist()
    seen_advantages = datum.loss_fn_inputs["advantages"].to_numpy().tolist()
    assert len(inputs) == len(targets) == len(seen_logprobs) == len(seen_advantages) == len(tokens) - 1
    for position in range(len(tokens) - 1):
        assert inputs[position] == tokens[position]
        assert targets[position] == tokens[position + 1]
        of_completion = position + 1 - len(prompt)
        assert seen_logprobs[position] == (logprobs[of_completion] if of_completion >= 0 else 0.0)
        assert seen_advantages[position] == (advantage if of_completion >= 0 else 0.0)


@given(rollout(), st.integers(-5, 100))
def test_any_other_prompt_length_is_refused_with_the_lengths(case, ob_len):
    prompt, completion, logprobs, advantage = case
    if ob_len in (len(prompt), len(prompt) - 1):
        return
    with refused(str(len(prompt + completion)), f"ob_len={ob_len}", kind=ValueError):
        make_datum(prompt + completion, logprobs, ob_len, advantage)


@pytest.mark.parametrize(("logprob", "advantage"), [(math.nan, 1.0), (-math.inf, 1.0), (-1.0, math.nan)])
def test_datum_refuses_numbers_that_are_not_finite(logprob, advantage):
    with refused(kind=ValueError):
        make_datum([1, 2, 3], [-0.5, logprob], 1, advantage)


class RecordedRun:
    """A training client that notes the order of submissions and waits."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def forward_backward(self, data: Any, loss_fn: str) -> Any:
        self.events.append(f"submit {loss_fn} {len(data)}")
        return self._future("forward_backward")

    def optim_step(self, params: Any) -> Any:
        self.events.append(f"submit optim_step {params.learning_rate}")
        return self._future("optim_step")

    def _future(self, name: str) -> Any:
        events = self.events

        class Noted(Future):
            def result(self, timeout: float | None = None) -> Any:
                events.append(f"wait {name}")

        return Noted()


def test_train_step_submits_both_requests_before_it_waits_for_either():
    client: Any = RecordedRun()
    datum = make_datum(tokens=[1, 2], logprobs=[-0.1], ob_len=1, advantage=1.0)
    train_step(training_client=client, datums=[datum], adam_params=types.AdamParams(learning_rate=0.25))
    assert client.events == [
        "submit importance_sampling 1",
        "submit optim_step 0.25",
        "wait forward_backward",
        "wait optim_step",
    ]


def test_a_step_without_datums_does_nothing():
    client: Any = RecordedRun()
    train_step(client, [], types.AdamParams(learning_rate=0.25))
    assert client.events == []


def test_tokens_that_the_policy_did_not_write_have_no_advantage():
    datum = make_datum([1, 2, 3, 4, 5, 6], [-0.5, None, None, -0.25], 2, 2.0)
    assert datum.loss_fn_inputs["advantages"].to_numpy().tolist() == [0.0, 2.0, 0.0, 0.0, 2.0]
    assert datum.loss_fn_inputs["logprobs"].to_numpy().tolist() == [0.0, -0.5, 0.0, 0.0, -0.25]
