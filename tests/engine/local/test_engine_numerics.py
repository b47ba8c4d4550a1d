"""The trainer's numbers against transformers, peft, torch.optim and formulas written out again."""

import numpy as np
import pytest
from tinker import types

from code_rl.engine.local import EmbeddedService
from tests.engine.local.embedded_models import (
    FAMILIES,
    as_peft,
    assert_gradient_is_of,
    policy_datum,
    reference,
    reference_logprobs,
    service,
    supervised_datum,
    tokens,
    torch,
    trained,
)


def groups(vocab=97):
    """Three prompts with 5, 3 and 1 completions of mixed lengths, as (prompt, completion, sampled logprobs, advantage)."""
    rows = []
    for g, (n_prompt, count) in enumerate([(20, 5), (11, 3), (9, 1)]):
        prompt = tokens(100 + g, n_prompt, vocab)
        for j in range(count):
            completion = tokens(1000 + 10 * g + j, 4 + 3 * j, vocab)
            old = np.random.default_rng(g * 10 + j).uniform(-6, -3, len(completion)).astype(np.float32)
            rows.append((prompt, completion, old, 0.5 - 0.3 * j))
    return rows


@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_equal_transformers(family):
    model = reference(family)
    client = service(model).create_lora_training_client("m", rank=4, seed=0).result()
    rows = groups()
    out = client.forward([policy_datum(*row) for row in rows], "importance_sampling").result()
    for row, got in zip(rows, out.loss_fn_outputs, strict=True):
        expected = reference_logprobs(model, row[0] + row[1]).numpy()
        np.testing.assert_allclose(got["logprobs"].to_numpy(), expected, atol=2e-5)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_adapter_equals_peft(family):
    model = reference(family)
    client = trained(service(model).create_lora_training_client("m", rank=4, seed=0).result())
    full = tokens(5, 60)
    ones = supervised_datum(full, [1.0] * 59)
    got = client.forward([ones], "cross_entropy").result().loss_fn_outputs[0]["logprobs"].to_numpy()
    with torch.no_grad():
        expected = reference_logprobs(as_peft(model, client), full).numpy()
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("family", "apart", "temperature", "chunk"),
    [
        *((family, apart, 1.0, 1 << 24) for family in FAMILIES for apart in (False, True)),
        ("qwen3", False, 0.6, 1 << 24),
        ("qwen3", False, 0.6, 7 * 97),
    ],
)
def test_gradients_equal_autograd_through_peft(monkeypatch, family, apart, temperature, chunk):
    monkeypatch.setattr("code_rl.engine.local.forward.LOGIT_CHUNK", chunk)
    model = reference(family)
    client = trained(service(model).create_lora_training_client("m", rank=4, seed=0).result())
    client._learner.merging, client._learner.recompute = not apart, apart
    rows, config = groups(), None if temperature == 1.0 else {"temperature": temperature}
    out = client.forward_backward([policy_datum(*row) for row in rows], "importance_sampling", config).result()
    wrapped = as_peft(model, client)
    total = torch.zeros(())
    for prompt, completion, old, advantage in rows:
        lp = reference_logprobs(wrapped, prompt + completion, temperature)[len(prompt) - 1 :]
        total = total - (torch.exp(lp - torch.tensor(old)) * advantage).sum()
    total.backward()
    scale = sum(float(np.abs(o["elementwise_loss"].to_numpy()).sum()) for o in out.loss_fn_outputs)
    assert abs(out.metrics["loss:sum"] - float(total.detach())) <= 1e-5 * scale
    assert_gradient_is_of(wrapped, client)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_custom_loss_has_the_gradient_of_the_built_in_one(temperature):
    data = [policy_datum(*row) for row in groups()]

    def loss(given, logprobs):
        total = 0.0
        for datum, lp in zip(given, logprobs, strict=True):
            ratio = torch.exp(lp - datum.loss_fn_inputs["logprobs"].to_torch())
            total = total - (ratio * datum.loss_fn_inputs["advantages"].to_torch()).sum()
        return total, {"mine": 3.0}

    made = [service(reference("qwen3")).create_lora_training_client("m", rank=4, seed=0).result() for _ in range(2)]
    built_in, custom = (trained(client) for client in made)
    expected = built_in.forward_backward(data, "importance_sampling", {"temperature": temperature}).result()
    output = custom.forward_backward_custom(data, loss, temperature=temperature).result()
    wanted, got = built_in._learner.gradient, custom._learner.gradient
    assert float((got - wanted).norm()) <= 1e-5 * float(wanted.norm())
    scale = sum(float(np.abs(o["elementwise_loss"].to_numpy()).sum()) for o in expected.loss_fn_outputs)
    assert abs(output.metrics["loss:sum"] - expected.metrics["loss:sum"]) <= 1e-5 * scale
    assert output.metrics["mine"] == 3.0
    assert "surrogate_loss:sum" in output.metrics


