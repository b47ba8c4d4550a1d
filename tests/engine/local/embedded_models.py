"""Small random models of each family, with weights large enough that every part of the network matters.

transformers' model classes are imported where one is made: they take seconds, in every process that collects these tests.
"""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from tinker import types  # noqa: E402

from code_rl.engine.local import EmbeddedService  # noqa: E402
from code_rl.engine.local.models import wrap_model  # noqa: E402

VOCAB = 97
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 128,
    "eos_token_id": 3,
    "bos_token_id": None,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def _qwen3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    heads: dict[str, Any] = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, **heads, tie_word_embeddings=True))


def _tiny_shape():
    """The shape of the built-in model."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape: dict[str, Any] = SHAPE | {
        "vocab_size": 644,
        "hidden_size": 96,
        "num_hidden_layers": 3,
        "intermediate_size": 256,
    }
    shape |= {"max_position_embeddings": 512, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32}
    return Qwen3ForCausalLM(Qwen3Config(**shape, tie_word_embeddings=True))


def _qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 1}
    return Qwen2ForCausalLM(Qwen2Config(**SHAPE, **heads, tie_word_embeddings=False))


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **heads, tie_word_embeddings=False))


def _llama3():
    from transformers import LlamaConfig, LlamaForCausalLM

    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_parameters": LLAMA3_ROPE}
    return LlamaForCausalLM(LlamaConfig(**SHAPE, **heads, tie_word_embeddings=True, attention_bias=True, mlp_bias=True))


MAKERS = {"qwen3": _qwen3, "qwen2": _qwen2, "llama": _llama, "llama3": _llama3, "tiny-shape": _tiny_shape}
FAMILIES = ("qwen3", "qwen2", "llama", "llama3")


def reference(family, seed=0):
    """A transformers model in eval mode, fp32, frozen."""
    torch.manual_seed(seed)
    model = MAKERS[family]().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "proj" in name:
                parameter.copy_(torch.randn_like(parameter) * (0.2 if name.endswith("weight") else 0.5))
            elif "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif "embed" in name or "lm_head" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.2)
            parameter.requires_grad_(False)
    return model


def service(model, state_dir=None, dtype="float32", source="/nonexistent"):
    """An embedded service that knows `model` as "m"."""
    made = EmbeddedService(device="cpu", dtype=dtype, state_dir=state_dir)
    made.models["m"] = wrap_model("m", source, model, made.device, made.dtype)
    return made


def client_types():
    """The types of the engine's training and sampling clients, on which faults and spies replace methods."""
    made = EmbeddedService(device="cpu")
    trainer = made.create_lora_training_client("tiny", rank=1, seed=0).result()
    sampler = trainer.save_weights_and_get_sampling_client().result()
    made.close()
    return type(trainer), type(sampler)


def trained(client, seed=0, scale=0.05):
    """Give the adapter random weights, B included, and return the client."""
    generator = torch.Generator().manual_seed(seed)
    client._lora.flat.copy_(torch.randn(client._lora.flat.shape, generator=generator) * scale)
    client._learner.weights_changed()
    return client


def tokens(seed, length, vocab=VOCAB):
    return np.random.default_rng(seed).integers(4, vocab, length).tolist()


def text(ids):
    return types.ModelInput.from_ints(list(ids))


def datum(full, **inputs):
    """One whose targets are all tokens but the first."""
    inputs["target_tokens"] = np.array(full[1:], dtype=np.int64)
    return types.Datum(model_input=text(full[:-1]), loss_fn_inputs=inputs)


def policy_datum(prompt, completion, logprobs, advantage):
    """A datum as the loop makes them: zeros on the prompt."""
    full = list(prompt) + list(completion)
    off = [0.0] * (len(prompt) - 1)
    return datum(
        full,
        logprobs=np.array(off + list(logprobs), dtype=np.float32),
        advantages=np.array(off + [advantage] * len(completion), dtype=np.float32),
    )


def supervised_datum(full, weights):
    return datum(full, weights=np.array(weights, dtype=np.float32))


def reference_logprobs(model, full, temperature=1.0):
    """Log-probabilities of full[1:] under a transformers model, [len(full) − 1]."""
    logits = model(torch.tensor([list(full)])).logits[0, :-1].float() / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(list(full[1:]))[:, None])[:, 0]


def as_peft(model, client):
    """The same adapter in peft, on the same base."""
    peft = pytest.importorskip("peft")
    names = sorted({m.name.rsplit(".", 1)[-1] for m in client._lora.modules})
    config = peft.LoraConfig(r=client._lora.settings.rank, lora_alpha=32, target_modules=names)
    wrapped = peft.get_peft_model(model, config)
    halves = {"A": client._lora.a, "B": client._lora.b}
    state = {
        f"base_model.model.{name}.lora_{half}.weight": tensor.clone()
        for half, tensors in halves.items()
        for name, tensor in tensors.items()
    }
    assert not peft.set_peft_model_state_dict(wrapped, state).unexpected_keys
    return wrapped.eval()


def assert_gradient_is_of(wrapped, client):
    """The engine's gradient is the one that autograd left in the model of `as_peft`."""
    halves = dict(zip("AB", client._lora.views(client._learner.gradient), strict=True))
    adapted = [(name, each) for name, each in wrapped.named_parameters() if each.requires_grad]
    assert len(adapted) == 2 * len(client._lora.modules)
    for name, parameter in adapted:
        module, half = name.removeprefix("base_model.model.").replace(".default.weight", "").rsplit(".lora_", 1)
        got, wanted = halves[half][module].to(parameter.dtype), parameter.grad
        assert float((got - wanted).norm()) <= 1e-5 * float(wanted.norm()) + 1e-7, name
