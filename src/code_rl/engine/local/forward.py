"""Forward passes over many tokens. One is differentiable, over a packed micro-batch, with
hand-written gradients of its row-wise operations. The other is over prompts, for their keys, values
and log-probabilities.

Matrix products run on the flat tokens. Attention runs on padded grids: by plain matrix products for
short sequences, by `scaled_dot_product_attention` for long ones. Suffixes of a long prefix use
plain products for a few queries at a time, so that memory grows with the tokens and not with their
square.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .device import fuses, tracing
from .packing import Grid, Packed, is_long, make_grid, to_device
from .weights import SMALL_HIDDEN, Architecture, Layer, Weights
from .worker import safe_point

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
Rotate = Callable[[Tensor], Tensor]
Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
SUMMED = 128
WIDTH = 16
PREFILL_TOKENS = 8192
LOGIT_CHUNK = 1 << 24
SCORE_CHUNK = 1 << 25


class _Norm(torch.autograd.Function):
    """x / sqrt(mean(x²) + eps) over the last axis, computed in fp32 for any dtype of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        """Return x / sqrt(mean(x²) + eps), without gain, in x's dtype, and save what the gradient
        needs."""
        inverse = _inverse_rms(x, eps)
        y = (x * inverse).to(x.dtype)
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the input, reusing the saved output, and None for `eps`."""
        (gradient,) = gradients
        y, inverse = ctx.saved_tensors
        along = (gradient * y).mean(-1, keepdim=True, dtype=torch.float32)
        return torch.addcmul(gradient, y, along, value=-1).mul_(inverse).to(y.dtype), None


class _Gated(torch.autograd.Function):
    """silu(gate) · up, where gate and up are the two halves of the last axis."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        """Return silu(gate) · up, [n, f], for [n, 2 f], and save the input for the gradient."""
        ctx.save_for_backward(gate_up)
        return _gate(gate_up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient of both halves, computed within one tensor."""
        (gradient,) = gradients
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        of_gate, of_up = out.chunk(2, dim=-1)
        active = torch.sigmoid(gate)
        # The result's own halves hold intermediate values: a layer's memory peaks here.
        silu = torch.mul(gate, active, out=of_up)
        torch.sub(1, active, out=of_gate)
        active.addcmul_(silu, of_gate)
        torch.mul(gradient, up, out=of_gate).mul_(active)
        of_up.mul_(gradient)
        return out


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """Return 1 / sqrt(mean(x²) + eps) of the last axis, [..., 1], in fp32."""
    width = x.shape[-1]
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return length.square_().add_(eps * width).rsqrt_().mul_(width**0.5)


def _gate(gate_up: Tensor) -> Tensor:
    """Return silu(gate) · up for gate and up side by side in the last axis. The input is
    unchanged."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Return the root-mean-square norm over the last axis, computed in fp32, in x's dtype, times
    `weight` (None: without gain)."""
    stand_in = getattr(tracing, "norm", None)
    if stand_in is not None:
        found: Tensor = stand_in(x)
        return found
    if fuses(x.device):
        if weight is None or weight.dim() == 1:
            return F.rms_norm(x, (x.shape[-1],), weight, eps)
        scaled = F.rms_norm(x, (x.shape[-1],), None, eps)
    elif torch.is_grad_enabled():
        scaled = _Norm.apply(x, eps)  # type: ignore[no-untyped-call]
    else:
        scaled = (x * _inverse_rms(x, eps)).to(x.dtype)
    return scaled if weight is None else scaled * weight


def gated(gate_up: Tensor) -> Tensor:
    """Return silu(gate) · up for gate and up side by side, [n, 2 f] to [n, f]. With gradients
    enabled it saves its input alone."""
    if not torch.is_grad_enabled():
        return _gate(gate_up)
    return _Gated.apply(gate_up)  # type: ignore[no-any-return, no-untyped-call]


def rotation(weights: Weights, positions: Tensor, *, by_products: bool = False) -> Rotate:
    """Return the rotary embedding at positions [n], of x [n, heads, head_dim] (see
    `rotary_tables`).

    `by_products` makes it one product per call, with a matrix [head_dim, head_dim] per position.
    """
    cos, sin = weights.cos[positions].unsqueeze(1), weights.sin[positions].unsqueeze(1)
    half = weights.arch.head_dim // 2
    if by_products:
        unit = torch.eye(2 * half, dtype=weights.dtype, device=weights.device)
        matrices = torch.addcmul(unit * cos, unit.roll(half, 0), sin)
        return lambda x: x @ matrices
    return lambda x: torch.addcmul(x * cos, torch.roll(x, half, dims=-1), sin)


