"""The forward pass over prompts: their keys and values for the completions, and their own log-probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from .forward import attend_causal, causal_mask, decoder_layer, rms_norm, target_logprobs
from .packing import is_long, make_grid
from .weights import Weights

WIDTH = 16
PREFILL_TOKENS = 8192


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue; `scored_at` is the temperature at which their own log-probabilities are wanted (None: not at all)."""

    tokens: tuple[int, ...]
    scored_at: float | None = None


@dataclass(frozen=True)
class Prefilled:
    """Prompts after their forward pass: keys per layer [P, kv, d, width], values [P, kv, width, d], lengths [P], last logits [P, vocab],
    log-probabilities [n] of each (NaN first; empty where they are not wanted).
    """

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor
    logits: Tensor
    logprobs: list[npt.NDArray[np.float32]]


@torch.inference_mode()
def prefill(weights: Weights, prompts: Sequence[Prompt]) -> Prefilled:
    """Run the prompts through the model."""
    parts: list[list[Prompt]] = [[]]
    for prompt in prompts:
        if parts[-1] and sum(len(p.tokens) for p in parts[-1]) + len(prompt.tokens) > PREFILL_TOKENS:
            parts.append([])
        parts[-1].append(prompt)
    done = [_prefill(weights, part) for part in parts]
    if len(done) == 1:
        return done[0]
    width = max(part.values[0].shape[2] for part in done)

    def joined(caches: list[list[Tensor]], axis: int) -> list[Tensor]:
        # Layer by layer, so that no more than one layer is there twice.
        layers = range(len(caches[0]))
        return [torch.cat([extended(cache.pop(0), axis, width) for cache in caches]) for _ in layers]

    return Prefilled(
        keys=joined([part.keys for part in done], 3),
        values=joined([part.values for part in done], 2),
        lengths=torch.cat([part.lengths for part in done]),
        logits=torch.cat([part.logits for part in done]),
        logprobs=[scored for part in done for scored in part.logprobs],
    )


def extended(cache: Tensor, axis: int, width: int) -> Tensor:
    """The cache with zeros after its end along `axis`, `width` columns in all."""
    shape = list(cache.shape)
    shape[axis] = width - shape[axis]
    return torch.cat([cache, cache.new_zeros(shape)], dim=axis)


def _prefill(weights: Weights, prompts: Sequence[Prompt]) -> Prefilled:
    arch, device = weights.arch, weights.device
    lengths = np.array([len(p.tokens) for p in prompts], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    grid = make_grid(len(prompts), range(len(prompts)), offsets[:-1], lengths, device, multiple=WIDTH)
    tokens = torch.from_numpy(np.concatenate([np.asarray(p.tokens, dtype=np.int64) for p in prompts])).to(device)
    positions = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])).to(device)
    cos, sin = weights.cos[positions].unsqueeze(1), weights.sin[positions].unsqueeze(1)
    mask = None if is_long(grid.width) else causal_mask(grid.width, weights.dtype, device)
    x = F.embedding(tokens, weights.embed)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    shape = (grid.rows, grid.width, arch.kv_heads, arch.head_dim)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys.append(key.index_select(0, grid.gather).view(shape).permute(0, 2, 3, 1).contiguous())
        values.append(value.index_select(0, grid.gather).view(shape).transpose(1, 2).contiguous())
        return attend_causal(weights, grid, mask, query, key, value)

    for layer in weights.layers:
        x = decoder_layer(weights, layer, x, cos, sin, attend)
    ends = torch.from_numpy(offsets[1:] - 1).to(device)
    last = rms_norm(x.index_select(0, ends), weights.norm, arch.norm_eps)
    logits = weights.head(last).float()
    found = [np.empty(0, dtype=np.float32) for _ in prompts]
    for temperature in {p.scored_at for p in prompts if p.scored_at is not None}:
        states = rms_norm(x, weights.norm, arch.norm_eps)
        following = torch.cat([tokens[1:], tokens[:1]])
        scored = target_logprobs(weights, states, following, temperature).cpu().numpy()
        nothing = np.full(1, np.nan, dtype=np.float32)
        for i, (a, b) in enumerate(itertools.pairwise(offsets)):
            if prompts[i].scored_at == temperature:
                found[i] = np.concatenate([nothing, scored[a : b - 1]])
    return Prefilled(keys, values, grid.lengths, logits, found)
