"""Rewards, advantages and losses: each setting changes its own part and nothing else, and that masked members never count as numbers."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from code_rl import compute_advantages, make_datum, should_skip
from code_rl.engine.losses import Loss, get_loss
from code_rl.loop import examples_of, log_p_ref, score_group
from code_rl.training.algorithm.datums import Example, Segment, forward_backward
from code_rl.training.algorithm.kl import penalise_kl
from code_rl.training.algorithm.metrics import loss_metrics
from code_rl.util.errors import BackendError
from tests.refusals import refused
from tests.training.rollout_support import group_of, objective, trajectory

rewards = st.lists(st.floats(-10, 10, allow_nan=False), max_size=40)
binary = st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=16)
masks = st.lists(st.sampled_from(["verdict", "none", "cut"]), min_size=1, max_size=16)


@given(rewards)
def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others(values):
    assume(len(values) > 1 and not should_skip(compute_advantages(values)))
    expected = [v - (math.fsum(values) - v) / (len(values) - 1) for v in values]
    assert compute_advantages(values, objective(advantage="leave_one_out").estimator) == pytest.approx(
        expected, abs=1e-9
    )


@given(rewards)
def test_mean_std_has_the_sign_and_order_of_the_mean_and_unit_spread(values):
    plain, scaled = compute_advantages(values), compute_advantages(values, objective(advantage="mean_std").estimator)
    assume(len(values) > 1 and max(map(abs, plain), default=0) > 1e-3)
    assert np.std(scaled, ddof=1) == pytest.approx(1.0, abs=2e-3)
    deviation = np.std(values, ddof=1)
    assert scaled == pytest.approx([a / (deviation + 1e-6) for a in plain], rel=1e-9, abs=1e-12)


@given(binary)
def test_maxrl_weighs_a_success_by_how_rare_it_is(values):
    """The estimator of MaxRL (2602.02710): each success has the weight 1 / K, K the successes of the group."""
    advantages, successes = compute_advantages(values, objective(advantage="maxrl").estimator), sum(values)
    if 0 < successes < len(values):
        expected = [value * len(values) / successes - 1 for value in values]
        assert advantages == pytest.approx(expected, abs=1e-9)


@given(rewards)
def test_maxrl_never_weighs_a_reward_by_more_than_a_single_success_of_the_group(values):
    plain, scaled = compute_advantages(values), compute_advantages(values, objective(advantage="maxrl").estimator)
    assert all(abs(a) <= len(values) * abs(b) + 1e-9 for a, b in zip(scaled, plain, strict=True))


@given(rewards, st.sampled_from(["mean", "mean_std", "leave_one_out"]))
def test_every_kind_sums_to_zero_and_agrees_on_which_groups_are_degenerate(values, kind):
    advantages = compute_advantages(values, objective(advantage=kind).estimator)
    assert math.isclose(math.fsum(advantages), 0.0, abs_tol=1e-5)
    assert should_skip(advantages) == (should_skip(compute_advantages(values)) or len(values) == 1)


@given(binary, st.data(), st.sampled_from(["mean", "mean_std", "leave_one_out"]))
def test_masking_equals_the_group_without_the_masked_members(values, data, kind):
    cut = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    found = score_group(
        group_of(trajectory(reward=r, truncated=c) for r, c in zip(values, cut, strict=True)),
        objective(overlong="mask", advantage=kind),
    )
    kept = [r for r, c in zip(values, cut, strict=True) if not c]
    assert [a for a in found.advantages_G if a is not None] == compute_advantages(
        kept, objective(advantage=kind).estimator
    )
    assert [reason == "overlong" for reason in found.mask_reasons_G] == cut
    assert found.rewards_G == tuple(values)


@given(binary, st.data())
def test_mask_loss_keeps_the_baseline_of_all(values, data):
    cut = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    members = [trajectory(reward=r, truncated=c) for r, c in zip(values, cut, strict=True)]
    whole = score_group(group_of(members), objective())
    found = score_group(group_of(members), objective(overlong="mask_loss"))
    assert found.advantages_G == tuple(None if c else a for a, c in zip(whole.advantages_G, cut, strict=True))


def test_a_right_answer_among_cut_and_wrong_ones_is_trained_unless_the_cut_ones_are_no_part_of_its_group():
    cut = [trajectory(reward=0.0, truncated=True) for _ in range(2)]
    for overlong, others, advantages in (
        ("mask_loss", cut, (2 / 3, None, None)),
        ("mask", cut, None),
        ("mask", [cut[0], trajectory(reward=0.0)], (0.5, None, -0.5)),
    ):
        found = score_group(group_of([trajectory(reward=1.0), *others]), objective(overlong=overlong))
        assert bool(found.skipped) is (advantages is None)
        assert advantages is None or found.advantages_G == pytest.approx(advantages)


def test_a_lost_verdict_is_masked_under_every_rule_and_in_no_baseline():
    members = [trajectory(reward=None, truncated=True), trajectory(reward=1.0), trajectory(reward=0.0)]
    for overlong in ("judged", "mask", "mask_loss", "wrong", "penalty:4"):
        found = score_group(group_of(members), objective(overlong=overlong))
        assert found.mask_reasons_G == ("sandbox_error", None, None)
        assert found.advantages_G == (None, 0.5, -0.5)


def test_wrong_takes_correctness_and_leaves_the_format_score():
    members = [
        trajectory(reward=1.0, truncated=True),
        trajectory(reward=-0.1, correctness=0.0, truncated=True),
        trajectory(reward=1.0),
    ]
    assert score_group(group_of(members), objective(overlong="wrong")).rewards_G == (0.0, -0.1, 1.0)
    assert score_group(group_of(members), objective()).rewards_G == (1.0, -0.1, 1.0)


@pytest.mark.parametrize(
    ("length", "cut", "taken"),
    [(1, False, 0.0), (60, False, 0.0), (80, False, 0.5), (100, True, 1.0), (40, True, 1.0)],
    ids=["short", "at the buffer", "within it", "at the limit", "cut by the context"],
)
def test_soft_penalty_sinks_linearly_over_the_buffer(length, cut, taken):
    member = trajectory(reward=1.0, length=length, truncated=cut)
    penalty = objective(overlong="penalty:40")
    assert score_group(group_of([member], max_tokens=100), penalty).rewards_G == pytest.approx((1.0 - taken,))


class Custom:
    """A back end that computes the custom losses which it is given."""

    def __init__(self, logprobs: list[Any]) -> None:
        self.logprobs = logprobs

    def forward_backward_custom(self, datums: Any, loss: Any) -> Any:
        total, metrics = loss(datums, self.logprobs)
        total.backward()
        return metrics


@given(st.integers(1, 5), st.lists(st.floats(-3, 0), min_size=1, max_size=6))
def test_a_loss_of_ones_own_sees_what_has_an_advantage_and_its_metric_is_what_is_trained(prompt, sampled):
    import torch

    def anchored(_: Any, logprobs: Any, inputs: Any, settings: Any) -> Any:
        return ((logprobs - inputs["logprobs"]) ** 2 - inputs["advantages"] * logprobs) / len(logprobs)

    loss, tokens = Loss("anchored", anchored, {}), list(range(prompt + len(sampled) + 2))
    said = [sampled[0], None, *sampled]
    datum = make_datum(tokens, said[: len(tokens) - prompt], prompt, 0.5)
    now = torch.full((len(tokens) - 1,), -7.0, requires_grad=True)
    back_end: Any = Custom([now])
    metrics: Any = forward_backward(back_end, [datum], loss)
    counted = datum.loss_fn_inputs["advantages"].to_torch() != 0
    assert ((now.grad != 0) <= counted).all()
    assert bool((now.grad != 0).any())
    shown = loss_metrics([Example(datum, Segment(tokens, said))], [now.detach().numpy()], loss, {})
    assert metrics["loss:sum"] == pytest.approx(shown["loss"] * int(counted.sum()), rel=1e-5)


@given(binary)
def test_without_cut_completions_every_overlong_rule_is_the_same(values):
    group = group_of((trajectory(reward=r, length=5) for r in values), max_tokens=100)
    plain = score_group(group, objective())
    for overlong in ("mask", "mask_loss", "wrong", "penalty:50"):
        assert score_group(group, objective(overlong=overlong)) == plain


def examples_with_gap(ratios, advantages) -> tuple[list[Any], list[Any]]:
    """Examples, and trainer logprobs that differ from the sampler's by log(ratio), token by token."""
    examples, logprobs = [], []
    for ratio_T, reward in zip(ratios, advantages, strict=True):
        member = trajectory(reward=reward, length=len(ratio_T))
        group = group_of([member, trajectory(reward=0.5 - reward, length=1)])
        example = examples_of(score_group(group, objective()))[0]
        now_T = example.array("logprobs").astype(np.float64)
        now_T[example.sampled] += np.log(ratio_T)
        examples.append(example)
        logprobs.append(now_T.astype(np.float32))
    return examples, logprobs


