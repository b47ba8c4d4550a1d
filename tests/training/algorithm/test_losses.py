"""Each loss, value and gradient, against its paper's formula, written here token by token in plain floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from code_rl.engine.losses import LOSSES, POLICY_LOSSES, SEQUENCE, loss_settings
from code_rl.training.algorithm.datums import Example, Segment, make_datum, with_sequence
from code_rl.training.algorithm.metrics import loss_metrics

# One answer whose mean log-ratio is within every sequence interval, one that has drifted.
ANSWERS = {
    "close": ([-0.5, -1.0, -0.1, -2.0], [-0.9, -0.62, -0.3, -1.7799]),
    "drifted": ([-0.1, -0.2, -3.0, -0.4], [-1.2, -0.9, -1.1, -0.6]),
}


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def clip(x, low, high):
    return min(max(x, low), high)


def paper(name, now, then, advantage):
    """The loss and its slope d loss / d log p of each token, from the papers. `now` and `then` are log p and log q."""
    mean = math.exp(sum(p - q for p, q in zip(now, then, strict=True)) / len(now))
    found = []
    for p, q in zip(now, then, strict=True):
        ratio, A = math.exp(p - q), advantage
        if name == "importance_sampling":
            found.append((-ratio * A, -ratio * A))
        elif name == "reinforce":
            found.append((-A * p, -A))
        elif name == "ppo":
            held = clip(ratio, 0.8, 1.2)
            free = ratio * A <= held * A
            found.append((-ratio * A, -ratio * A) if free else (-held * A, 0.0))
        elif name == "cispo":
            found.append((-clip(ratio, 0.0, 4.0) * A * p, -clip(ratio, 0.0, 4.0) * A))
        elif name == "tis":
            found.append((-min(ratio, 2.0) * A * p, -min(ratio, 2.0) * A))
        elif name == "gspo":
            held = clip(mean, 1 - 3e-4, 1 + 4e-4)
            found.append((-mean * A, -mean * A) if mean * A <= held * A else (-held * A, 0.0))
        elif name == "mis":
            kept = 1.0 if 0.98 <= mean <= 1.02 else 0.0
            found.append((-kept * ratio * A, -kept * ratio * A))
        elif name == "sapo":
            tau = 1.0 if A > 0 else 1.05
            gate = sigmoid(tau * (ratio - 1))
            found.append((-gate * 4 / tau * A, -4 * gate * (1 - gate) * ratio * A))
        else:
            assert name == "dppo_tv"
            moved = math.exp(p) - math.exp(q)
            masked = moved > 0.2 if A > 0 else moved < -0.2
            gain = 0.0 if masked else ratio * A
            found.append((-gain + 1e-3 * (p - q) ** 2, -gain + 2e-3 * (p - q)))
    return np.array(found).T


def evaluated(name, now, then, advantage):
    """The same by the one definition: NumPy's losses, torch's losses, torch's slopes."""
    loss, count = LOSSES[name], len(now)
    fields: dict[str, Any] = {
        "logprobs": np.array(then),
        "advantages": np.full(count, advantage),
        SEQUENCE: np.ones(count),
    }
    settings = loss_settings(loss, {})
    arrays = {key: fields[key] for key in loss.inputs}
    tensors = {key: torch.from_numpy(values) for key, values in arrays.items()}
    logprobs = torch.tensor(now, dtype=torch.float64, requires_grad=True)
    losses = loss.checked(torch, logprobs, tensors, settings)
    losses.sum().backward()
    return loss.checked(np, np.array(now), arrays, settings), losses.detach().numpy(), logprobs.grad.numpy()


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("advantage", [0.75, -0.5])
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_value_and_gradient_are_the_papers(name, advantage, answer):
    wanted, slopes = paper(name, *ANSWERS[answer], advantage)
    in_numpy, in_torch, gradient = evaluated(name, *ANSWERS[answer], advantage)
    np.testing.assert_allclose(in_numpy, wanted, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(in_torch, wanted, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_on_policy_the_gradient_is_that_of_the_policy_gradient(name):
    now = ANSWERS["close"][0]
    _, _, gradient = evaluated(name, now, now, 0.75)
    np.testing.assert_allclose(gradient, -0.75 * np.ones(len(now)), rtol=1e-12)


@pytest.mark.parametrize("advantage", [0.75, -0.5])
@pytest.mark.parametrize("then", [-100.0, 0.0])
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_token_that_the_sampler_thought_impossible_has_a_finite_gradient(name, then, advantage):
    """In float32, as the engine computes it: e^100 is not finite there."""
    loss, settings = POLICY_LOSSES[name], loss_settings(POLICY_LOSSES[name], {})
    logprobs = torch.tensor([-0.01 if then else -200.0], requires_grad=True)
    fields = {"logprobs": then, "advantages": advantage, SEQUENCE: 1.0}
    loss.checked(
        torch, logprobs, {key: torch.tensor([value]) for key, value in fields.items()}, settings
    ).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_what_is_held_back_is_what_has_lost_the_gradient_that_it_would_have(name):
    loss, (now, then) = POLICY_LOSSES[name], ANSWERS["drifted"]
    tokens = [7, *range(1, len(now) + 1)]
    datum = make_datum(tokens, then, 1, 0.75)
    example = Example(datum, Segment(tokens, list(then)))
    share = loss_metrics([example], [np.array(now)], loss, {}).get("clip_fraction")
    held = {
        "ppo": 3,  # all but the token that lost probability
        "cispo": 0,
        "gspo": 4,
        "mis": 4,
        "tis": 2,
        "dppo_tv": 2,  # of the three that gained, one gained less than 0.2 of probability
    }
    assert share == (held[name] / 4 if name in held else None)


def test_the_tokens_of_a_sequence_are_those_that_the_policy_wrote():
    loss = POLICY_LOSSES["gspo"]
    datum = with_sequence(make_datum([1, 2, 3, 4, 5], [-0.5, None, 0.0], 2, 0.5), loss)
    assert datum.loss_fn_inputs[SEQUENCE].to_numpy().tolist() == [0.0, 1.0, 0.0, 1.0]
