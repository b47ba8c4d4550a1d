"""Architectures outside the engine's own families go through transformers: sampling and training agree, training learns, state and
adapters survive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from tinker import types  # noqa: E402

from code_rl.engine.local.device import Device  # noqa: E402
from code_rl.engine.local.memory import MemoryPlan, Parts  # noqa: E402
from code_rl.util.errors import BackendError  # noqa: E402
from tests.engine.local.embedded_models import (  # noqa: E402
    VOCAB,
    as_peft,
    assert_gradient_is_of,
    datum,
    policy_datum,
    reference,
    reference_logprobs,
    service,
    text,
    tokens,
    trained,
)
from tests.refusals import refused  # noqa: E402

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 128, "eos_token_id": 3, "bos_token_id": None, "pad_token_id": None,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
HYBRID = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_value_heads": 2, "linear_num_key_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": HYBRID,
    "qwen3_moe": EXPERTS,
    "gemma3_text": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "phi": {},
    "phi3": {},
    "olmo3": {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 16},
    "granite": {},
    "smollm3": {},
    "gpt2": {},
}


def made(kind, seed=0):
    """A small random model of this kind, in float32, with weights large enough that every part of it matters."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE | KINDS[kind])).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    return model


def client_of(model, state_dir=None, rank=4):
    return service(model, state_dir).create_lora_training_client("m", rank=rank, seed=0).result()


def sample(client, prompt, count=3, length=12, **params):
    sampler = client.save_weights_and_get_sampling_client().result()
    asked = types.SamplingParams(max_tokens=length, temperature=1.0, seed=5, stop=[], **params)
    return sampler.sample(text(prompt), count, asked).result().sequences


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_of_sampling_and_training_agree(kind):
    client = trained(client_of(made(kind)))
    prompt = tokens(1, 21)
    sequences = sample(client, prompt)
    assert len({tuple(each.tokens) for each in sequences}) == 3
    data = [policy_datum(prompt, each.tokens, each.logprobs, 1.0) for each in sequences]
    outputs = client.forward(data, "importance_sampling").result().loss_fn_outputs
    for output, each in zip(outputs, sequences, strict=True):
        np.testing.assert_allclose(output["logprobs"].to_numpy()[-len(each.tokens) :], each.logprobs, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_ten_steps_memorise_a_datum(kind):
    client = client_of(made(kind), rank=16)
    full = tokens(2, 16)
    data = [datum(full, weights=np.ones(15, dtype=np.float32))]
    losses = []
    for _ in range(11):
        losses.append(client.forward_backward(data, "cross_entropy").result().metrics["loss:sum"])
        client.optim_step(types.AdamParams(learning_rate=2e-2)).result()
    assert losses[-1] < losses[0] / 10


@pytest.mark.parametrize("kind", ["qwen3_5_text", "qwen3_moe", "phi", "gpt2"])
def test_an_adapter_means_the_same_in_peft_and_merged(kind, tmp_path):
    peft = pytest.importorskip("peft")
    from code_rl.engine.adapters import merge_into, read_embedded, write_peft

    client = trained(client_of(made(kind), tmp_path))
    saved = client.save_weights_for_sampler("a").result().path
    (tmp_path / "peft").mkdir()
    write_peft(read_embedded(Path(saved)), "m", tmp_path / "peft")
    theirs = peft.PeftModel.from_pretrained(made(kind), str(tmp_path / "peft")).eval()
    merged = made(kind).eval()
    merge_into(merged, read_embedded(Path(saved)))
    full = tokens(3, 14)
    ours = client.save_weights_and_get_sampling_client().result().compute_logprobs(text(full)).result()
    for model in (theirs, merged):
        with torch.no_grad():
            table = torch.log_softmax(model(input_ids=torch.tensor([full])).logits[0], -1)
        np.testing.assert_allclose(ours[1:], [float(table[i, full[i + 1]]) for i in range(13)], atol=1e-4)


def test_a_planned_micro_batch_is_kept_to():
    engine = service(made("phi"))
    engine.follow(
        MemoryPlan(Parts(0, 0, 0, 0), tokens=64, cache_bytes=1, rows=1, vllm=0, memory=1, device=Device(engine.device))
    )
    client = engine.create_lora_training_client("m", rank=4, seed=0).result()
    assert client._learner.budget == 64


def test_logits_that_are_not_finite_are_refused():
    client = client_of(made("phi"))
    client._lora.flat.fill_(float("nan"))
    with pytest.raises(BackendError):
        sample(client, tokens(1, 21))


@pytest.mark.parametrize("kind", ["phi", "granite"])
def test_its_gradient_is_that_of_autograd_through_peft(kind):
    client = trained(client_of(made(kind)))
    wrapped = as_peft(made(kind).eval(), client).double()
    full, weights = tokens(3, 40), np.linspace(0, 1, 39, dtype=np.float32)
    client.forward_backward([datum(full, weights=weights)], "cross_entropy").result()
    (-reference_logprobs(wrapped, full) @ torch.tensor(weights)).backward()
    assert_gradient_is_of(wrapped, client)


def test_it_is_said_and_what_cannot_be_adapted_or_is_no_causal_model_is_refused():
    from transformers import AutoConfig, AutoModelForCausalLM, T5Config, T5ForConditionalGeneration

    made_service = service(made("phi"))
    base = made_service.create_sampling_client(base_model="m").result()
    assert len(base.compute_logprobs(text(tokens(1, 9))).result()) == 9
    client = made_service.create_lora_training_client("m", rank=4, seed=0).result()
    assert "phi is trained through transformers" in client.notice
    assert client_of(reference("llama")).notice == ""
    small = AutoConfig.for_model("mamba", vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, state_size=4)
    with refused("MambaForCausalLM", "backend="):
        service(AutoModelForCausalLM.from_config(small))
    t5 = T5ForConditionalGeneration(T5Config(vocab_size=VOCAB, d_model=16, d_ff=16, num_layers=1, num_heads=2, d_kv=8))
    with refused("t5"):
        service(t5)
