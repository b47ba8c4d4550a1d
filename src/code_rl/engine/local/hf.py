"""A causal language model of transformers with its own forward pass, and LoRA on its linear
projections.

It serves architectures for which the engine has no forward pass. Hooks on the projections of the
frozen model add the calling thread's adapter, so sampler and trainer share the model. Routers,
image or audio towers, and experts that transformers stores as one tensor are not adapted.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from code_rl.util.errors import ConfigError

from .lora import LoraSettings, Module
from .weights import Architecture, check_unquantized, read_architecture

UNKNOWN_CONTEXT = 8192  # if the configuration has no longest position
_ATTENTION = ("attn", "attention", "mixer", "mamba", "conv", "recurrent")
_LEFT_OUT = ("router", "vision", "visual", "audio", "multi_modal")
Adapter = Mapping[str, tuple[Tensor, Tensor]]  # A [rank, in] and scaled B [out, rank] by projection
_active = threading.local()  # `adapter`: the adapter of this thread's pass


@dataclass(frozen=True)
class HfArchitecture(Architecture):
    """The shape of a model that transformers runs. Its heads and widths are left at 0."""


def architecture_of(config: Any) -> Architecture:
    """Return the shape of a model from its configuration; its class says which forward pass runs
    it. Raises ConfigError for quantized weights, and for anything but a causal language model of
    transformers."""
    try:
        return read_architecture(config)
    except ConfigError as refusal:
        check_unquantized(config)
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        family = str(getattr(config, "model_type", None))
        if family not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
            raise ConfigError(
                f"{refusal}; transformers loads no {family!r} as a causal language model either"
            ) from refusal
        _check_cache(config)
    text = config.get_text_config()
    return HfArchitecture(
        family=family,
        hidden=text.hidden_size,
        layers=text.num_hidden_layers,
        **dict.fromkeys(("heads", "kv_heads", "head_dim", "ffn"), 0),
        vocab=text.vocab_size,
        max_context=getattr(text, "max_position_embeddings", None) or UNKNOWN_CONTEXT,
        norm_eps=0.0,
        tied_unembedding=bool(getattr(text, "tie_word_embeddings", False)),
        qk_norm=False,
    )


def _check_cache(config: Any) -> None:
    """Raise ConfigError for an architecture without the cache that sampling reads (Mamba, RWKV)."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if "past_key_values" not in inspect.signature(kind.forward).parameters:
        raise ConfigError(
            f"{kind.__name__} has no key-value cache, which the embedded engine samples with; take "
            "a model with attention, or a server that trains this one (backend=http://host:port)"
        )


@dataclass(frozen=True)
class HfWeights:
    """A frozen transformers model with hooks for an adapter, and that adapter (empty: the base
    model)."""

    arch: Architecture
    module: Any
    adapter: Adapter = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        return cast(torch.dtype, self.module.dtype)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return cast(torch.device, self.module.device)

    def __call__(self, tokens: Tensor, **options: Any) -> Any:
        """Return the model's output, with the adapter, for tokens [rows, length]."""
        _active.adapter = self.adapter
        try:
            return self.module(input_ids=tokens, **options)
        finally:
            _active.adapter = {}


def hf_weights(loaded: Any) -> HfWeights:
    """Freeze a transformers model and attach its hooks. Raises ConfigError if it has no linear
    projection to adapt."""
    module = loaded.eval().requires_grad_(False)
    weights = HfWeights(architecture_of(loaded.config), module)
    linears = _linears(module)
    if len(linears) < 2:  # only the unembedding
        raise ConfigError(
            f"model family {weights.arch.family!r} has no linear projections that LoRA could adapt"
        )
    for name, linear in linears.items():
        linear.register_forward_hook(_hook(name))
    return weights


def hf_modules(weights: HfWeights, settings: LoraSettings) -> list[Module]:
    """Return the projections that these settings adapt, in the model's order."""
    head, found = weights.module.get_output_embeddings(), []
    for name, linear in _linears(weights.module).items():
        attention = any(word in name for word in _ATTENTION)
        wanted = settings.train_attn if attention else settings.train_mlp
        if settings.train_unembed if linear is head else wanted:
            rows, columns = linear.weight.shape
            # GPT-2's Conv1D keeps its weight transposed.
            sizes = (rows, columns) if isinstance(linear, Conv1D) else (columns, rows)
            found.append(Module(name, 0, "", 0, *sizes))
    return found


def _linears(module: nn.Module) -> dict[str, Any]:
    return {
        name: each
        for name, each in module.named_modules()
        if isinstance(each, nn.Linear | Conv1D)
        and not name.endswith(".gate")  # a mixture's router
        and not any(word in name for word in _LEFT_OUT)
    }


def _hook(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], Tensor | None]:
    def add(linear: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        del linear
        if name not in _active.adapter:
            return None
        (x, *_), (a, b) = inputs, _active.adapter[name]
        return output + F.linear(F.linear(x, a.to(x.dtype)), b.to(x.dtype))

    return add
