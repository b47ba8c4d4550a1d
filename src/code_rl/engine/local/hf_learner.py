"""Gradients of a model that transformers runs. Micro-batches are padded at the end, where causal
attention keeps padding from affecting earlier tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from .hf import HfWeights, hf_modules
from .learner import Leaf, Learner, Trainable
from .lora import Lora, LoraSettings
from .packing import Packed, Suffix, Unit
from .passes import EngineExample, read_pass
from .weights import Weights

TOKENS = 1024
"""The most tokens of a micro-batch, padding included, unless it is a single example."""


class HfLearner(Learner):
    """One model in training; it differs from the fast learner only in its passes."""

    def __init__(self, base: HfWeights, lora: Lora, token_budget: int | None = None) -> None:
        super().__init__(cast(Any, base), lora, token_budget or TOKENS)
        self._model = base

    def trace(self, examples: Sequence[EngineExample]) -> None:
        units, (weights, _) = max(self._plan(examples), key=len), self._trainable()
        self._micro_batch(units, read_pass("importance_sampling", None), weights, backward=True)

    def snapshot(self) -> HfWeights:
        return HfWeights(self._model.arch, self._model.module, self.lora.pairs())

    def _weights(self) -> HfWeights:
        return self.snapshot()

    def _trainable(self) -> Trainable:
        weights = self.snapshot()
        for pair in weights.adapter.values():
            for part in pair:
                part.requires_grad_()
        leaves: list[Leaf] = [
            (pair, partial(self.lora.chain_pair, name)) for name, pair in weights.adapter.items()
        ]
        return weights, leaves

    def _plan(self, examples: Sequence[EngineExample]) -> Iterator[list[Unit]]:
        """Yield examples of similar length that fit the budget together."""
        part: list[Unit] = []
        for i, example in sorted(enumerate(examples), key=lambda entry: len(entry[1].tokens)):
            if part and (len(part) + 1) * len(example.tokens) > self.budget:
                yield part
                part = []
            part.append(Unit(0, (Suffix(i, 0, example),)))
        if part:
            yield part

    def _logprobs(
        self, batch: Packed, temperature: float, weights: HfWeights, recompute: bool
    ) -> tuple[Tensor, Tensor]:
        del recompute
        grid, lengths = batch.suffixes, [unit.tokens for unit in batch.units]
        tokens = batch.tokens.index_select(0, grid.gather).view(grid.rows, grid.width)
        logits = weights(tokens, use_cache=False).logits
        found = [
            _of_targets(row[: len(targets)].float() / temperature, targets)
            for row, targets in zip(logits, torch.split(batch.targets, lengths), strict=True)
        ]
        return found[0].detach()[:0], torch.cat(found)


def new_learner(
    weights: Weights | HfWeights,
    settings: LoraSettings,
    tokens: int | None = None,
    for_sampling: Callable[[], Weights] | None = None,
) -> Learner:
    """Return a learner of a new adapter, by the kind of the weights, with micro-batches of `tokens`
    (None: the device's)."""
    if isinstance(weights, HfWeights):
        adapted = hf_modules(weights, settings)
        return HfLearner(weights, Lora(weights.arch, settings, weights.device, adapted), tokens)
    return Learner(weights, Lora(weights.arch, settings, weights.device), tokens, for_sampling)


def _of_targets(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the log-probabilities of an example's targets [n] or [n, K]."""
    chosen = logits.gather(1, targets.view(len(targets), -1)) - logits.logsumexp(-1, keepdim=True)
    return chosen.view(targets.shape)