@pytest.mark.parametrize(("config", "high"), [({}, 1.2), ({"clip_high_threshold": 1.28}, 1.28)])
def test_logged_loss_and_clip_fraction_follow_the_formula_in_float64(config, high):
    ratios = [[0.5, 1.0, 1.25, 5.0], [0.5, 1.1, 1.25, 3.0]]
    examples, trained = examples_with_gap(ratios, [1.0, 0.0])
    total, clipped = 0.0, 0
    for ratio_T, example in zip(ratios, examples, strict=True):
        advantage = float(example.array("advantages")[-1])
        for ratio in ratio_T:
            gain, held = ratio * advantage, min(max(ratio, 0.8), high) * advantage
            total -= min(gain, held)
            clipped += held < gain
    metrics = loss_metrics(examples, trained, get_loss("ppo"), config)
    assert metrics["loss"] == pytest.approx(total / 8, rel=1e-5)
    assert metrics["clip_fraction"] == clipped / 8
    assert metrics["ratio_mean"] == pytest.approx(np.mean(ratios), rel=1e-5)


def test_kl_term_lowers_tokens_that_left_the_reference_and_keeps_the_mean_advantage():
    group = group_of([trajectory(reward=1.0, length=4), trajectory(reward=0.0, length=4)])
    examples = examples_of(score_group(group, objective()))
    reference = [
        [lp - gap for lp, gap in zip(c.logprobs, (0.4, 0.0, 0.0, 0.0), strict=True)] for c in group.trajectories
    ]
    penalised, divergence = penalise_kl(examples, reference, 0.5)
    assert divergence == pytest.approx(0.1)
    for before, after in zip(examples, penalised, strict=True):
        change = after.array("advantages") - before.array("advantages")
        assert change[before.sampled].tolist() == pytest.approx([-0.15, 0.05, 0.05, 0.05])
        change[before.sampled] = 0.0
        assert not change.any()


