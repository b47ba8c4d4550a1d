"""Sampling from a model that transformers runs. The completions of one prompt at a time use the
model's own cache, so nothing is padded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .decode import MAX_ROWS, Completion, SequenceRequest
from .forward import Prompt, Scored
from .hf import HfWeights
from .picking import Picker
from .worker import safe_point


@dataclass
class _Row:
    """A completion in progress."""

    request: SequenceRequest
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def takes(self, token: int, logprob: float) -> bool | None:
        """Append a token. Return True if it ends the completion by a stop, False if by length, else
        None."""
        self.tokens.append(token)
        self.logprobs.append(logprob)
        asked = self.request
        if token in asked.stop_tokens or (asked.stopped and asked.stopped(self.tokens)):
            return True
        return False if len(self.tokens) == asked.max_tokens else None

    def completion(self, stopped: bool, scored: Scored) -> Completion:
        logprobs = np.asarray(self.logprobs, dtype=np.float32)
        return Completion(np.asarray(self.tokens, dtype=np.int32), logprobs, stopped, scored)


@torch.inference_mode()
def decode_hf(
    weights: HfWeights, waiting: deque[SequenceRequest], arrived: Callable[[], None], budget: int
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
            yield request, _Row(request).completion(False, scored)
    rows = [_Row(request) for request in requests if request.max_tokens]
    if not rows:
        return
    cache = output.past_key_values
    longest = len(prompt.tokens) + max(row.request.max_tokens for row in rows)
    fitting = max(1, budget * len(prompt.tokens) // max(1, cache_bytes(cache) * longest))
    waiting.extendleft(row.request for row in reversed(rows[fitting:]))
    del rows[fitting:]
    cache.reorder_cache(torch.zeros(len(rows), dtype=torch.long, device=weights.device))
    logits = output.logits[:, -1].float().repeat(len(rows), 1)
    picker = Picker([row.request.choice for row in rows], weights.device)
    while True:
        chosen, logprobs = picker.sample_tokens(logits)
        taken = zip(rows, chosen.tolist(), logprobs.tolist(), strict=True)
        ends = [row.takes(token, logprob) for row, token, logprob in taken]
        for row, stopped in zip(rows, ends, strict=True):
            if stopped is not None:
                yield row.request, row.completion(stopped, scored)
        alive = [at for at, stopped in enumerate(ends) if stopped is None]
        if not alive:
            return
        if len(alive) < len(rows):
            rows = [rows[at] for at in alive]
            picker.keep(alive)
            kept = torch.tensor(alive, device=weights.device)
            cache.reorder_cache(kept)
            chosen = chosen[kept]
        safe_point()
        output = weights(chosen[:, None], past_key_values=cache, use_cache=True)
        logits = output.logits[:, -1].float()


def _scored(prompt: Prompt, logits: Tensor) -> Scored:
    """Return the prompt's requested scores."""
    if prompt.scored_at is None:
        nothing = np.empty(0, dtype=np.float32)
        return Scored(nothing, np.empty((0, 0), dtype=np.int64), nothing[:, None])
    table = torch.log_softmax(logits[:-1].float() / prompt.scored_at, dim=-1)
    following = torch.tensor(prompt.tokens[1:], device=table.device)
    known = table.gather(1, following[:, None])[:, 0].cpu().numpy()
    best, ids = (each.cpu().numpy() for each in table.topk(prompt.likeliest, dim=-1))
    return Scored(np.concatenate([np.full(1, np.nan, np.float32), known]), ids, best)
