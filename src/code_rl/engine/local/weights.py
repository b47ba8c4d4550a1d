"""The frozen base model: its shape, and Hugging Face weights rearranged for few, large matrix
products.

Supported are Qwen3 (normed queries and keys), Qwen2 (biased queries, keys and values) and Llama:
dense models with full attention, and any rotary embedding whose frequencies do not depend on the
sequence. Everything else runs through transformers (`hf`).

Projections that read the same input are fused (q, k, v; gate, up), and every matrix is stored
transposed, [in, out]. The product `x @ w` then gives each row the same bits whatever other rows are
in the batch, if `even_rows` sets their number (measured with MKL for small models on Intel and AMD
processors, 1 to 16 threads; see `decode`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from code_rl.util.errors import ConfigError

from .device import fuses, tracing

FAMILIES = ("llama", "qwen2", "qwen3")
_STATIC_ROPE = ("default", "linear", "llama3", "yarn")
_ROW_UNIT, _MANY_ROWS = 4, 64
SMALL_HIDDEN = 512
"""The largest width of a model whose bits `even_rows` and `weighted` preserve."""
_PACKED_FOR = 64
HEAD = "lm_head.weight"
SITES = ("qkv", "o", "gate_up", "down")


@dataclass(frozen=True)
class Architecture:
    """The shape of a decoder. Sizes count elements; `max_context` counts tokens, prompt and
    completion together."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_context: int
    norm_eps: float
    tied_unembedding: bool
    qk_norm: bool

    @property
    def queries_per_kv(self) -> int:
        """Query heads that share one key-value head."""
        return self.heads // self.kv_heads

    @property
    def q_width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key projection, equal to those of the value projection."""
        return self.kv_heads * self.head_dim


def read_architecture(config: Any) -> Architecture:
    """Return the shape that a transformers configuration describes.

    Raises ConfigError, naming the part that the engine does not implement (family, activation,
    sliding windows, rotary type).
    """
    family = str(getattr(config, "model_type", None))
    if family not in FAMILIES:
        raise ConfigError(
            f"model family {family!r} is not supported by the embedded engine; it runs "
            f"{', '.join(FAMILIES)}"
        )
    check_unquantized(config)
    if config.hidden_act != "silu":
        raise ConfigError(
            f"hidden_act {config.hidden_act!r} is not supported by the embedded engine, only 'silu'"
        )
    if "sliding_attention" in (getattr(config, "layer_types", None) or []):
        raise ConfigError("sliding-window attention is not supported by the embedded engine")
    rope = getattr(config, "rope_parameters", None) or {}
    rope_type = str(rope.get("rope_type", "default"))
    if rope_type not in _STATIC_ROPE:
        raise ConfigError(
            f"rope_type {rope_type!r} is not supported by the embedded engine; it runs "
            f"{', '.join(_STATIC_ROPE)}"
        )
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return Architecture(
        family=family,
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        ffn=config.intermediate_size,
        vocab=config.vocab_size,
        max_context=config.max_position_embeddings,
        norm_eps=float(config.rms_norm_eps),
        tied_unembedding=bool(config.tie_word_embeddings),
        qk_norm=family == "qwen3",
    )


def check_unquantized(config: Any) -> None:
    """Raise ConfigError, naming the method, for a configuration of quantized weights."""
    quantized = getattr(config, "quantization_config", None)
    if quantized is not None:
        method = (
            quantized.get("quant_method")
            if isinstance(quantized, dict)
            else getattr(quantized, "quant_method", None)
        )
        raise ConfigError(
            f"quantization_config {method!r}: the embedded engine reads unquantised weights only"
        )


def even_rows(rows: int) -> int:
    """Return the row count to which a small product is padded: a multiple of four below 64. The
    library chooses its code path, and so its rounding, by the remainder of a block of four."""
    return rows if rows >= _MANY_ROWS else -(-rows // _ROW_UNIT) * _ROW_UNIT


@dataclass(frozen=True)
class Linear:
    """`x @ weight + bias`, plus `(x @ lora_a) @ lora_b` if LoRA is kept separate. Shapes [in, out],
    [out], [in, R], [R, out].

    A `packed` weight is in oneDNN's layout, [out, in].
    """

    weight: Tensor
    bias: Tensor | None = None
    lora_a: Tensor | None = None
    lora_b: Tensor | None = None

    def __call__(self, x: Tensor, onto: Tensor | None = None) -> Tensor:
        """Apply to x [n, in], and add the result to `onto` [n, out] if given; the result, a new
        tensor, has x's dtype. For small models on the processor, a row's bits do not depend on the
        other rows."""
        if not fuses(x.device):
            return self._apart(x) if onto is None else onto + self._apart(x)
        start, weight = self.bias if onto is None else onto, self.weight.to(x.dtype)
        y = x @ weight if start is None else torch.addmm(start, x, weight)
        return self._adapted(x, y if onto is None or self.bias is None else y + self.bias)

    def _apart(self, x: Tensor) -> Tensor:
        """Return the product with the weight, padded to an even number of rows, plus bias, plus the
        adapter's part."""
        rows = even_rows(len(x))
        if rows != len(x):
            return self._apart(F.pad(x, (0, 0, 0, rows - len(x))))[: len(x)]
        if self.weight.is_mkldnn:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self.weight, self.bias, "none", [], ""
            )
        else:
            y = x @ self.weight.to(x.dtype)
            y = y if self.bias is None else y + self.bias
        return self._adapted(x, y)

    def _adapted(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the adapter's part to y. In place: two terms beside their sum would make the widest
        projection a layer's peak."""
        if self.lora_a is not None and self.lora_b is not None:
            y.addmm_(x @ self.lora_a.to(x.dtype), self.lora_b.to(x.dtype))
        return y

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return self.weight.shape[0 if self.weight.is_mkldnn else 1]


@dataclass(frozen=True)
class Layer:
    """One decoder layer. `qkv` gives queries, keys and values side by side; `gate_up` gives gate
    and up.

    `qk_gain` [heads + kv_heads, head_dim] has the norms' weights, for families that norm queries
    and keys. The queries' part already includes the scale of attention scores.
    """

    norm_1: Tensor
    qkv: Linear
    qk_gain: Tensor | None
    o: Linear
    norm_2: Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Weights:
    """Everything that a forward pass reads: `embed` [vocab, hidden], `head` [hidden, vocab], rotary
    tables [context, head_dim]."""

    arch: Architecture
    embed: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    cos: Tensor
    sin: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the activations."""
        return self.embed.dtype

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.embed.device


@dataclass(frozen=True)
class LoadedModel:
    """A loaded Hugging Face model: shape, tensors by name, and its rotary embedding's inverse
    frequencies and scale."""

    arch: Architecture
    state: Mapping[str, Tensor]
    inverse_frequencies: Tensor
    rotary_scale: float = 1.0


def from_transformers(model: Any) -> LoadedModel:
    """Read a transformers `*ForCausalLM` without copying its tensors. Raises ConfigError for a kind
    that the engine does not implement."""
    rotary = model.model.rotary_emb
    return LoadedModel(
        arch=read_architecture(model.config),
        state={name: tensor.detach() for name, tensor in model.state_dict().items()},
        inverse_frequencies=rotary.inv_freq.detach().float().cpu(),
        rotary_scale=float(getattr(rotary, "attention_scaling", 1.0)),
    )


def _take(tensors: dict[str, Tensor], name: str, *shape: int) -> Tensor:
    """Take a tensor out of `tensors`. Raises ConfigError unless it has this shape and a floating
    type."""
    if name not in tensors:
        raise ConfigError(f"tensor {name} is missing")
    tensor = tensors.pop(name)
    if tuple(tensor.shape) != shape:
        raise ConfigError(
            f"tensor {name} has the shape {list(tensor.shape)}, and {list(shape)} by the "
            "configuration"
        )
    if not tensor.is_floating_point() or tensor.itemsize < 2:
        raise ConfigError(
            f"tensor {name} is {tensor.dtype}: the embedded engine reads unquantised weights only"
        )
    return tensor


def fuse(model: LoadedModel, device: torch.device, dtype: torch.dtype) -> Weights:
    """Return the engine's form of a model, in `dtype` on `device`. `model` is unchanged. Raises
    ConfigError if a tensor is missing, left over, of another shape, or not of a floating type."""
    arch, left = model.arch, dict(model.state)
    if arch.tied_unembedding:
        left.pop(HEAD, None)
    tables = rotary_tables(model.inverse_frequencies, model.rotary_scale, arch)
    weights = assembled(arch, partial(_take, left), left, tables, device, dtype)
    for name in left:
        if not name.endswith("rotary_emb.inv_freq"):
            raise ConfigError(f"tensor {name} is unknown to the embedded engine")
    return weights


def assembled(
    arch: Architecture,
    take: Callable[..., Tensor],
    names: Container[str],
    tables: tuple[Tensor, Tensor],
    device: torch.device,
    dtype: torch.dtype,
) -> Weights:
    """Return weights of tensors that `take(name, *shape)` gives by their Hugging Face names, each
    once, with the biases that are among `names`. `tables` are cosines and sines."""
    q, kv, hidden, ffn = arch.q_width, arch.kv_width, arch.hidden, arch.ffn

    def place(tensor: Tensor) -> Tensor:
        """Return the tensor in the weights' dtype on their device, contiguous."""
        return tensor.to(device=device, dtype=dtype).contiguous()

    def fused(block: str, inputs: int, **outputs: int) -> Linear:
        """Return the projections `outputs` (name: columns) as one layer; missing biases are 0."""
        parts = {f"{block}.{name}_proj": n for name, n in outputs.items()}
        weight = torch.cat([take(f"{at}.weight", n, inputs) for at, n in parts.items()]).t()
        if not any(f"{at}.bias" in names for at in parts):
            return Linear(place(weight))
        biases = [
            take(f"{at}.bias", n) if f"{at}.bias" in names else torch.zeros(n, dtype=weight.dtype)
            for at, n in parts.items()
        ]
        return Linear(place(weight), place(torch.cat(biases)))

    def gain(prefix: str) -> Tensor:
        """Return the query and key norms' gains by head, with the attention scale."""
        query = take(f"{prefix}.q_norm.weight", arch.head_dim).float() * arch.head_dim**-0.5
        key = take(f"{prefix}.k_norm.weight", arch.head_dim).float()
        return place(torch.cat([query.expand(arch.heads, -1), key.expand(arch.kv_heads, -1)]))

    def layer(i: int) -> Layer:
        prefix = f"model.layers.{i}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        return Layer(
            norm_1=place(take(f"{prefix}.input_layernorm.weight", hidden)),
            qkv=fused(attention, hidden, q=q, k=kv, v=kv),
            qk_gain=gain(attention) if arch.qk_norm else None,
            o=fused(attention, q, o=hidden),
            norm_2=place(take(f"{prefix}.post_attention_layernorm.weight", hidden)),
            gate_up=fused(mlp, hidden, gate=ffn, up=ffn),
            down=fused(mlp, ffn, down=hidden),
        )

    embed = place(take("model.embed_tokens.weight", arch.vocab, hidden))
    unembed = embed if arch.tied_unembedding else take(HEAD, arch.vocab, hidden)
    # A processor multiplies a copy faster; other devices read either layout as fast.
    shared = arch.tied_unembedding and fuses(device)
    cos, sin = tables
    return Weights(
        arch=arch,
        embed=embed,
        layers=tuple(layer(i) for i in range(arch.layers)),
        norm=place(take("model.norm.weight", hidden)),
        head=Linear(unembed.t() if shared else place(unembed.t())),
        cos=place(cos),
        sin=place(sin),
    )