@pytest.mark.parametrize("missing", [0, -1])
def test_a_sampled_token_without_a_reference_log_probability_is_no_certain_one(missing):
    examples = examples_of(score_group(group_of([trajectory(reward=1.0), trajectory(reward=0.0)]), objective()))
    answer: list[float | None] = [-0.5 for _ in examples[0].segment.tokens]
    answer[missing] = None
    client = SimpleNamespace(compute_logprobs=lambda text: answer)
    run: Any = SimpleNamespace(reference=client, objective=objective())
    if missing == 0:  # nothing stands before the first token of a prompt
        assert asyncio.run(log_p_ref(run, examples)) == [[-0.5] * len(each.sampled) for each in examples]
    else:
        with refused("kl_coef", kind=BackendError):
            asyncio.run(log_p_ref(run, examples))


def nothing(rewards_G: list[float]) -> list[float]:
    """An estimator without an advantage."""
    return [0.0 for _ in rewards_G]


@pytest.mark.parametrize(
    ("rewards", "advantage", "why"),
    [
        ((1.0, 0.0), "mean", None),
        ((1.0, 1.0), "mean", "rewards_alike"),
        ((None, None), "mean", "all_masked"),
        ((1.0, 0.0), f"{__name__}:nothing", "no_advantage"),
    ],
)
def test_a_group_says_why_it_is_skipped(rewards, advantage, why):
    group = group_of(trajectory(reward=each) for each in rewards)
    assert score_group(group, objective(advantage=advantage)).skipped == why


def test_what_is_taken_off_for_length_counts_only_where_the_rewards_differ():
    right = [trajectory(reward=1.0, length=length) for length in (4, 8)]
    shaped = objective(length_coef=0.3)
    alike, mixed = (score_group(group_of(group), shaped) for group in (right, [*right, trajectory(reward=0.0)]))
    assert alike.skipped == "rewards_alike"
    for found in (alike, mixed):
        assert found.advantages_G[0] > found.advantages_G[1]