def test_micro_batches_do_not_change_the_gradient():
    found = []
    for budget in (30, 64, 100_000):
        client = trained(service(reference("qwen3")).create_lora_training_client("m", rank=4, seed=0).result())
        client._learner.budget = budget
        client.forward_backward([policy_datum(*row) for row in groups()], "ppo").result()
        found.append(client._learner.gradient)
    for other in found[1:]:
        assert float((found[0] - other).norm()) <= 1e-5 * float(found[0].norm())


@pytest.mark.parametrize(
    "params",
    [
        {"learning_rate": 1e-3},
        {"learning_rate": 4e-5, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.1},
        {"learning_rate": 1e-2, "grad_clip_norm": 0.5},
    ],
)
def test_adam_equals_torch(params):
    client = trained(service(reference("qwen3")).create_lora_training_client("m", rank=4, seed=0).result())
    adam = types.AdamParams(**params)
    parameter = torch.nn.Parameter(client._lora.flat.clone())
    optimizer = torch.optim.AdamW(
        [parameter], lr=adam.learning_rate, betas=(adam.beta1, adam.beta2), eps=adam.eps, weight_decay=adam.weight_decay
    )
    for _ in range(3):
        client.forward_backward([policy_datum(*row) for row in groups()], "importance_sampling").result()
        parameter.grad = client._learner.gradient.clone()
        if adam.grad_clip_norm:
            torch.nn.utils.clip_grad_norm_([parameter], adam.grad_clip_norm)
        optimizer.step()
        client.optim_step(adam).result()
        assert float((client._lora.flat - parameter.detach()).abs().max()) <= 1e-6


def test_first_adapter_is_seeded_and_changes_nothing():
    base = service(reference("qwen3"))
    first, same, other = (base.create_lora_training_client("m", rank=4, seed=s).result() for s in (1, 1, 2))
    assert torch.equal(first._lora.flat, same._lora.flat)
    assert not torch.equal(first._lora.flat, other._lora.flat)
    assert all(not bool(b.any()) for b in first._lora.b.values())
    bound = 48**-0.5
    a = first._lora.a["model.layers.0.mlp.up_proj"]
    assert 0.9 * bound < float(a.abs().max()) <= bound


@pytest.mark.parametrize("flags", [(True, False, False), (False, True, False), (False, False, True)])
def test_only_what_is_asked_for_is_adapted(flags):
    mlp, attn, unembed = flags
    client = (
        service(reference("qwen3"))
        .create_lora_training_client("m", rank=2, train_mlp=mlp, train_attn=attn, train_unembed=unembed)
        .result()
    )
    names = {m.name for m in client._lora.modules}
    assert any("mlp" in n for n in names) == mlp
    assert any("self_attn" in n for n in names) == attn
    assert ("lm_head" in names) == unembed


@pytest.mark.parametrize("fast", [False, True])
def test_bf16_is_fp32_on_a_cpu_that_cannot_multiply_it(fast, monkeypatch):
    monkeypatch.setattr("torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda: fast)
    assert EmbeddedService(device="cpu", dtype="bfloat16").dtype == (torch.bfloat16 if fast else torch.float32)


def test_bf16_trains_with_fp32_adapter_and_agrees_with_fp32(monkeypatch):
    monkeypatch.setattr("code_rl.engine.local.service.multiplies_bfloat16", lambda _: True)
    model = reference("qwen3")
    rows = [policy_datum(*row) for row in groups()]
    exact = trained(service(model).create_lora_training_client("m", rank=4, seed=0).result())
    rough = trained(service(model, dtype="bfloat16").create_lora_training_client("m", rank=4, seed=0).result())
    assert rough._lora.flat.dtype == torch.float32
    assert not rough._learner.merging
    ones = [supervised_datum(tokens(i, 40), [1.0] * 39) for i in range(4)]
    a = exact.forward_backward(ones, "cross_entropy").result().metrics["loss:sum"]
    b = rough.forward_backward(ones, "cross_entropy").result().metrics["loss:sum"]
    assert abs(a - b) <= 0.02 * abs(a)
    ga, gb = exact._learner.gradient, rough._learner.gradient
    assert gb.dtype == torch.float32
    assert float(torch.nn.functional.cosine_similarity(ga, gb, dim=0)) > 0.99
    rough.forward_backward(rows, "importance_sampling")
    assert rough.optim_step(types.AdamParams()).result().metrics["grad_norm:mean"] > 0