def packed(weights: Weights) -> Weights:
    """Return the weights for sampling only: on x86 processors, a large model's matrices become
    copies in the layout that oneDNN multiplies fastest. Elsewhere the same weights are returned.

    On an AMD processor, in fp32 and bf16, this is 1.4 times as fast with 64 rows and twice as fast
    with 16 rows.
    """
    here = weights.device.type == "cpu" and not hasattr(tracing, "fuses")
    on_x86 = here and torch.backends.cpu.get_cpu_capability() in (
        "AVX2",
        "AVX512",
    )
    has_mkldnn = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if not (on_x86 and weights.arch.hidden > SMALL_HIDDEN and has_mkldnn):
        return weights
    if weights.dtype != torch.float32 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return weights

    def pack(linear: Linear) -> Linear:
        """Return the layer with its weight copied into the processor's own layout."""
        return replace(
            linear,
            weight=torch.ops.mkldnn._reorder_linear_weight(
                linear.weight.t().contiguous(), _PACKED_FOR
            ),
        )

    layers = tuple(
        replace(layer, **{s: pack(getattr(layer, s)) for s in SITES})  # type: ignore[arg-type]
        for layer in weights.layers
    )
    return replace(weights, layers=layers, head=pack(weights.head))


def rotary_tables(inverse: Tensor, scale: float, arch: Architecture) -> tuple[Tensor, Tensor]:
    """Return cosines and sines, each [max_context, head_dim] in fp32, of inverse frequencies
    [head_dim / 2] times `scale`.

    The first half of the sines is negated, so a rotation is `x * cos + roll(x, head_dim / 2) *
    sin`.
    """
    angles = torch.arange(arch.max_context, dtype=torch.float32)[:, None] * inverse[None, :]
    cos, sin = angles.cos() * scale, angles.sin() * scale
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
