"""Sampling from a model that transformers runs. The completions of one prompt at a time use the
model's own cache, so nothing is padded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .decode import MAX_ROWS, Completion, Rows, SequenceRequest
from .forward import UNSCORED, Prompt, Scored
from .hf import HfWeights
from .weights import Architecture
from .worker import safe_point


class _HfRows(Rows):
    """Rows with a cache of transformers."""

    def __init__(
        self,
        requests: Sequence[SequenceRequest],
        scored: Scored,
        logits: Tensor,
        cache: Any,
        arch: Architecture,
    ) -> None:
        count = len(requests)
        super().__init__(requests, [scored] * count, logits.repeat(count, 1), arch)
        self.cache = cache
        cache.reorder_cache(torch.zeros(count, dtype=torch.long, device=self.device))

    def keep(self, rows: Sequence[int]) -> None:
        self.cache.reorder_cache(torch.tensor(rows, device=self.device))


@torch.inference_mode()
def decode_hf(
    weights: HfWeights, waiting: deque[SequenceRequest], budget: int, arrived: Callable[[], None]
) -> Iterator[tuple[SequenceRequest, Completion]]:
    """Sample queued requests prompt by prompt, and yield each with its completion. The caches take
    at most `budget` bytes, unless a single row needs more."""
    while waiting:
        arrived()
        prompt = waiting[0].prompt
        mine = [each for each in waiting if each.prompt is prompt]
        rest = [each for each in waiting if each.prompt is not prompt] + mine[MAX_ROWS:]
        waiting.clear()
        waiting.extend(rest)
        yield from _completions(weights, prompt, mine[:MAX_ROWS], waiting, budget)


def cache_bytes(cache: Any) -> int:
    """Return the bytes of a cache of transformers, and of one more layer, since a layer is stored
    twice while it grows."""
    # Layers without attention keep a state of fixed size instead.
    kept = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    sizes: list[int] = [layer.keys.nbytes + layer.values.nbytes for layer in kept]
    return sum(sizes) + max(sizes, default=0)


def _completions(
    weights: HfWeights,
    prompt: Prompt,
    requests: Sequence[SequenceRequest],
    waiting: deque[SequenceRequest],
    budget: int,
) -> Iterator[tuple[SequenceRequest, Completion]]:
    """Sample the requests of a prompt; those that do not fit the budget go back to `waiting`."""
    tokens = torch.tensor([prompt.tokens], device=weights.device)
    output = weights(tokens, use_cache=True)
    scored = _scored(prompt, output.logits[0])
    for request in requests:
        if not request.max_tokens:
            yield request, Completion.empty(scored)
    sampled = [request for request in requests if request.max_tokens]
    if not sampled:
        return
    cache = output.past_key_values
    longest = len(prompt.tokens) + max(request.max_tokens for request in sampled)
    fitting = max(1, budget * len(prompt.tokens) // max(1, cache_bytes(cache) * longest))
    waiting.extendleft(reversed(sampled[fitting:]))
    rows = _HfRows(sampled[:fitting], scored, output.logits[:, -1].float(), cache, weights.arch)
    while True:
        yield from rows.sample_tokens()
        if not rows.alive.any():
            return
        safe_point()
        output = weights(rows.token[:, None], past_key_values=cache, use_cache=True)
        rows.logits = output.logits[:, -1].float()


def _scored(prompt: Prompt, logits: Tensor) -> Scored:
    """Return the prompt's requested scores."""
    if prompt.scored_at is None:
        return UNSCORED
    table = torch.log_softmax(logits[:-1].float() / prompt.scored_at, dim=-1)
    following = torch.tensor(prompt.tokens[1:], device=table.device)
    known = table.gather(1, following[:, None])[:, 0].cpu().numpy()
    best, ids = (each.cpu().numpy() for each in table.topk(prompt.likeliest, dim=-1))
    return Scored(np.concatenate([np.full(1, np.nan, np.float32), known]), ids, best)
