"""Each loss as a run sends it, value and gradient, against an independent reference in float64 from embedding to loss."""

import numpy as np
import pytest

from code_rl.engine.losses import get_loss
from code_rl.training.algorithm.datums import with_sequence
from code_rl.training.config import make_config
from tests.engine.local.embedded_models import policy_datum, reference, service, tokens, torch, trained

CHOICES = [
    {},
    {"loss": "ppo"},
    {"loss": "ppo", "clip_low": 0.2, "clip_high": 0.28},
    {"loss": "ppo", "clip_low": 0.05, "clip_high": 0.6},
    {"loss": "cispo"},
    {"loss": "cispo", "clip_low": 0.4, "clip_high": 0.3},
    {"loss": "gspo"},
    {"loss": "gspo", "clip_low": 0.2, "clip_high": 0.3},
    {"loss": "dppo_tv"},
    {"loss": "sapo"},
    {"loss": "tis"},
    {"loss": "tis", "clip_high": 0.1},
    {"loss": "mis"},
    {"loss": "mis", "clip_low": 0.5, "clip_high": 1.0},
]


@pytest.fixture(scope="module")
def twins():
    """The engine's client and the same model with the same adapter in float64."""
    peft = pytest.importorskip("peft")
    client = trained(service(reference("qwen3")).create_lora_training_client("m", rank=4, seed=0).result())
    names = sorted({m.name.rsplit(".", 1)[-1] for m in client._lora.modules})
    wrapped = peft.get_peft_model(reference("qwen3"), peft.LoraConfig(r=4, lora_alpha=32, target_modules=names))
    state = {
        f"base_model.model.{n}.lora_{k}.weight": t
        for k, part in (("A", client._lora.a), ("B", client._lora.b))
        for n, t in part.items()
    }
    assert not peft.set_peft_model_state_dict(wrapped, state).unexpected_keys
    return client, wrapped.eval().double()


def logprobs64(model, full):
    logits = model(torch.tensor([full])).logits[0, :-1]
    assert logits.dtype == torch.float64
    return logits.log_softmax(-1).gather(1, torch.tensor(full[1:])[:, None])[:, 0]


BOUNDS = {"ppo": (0.2, 0.2), "cispo": (1.0, 3.0), "gspo": (3e-4, 4e-4), "tis": (1.0, 1.0), "mis": (0.02, 0.02)}


def loss64(choice, lp, sampled, advantage):
    """The papers' definitions, token by token."""
    total = torch.zeros((), dtype=torch.float64)
    name = choice.get("loss", "importance_sampling")
    defaults = BOUNDS.get(name, (0.0, 0.0))
    low, high = 1 - choice.get("clip_low", defaults[0]), 1 + choice.get("clip_high", defaults[1])
    mean = float(torch.exp((lp - sampled).mean()).detach())
    for now, then in zip(lp, sampled, strict=True):
        ratio = torch.exp(now - then)
        if name == "gspo":
            ratio = mean * torch.exp(now - now.detach())
        held = min(max(float(ratio.detach()), low), high)
        if name == "importance_sampling" or (name == "mis" and low <= mean <= high):
            total = total - ratio * advantage
        elif name == "mis":
            continue
        elif name == "sapo":
            tau = 1.0 if advantage > 0 else 1.05
            total = total - 4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantage
        elif name == "dppo_tv":
            moved = float((now.exp() - then.exp()).detach())
            masked = moved > 0.2 if advantage > 0 else moved < -0.2
            total = total + 1e-3 * (now - then) ** 2 - (0 if masked else ratio * advantage)
        elif name in ("ppo", "gspo"):
            clipped_is_lower = held * advantage < float(ratio.detach()) * advantage
            total = total - (held * advantage if clipped_is_lower else ratio * advantage)
        else:
            total = total - held * advantage * now
    return total


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_loss_and_gradient_equal_the_float64_reference(twins, choice):
    client, model = twins
    rows, clipped = [], 0
    for index, advantage in enumerate((0.75, -0.25, -0.5)):
        prompt, completion = tokens(7, 12), tokens(50 + index, 10)
        with torch.no_grad():
            now = logprobs64(model, prompt + completion)[len(prompt) - 1 :].numpy()
        shift = np.random.default_rng(index).uniform(-0.7, 0.7, len(completion))
        rows.append((prompt, completion, (now + shift).astype(np.float32), advantage))
    config = make_config(choice)
    client._learner.gradient = None
    data = [with_sequence(policy_datum(*row), get_loss(config.loss)) for row in rows]
    out = client.forward_backward(data, config.loss, config.loss_config).result()
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for prompt, completion, sampled, advantage in rows:
        lp = logprobs64(model, prompt + completion)[len(prompt) - 1 :]
        then = torch.from_numpy(sampled).double()
        total = total + loss64(choice, lp, then, advantage)
        clipped += int(((lp - then).exp() - 1).abs().gt(0.3).sum())
    total.backward()
    assert clipped > 5
    assert out.metrics["loss:sum"] == pytest.approx(float(total.detach()), rel=1e-5, abs=1e-5)
    parts = client._lora.views(client._learner.gradient)
    compared = 0
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            module, kind = name.removeprefix("base_model.model.").replace(".default.weight", "").rsplit(".lora_", 1)
            got, wanted = parts[0 if kind == "A" else 1][module].double(), parameter.grad
            assert float((got - wanted).norm()) <= 2e-5 * float(wanted.norm()) + 1e-8, name
            compared += 1
    assert compared == 2 * len(client._lora.modules)