def split_heads(
    weights: Weights, layer: Layer, x: Tensor, rotate: Rotate
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [n, heads, d] (rotated, and scaled for attention), rotated keys [n, kv, d] and
    values [n, kv, d].

    `x` [n, hidden] is the layer's normed input. Every computation passes here once per layer, so
    this is a safe point (see `worker`).
    """
    safe_point()
    arch = weights.arch
    qkv = layer.qkv(x).view(x.shape[0], arch.heads + 2 * arch.kv_heads, arch.head_dim)
    both, value = torch.split(qkv, [arch.heads + arch.kv_heads, arch.kv_heads], dim=1)
    if layer.qk_gain is not None:
        both = rms_norm(both, layer.qk_gain, arch.norm_eps)
    both = rotate(both)
    query, key = torch.split(both, [arch.heads, arch.kv_heads], dim=1)
    if layer.qk_gain is None:
        query = query * arch.head_dim**-0.5
    return query, key, value


def decoder_layer(
    weights: Weights, layer: Layer, x: Tensor, rotate: Rotate, attend: Attend
) -> Tensor:
    """Apply one layer to x [n, hidden], and return a new tensor. Training, prefill and decoding
    differ only in `attend`.

    `attend` maps queries [n, heads, d], scaled and rotated, keys and values [n, kv, d] to [n, heads
    · d]. It is called once.
    """
    eps = weights.arch.norm_eps
    heads = split_heads(weights, layer, rms_norm(x, layer.norm_1, eps), rotate)
    x = layer.o(attend(*heads), onto=x)
    return layer.down(gated(layer.gate_up(rms_norm(x, layer.norm_2, eps))), onto=x)


def hidden_states(weights: Weights, batch: Packed, recompute: bool) -> Tensor:
    """Return the final normed states [n, hidden] of a micro-batch, in the order of its flat tokens.
    `recompute` saves memory by computing layers again in the backward pass."""
    rotate = rotation(weights, batch.positions)
    x = F.embedding(batch.tokens, weights.embed)
    prefixes, suffixes, device = batch.prefixes, batch.suffixes, weights.device
    causal = causal_mask((prefixes or suffixes).width, weights.dtype, device)
    spans = _spans(weights.arch, batch)
    joined = _joined_mask(batch, weights.dtype, *spans[0]) if len(spans) == 1 else None

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend within the prefixes, then from the suffixes to prefixes and themselves: flat [n,
        heads, d] to flat [n, heads · d]."""
        if prefixes is None:
            return attend_causal(weights, suffixes, causal, query, key, value)
        prefix = attend_causal(weights, prefixes, causal, query, key, value)
        return torch.cat(
            [prefix, _attend_suffixes(weights, batch, prefixes, spans, joined, query, key, value)]
        )

    for layer in weights.layers:
        if recompute:
            x = checkpoint(decoder_layer, weights, layer, x, rotate, attend, use_reentrant=False)
        else:
            x = decoder_layer(weights, layer, x, rotate, attend)
    return rms_norm(x, weights.norm, weights.arch.norm_eps)


def target_logprobs(
    weights: Weights, states: Tensor, targets: Tensor, temperature: float
) -> Tensor:
    """Return the log-probabilities, in nats and fp32, of targets [n] or [n, K] given final states
    [n, hidden]: log-softmax of logits / temperature. Logits are computed in chunks, and again in
    the backward pass if there are several."""
    rows = max(1, LOGIT_CHUNK // weights.arch.vocab)
    if len(targets) <= rows:
        return _logprobs(weights, states, targets, temperature)
    parts = [
        checkpoint(_logprobs, weights, part, ids, temperature, use_reentrant=False)
        for part, ids in zip(torch.split(states, rows), torch.split(targets, rows), strict=True)
    ]
    return torch.cat(parts)


def _logprobs(weights: Weights, states: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """Return log-softmax(logits / temperature), in fp32, at targets [n] or [n, K]."""
    logits = weights.head(states).float()
    logits = logits if temperature == 1 else logits / temperature
    if targets.dim() == 1:
        return -F.cross_entropy(logits, targets, reduction="none")
    return torch.log_softmax(logits, dim=-1).gather(1, targets)


def likeliest(weights: Weights, states: Tensor, k: int, temperature: float) -> tuple[Ints, Floats]:
    """Return the k likeliest tokens after each of the states [n, hidden], in descending order, and
    their log-probabilities at `temperature`: [n, k] each, on the host. Call it without
    gradients."""
    ids, logprobs = [], []
    for part in torch.split(states, max(1, LOGIT_CHUNK // weights.arch.vocab)):
        best = torch.log_softmax(weights.head(part).float() / temperature, dim=-1).topk(k)
        ids.append(best.indices.cpu().numpy().astype(np.int32))
        logprobs.append(best.values.cpu().numpy())
    return np.concatenate(ids), np.concatenate(logprobs)


def _spans(arch: Architecture, batch: Packed) -> list[tuple[int, int]]:
    """Cut the suffixes' positions into spans [from, to) whose attention scores have at most
    SCORE_CHUNK elements. Short ones are one span; without prefixes there are none."""
    if batch.prefixes is None:
        return []
    width = batch.suffixes.width
    columns = batch.prefixes.width + width
    rows = (
        max(1, SCORE_CHUNK // (arch.heads * batch.suffixes.rows * columns))
        if is_long(columns)
        else width
    )
    return [(start, min(start + rows, width)) for start in range(0, width, rows)]


def _joined_mask(batch: Packed, dtype: torch.dtype, start: int, end: int) -> Tensor:
    """Return an additive mask of suffix positions [start, end) to their prefix and to the suffix up
    to `end`: [prefixes, 1, 1, 1, end - start, T + end]."""
    prefixes, device = batch.prefixes, batch.tokens.device
    assert prefixes is not None
    own = torch.full((end - start, end), float("-inf"), dtype=dtype, device=device).triu_(1 + start)
    inside = torch.arange(prefixes.width, device=device)[None, :] < prefixes.lengths[:, None]
    to_prefix = torch.zeros(inside.shape, dtype=dtype, device=device).masked_fill_(
        ~inside, float("-inf")
    )
    joined = torch.cat(
        [
            to_prefix[:, None, :].expand(-1, end - start, -1),
            own[None, :, :].expand(prefixes.rows, -1, -1),
        ],
        dim=-1,
    )
    return joined[:, None, None, None]


def causal_mask(width: int, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """Return an additive mask [width, width] that hides later positions, or None for a long width,
    whose attention is computed by the fused kernel."""
    if is_long(width):
        return None
    return torch.full((width, width), float("-inf"), dtype=dtype, device=device).triu_(1)


def attend_causal(
    weights: Weights, grid: Grid, mask: Tensor | None, query: Tensor, key: Tensor, value: Tensor
) -> Tensor:
    """Return causal attention within each row of the grid: flat [n, heads, d] to flat [n, heads ·
    d], in the grid's order. Queries are scaled already.

    `mask` is `causal_mask(grid.width)`; None chooses the fused kernel.
    """
    arch = weights.arch
    q, k, v = (
        flat.index_select(0, grid.gather)
        .view(grid.rows, grid.width, -1, arch.head_dim)
        .transpose(1, 2)
        for flat in (query, key, value)
    )
    if mask is None:
        out = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=1.0, enable_gqa=arch.queries_per_kv > 1
        )
    else:
        grouped = q.reshape(
            grid.rows, arch.kv_heads, arch.queries_per_kv, grid.width, arch.head_dim
        )
        folded = grouped.reshape(grid.rows, arch.kv_heads, -1, arch.head_dim)
        scores = (folded @ k.transpose(2, 3)).view(*grouped.shape[:-1], grid.width)
        probs = torch.softmax(scores + mask, dim=-1)
        out = weighted(arch, probs.view(grid.rows, arch.kv_heads, -1, grid.width), v).view(
            grouped.shape
        )
        out = out.reshape(grid.rows, arch.heads, grid.width, arch.head_dim)
    flat = out.transpose(1, 2).reshape(grid.rows * grid.width, arch.q_width)
    return flat.index_select(0, grid.scatter)


def weighted(arch: Architecture, probs: Tensor, values: Tensor) -> Tensor:
    """Return `probs @ values` [.., m, w] × [.., w, d]. In small models the bits are the same
    however many columns of zeros follow.

    A library sums long rows in parts, whose number depends on the row's length. Summing parts of
    `SUMMED` columns here removes that dependence.
    """
    width = probs.shape[-1]
    if width <= SUMMED or arch.hidden > SMALL_HIDDEN:
        return probs @ values
    out = probs[..., :SUMMED] @ values[..., :SUMMED, :]
    for at in range(SUMMED, width, SUMMED):
        out = out + probs[..., at : at + SUMMED] @ values[..., at : at + SUMMED, :]
    return out


def _attend_suffixes(
    weights: Weights,
    batch: Packed,
    prefixes: Grid,
    spans: Sequence[tuple[int, int]],
    mask: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
) -> Tensor:
    """Attend from suffixes to their prefix (one product per prefix for all its suffixes) and
    causally to themselves. Inputs have all flat tokens; the result, [n, heads · d], has the
    suffixes' alone. `mask` is that of the only span; each of several makes its own, and computes
    its scores again in the backward pass."""
    arch, grid = weights.arch, batch.suffixes
    n, slots = prefixes.rows, batch.slots
    kv, per, d = arch.kv_heads, arch.queries_per_kv, arch.head_dim
    q = (
        query.index_select(0, grid.gather)
        .view(n, slots, grid.width, kv, per, d)
        .permute(0, 3, 1, 4, 2, 5)
    )
    k, v = (
        flat.index_select(0, grid.gather).view(n, slots, grid.width, kv, d).permute(0, 3, 1, 2, 4)
        for flat in (key, value)
    )
    k_prefix, v_prefix = (
        flat.index_select(0, prefixes.gather).view(n, prefixes.width, kv, d).transpose(1, 2)
        for flat in (key, value)
    )
    q = q.contiguous()

    def attend(
        start: int, end: int, q: Tensor, k: Tensor, v: Tensor, k_prefix: Tensor, v_prefix: Tensor
    ) -> Tensor:
        """Return the attention of suffix positions `start` to `end`."""
        shape = (n, kv, slots, per, end - start)
        q = q[..., start:end, :]
        to_prefix = (q.reshape(n, kv, -1, d) @ k_prefix.transpose(2, 3)).view(
            *shape, prefixes.width
        )
        to_own = (q.reshape(n, kv, slots, -1, d) @ k[..., :end, :].transpose(3, 4)).view(
            *shape, end
        )
        hidden = _joined_mask(batch, weights.dtype, start, end) if mask is None else mask
        probs = torch.softmax(torch.cat([to_prefix, to_own], dim=-1) + hidden, dim=-1)
        p_prefix, p_own = torch.split(probs, [prefixes.width, end], dim=-1)
        out = (p_prefix.reshape(n, kv, -1, prefixes.width) @ v_prefix).view(*shape, d)
        return out + (p_own.reshape(n, kv, slots, -1, end) @ v[..., :end, :]).view(*shape, d)

    if len(spans) == 1:
        out = attend(0, grid.width, q, k, v, k_prefix, v_prefix)
    else:
        parts = [
            checkpoint(attend, *span, q, k, v, k_prefix, v_prefix, use_reentrant=False)
            for span in spans
        ]
        out = torch.cat(parts, dim=-2)
    flat = out.permute(0, 2, 4, 1, 3, 5).reshape(grid.rows * grid.width, arch.q_width)
    return flat.index_select(0, grid.scatter)


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue. `scored_at` is the temperature at which their own log-probabilities are
    computed (None: not at all); `likeliest` is how many of the likeliest tokens to return per
    position."""

    tokens: tuple[int, ...]
    scored_at: float | None = None
    likeliest: int = 0


@dataclass(frozen=True)
class Scored:
    """The scores of a prompt of n tokens: log-probabilities [n], NaN first, and the likeliest
    tokens' ids and log-probabilities [n - 1, k] from the second position on. Scores that were not
    requested are empty."""

    logprobs: Floats
    ids: Ints
    best: Floats


UNSCORED = Scored(
    np.empty(0, dtype=np.float32),
    np.empty((0, 0), dtype=np.int32),
    np.empty((0, 0), dtype=np.float32),
)


@dataclass(frozen=True)
class Prefilled:
    """Prompts after their forward pass: keys per layer [P, kv, d, width], values [P, kv, width, d],
    lengths [P], last logits [P, vocab]."""

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor
    logits: Tensor
    scored: list[Scored]


@torch.inference_mode()
def prefill(weights: Weights, prompts: Sequence[Prompt]) -> Prefilled:
    """Run the prompts through the model, at most PREFILL_TOKENS (with attention's padding) or one
    prompt at once. The result has their order."""
    parts: list[list[Prompt]] = [[]]
    for prompt in prompts:
        if parts[-1] and _cells([*parts[-1], prompt]) > PREFILL_TOKENS:
            parts.append([])
        parts[-1].append(prompt)
    done = [_prefill(weights, part) for part in parts]
    if len(done) == 1:
        return done[0]
    width = max(part.values[0].shape[2] for part in done)

    def joined(caches: list[list[Tensor]], axis: int) -> list[Tensor]:
        """Return one cache per layer, joined over the batches and padded to one width. The lists in
        `caches` are emptied."""
        # Layer by layer, so that at most one layer is stored twice.
        layers = range(len(caches[0]))
        return [
            torch.cat([extended(cache.pop(0), axis, width) for cache in caches]) for _ in layers
        ]

    return Prefilled(
        keys=joined([part.keys for part in done], 3),
        values=joined([part.values for part in done], 2),
        lengths=torch.cat([part.lengths for part in done]),
        logits=torch.cat([part.logits for part in done]),
        scored=[scored for part in done for scored in part.scored],
    )


def _cells(prompts: Sequence[Prompt]) -> int:
    """Return the number of tokens of the prompts, padded to the longest."""
    return len(prompts) * max(len(prompt.tokens) for prompt in prompts)


def extended(cache: Tensor, axis: int, width: int) -> Tensor:
    """Return a copy of the cache with zeros appended along `axis`, up to `width` columns, which are
    at least the present ones."""
    shape = list(cache.shape)
    shape[axis] = width - shape[axis]
    return torch.cat([cache, cache.new_zeros(shape)], dim=axis)


def _prefill(weights: Weights, prompts: Sequence[Prompt]) -> Prefilled:
    """Run whole prompts in one pass, keep their keys and values, and score those that ask for it.
    The keys' width is a multiple of WIDTH."""
    arch, device = weights.arch, weights.device
    lengths = np.array([len(p.tokens) for p in prompts], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    grid = make_grid(
        len(prompts), range(len(prompts)), offsets[:-1], lengths, device, multiple=WIDTH
    )
    ids = np.concatenate([np.asarray(p.tokens, dtype=np.int64) for p in prompts])
    tokens = to_device(ids, device)
    positions = np.concatenate([np.arange(n) for n in lengths])
    rotate = rotation(weights, to_device(positions, device))
    mask = causal_mask(grid.width, weights.dtype, device)
    x = F.embedding(tokens, weights.embed)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    shape = (grid.rows, grid.width, arch.kv_heads, arch.head_dim)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep the keys and values of a layer in the caches' layout, and return the causal
        attention. It is called for the layers in order."""
        keys.append(key.index_select(0, grid.gather).view(shape).permute(0, 2, 3, 1).contiguous())
        values.append(value.index_select(0, grid.gather).view(shape).transpose(1, 2).contiguous())
        return attend_causal(weights, grid, mask, query, key, value)

    for layer in weights.layers:
        x = decoder_layer(weights, layer, x, rotate, attend)
    ends = to_device(offsets[1:] - 1, device)
    last = rms_norm(x.index_select(0, ends), weights.norm, arch.norm_eps)
    logits = weights.head(last).float()
    found = [UNSCORED] * len(prompts)
    for temperature in {p.scored_at for p in prompts if p.scored_at is not None}:
        states = rms_norm(x, weights.norm, arch.norm_eps)
        following = torch.cat([tokens[1:], tokens[:1]])
        scored = target_logprobs(weights, states, following, temperature).cpu().numpy()
        for i, (a, b) in enumerate(itertools.pairwise(offsets)):
            if prompts[i].scored_at == temperature:
                k = prompts[i].likeliest
                best = (
                    likeliest(weights, states[a : b - 1], k, temperature)
                    if k and b - a > 1
                    else (UNSCORED.ids, UNSCORED.best)
                )
                found[i] = Scored(np.concatenate([[np.float32(np.nan)], scored[a : b - 1]]), *best)
    return Prefilled(keys, values, grid.lengths, logits, found)
