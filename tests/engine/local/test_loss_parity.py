"""Each loss as a run sends it: the engine's sum and gradient are those of the loss's definition on a model in float64.

`tests/training/algorithm/test_losses.py` holds the definitions to their papers.
"""

import numpy as np
import pytest

from code_rl.engine.losses import LOSSES, SEQUENCE, get_loss, loss_settings
from code_rl.training.algorithm.datums import with_sequence
from code_rl.training.config import make_config
from tests.engine.local.embedded_models import (
    as_peft,
    assert_gradient_is_of,
    policy_datum,
    reference,
    service,
    tokens,
    torch,
    trained,
)

CHOICES = [
    {},
    {"loss": "ppo"},
    {"loss": "ppo", "clip_low": 0.05, "clip_high": 0.6},
    {"loss": "cispo", "clip_low": 0.4, "clip_high": 0.3},
    {"loss": "gspo", "clip_low": 0.2, "clip_high": 0.3},
    {"loss": "dppo_tv"},
    {"loss": "sapo"},
    {"loss": "tis", "clip_high": 0.1},
    {"loss": "mis", "clip_low": 0.5, "clip_high": 1.0},
]


@pytest.fixture(scope="module")
def twins():
    """The engine's client and the same model with the same adapter in float64."""
    client = trained(service(reference("qwen3")).create_lora_training_client("m", rank=4, seed=0).result())
    return client, as_peft(reference("qwen3"), client).double()


def logprobs64(model, prompt, completion):
    full = prompt + completion
    logits = model(torch.tensor([full])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_loss_and_gradient_equal_the_float64_reference(twins, choice):
    client, model = twins
    config = make_config(choice)
    loss = LOSSES[config.loss]
    settings = loss_settings(loss, config.loss_config)
    data, total = [], torch.zeros((), dtype=torch.float64)
    client._learner.gradient = None
    model.zero_grad()
    for index, advantage in enumerate((0.75, -0.25, -0.5)):
        prompt, completion = tokens(7, 12), tokens(50 + index, 10)
        now = logprobs64(model, prompt, completion)
        shift = np.random.default_rng(index).uniform(-0.7, 0.7, len(completion))
        sampled = (now.detach().numpy() + shift).astype(np.float32)
        data.append(with_sequence(policy_datum(prompt, completion, sampled, advantage), get_loss(config.loss)))
        known = {"logprobs": torch.from_numpy(sampled).double(), "advantages": torch.full_like(now, advantage)}
        known[SEQUENCE] = torch.ones_like(now)
        total = total + loss.checked(torch, now, {name: known[name].detach() for name in loss.inputs}, settings).sum()
    total.backward()
    out = client.forward_backward(data, config.loss, config.loss_config).result()
    assert out.metrics["loss:sum"] == pytest.approx(float(total.detach()), rel=1e-5, abs=1e-5)
    assert_gradient_is_of(model, client)
