"""Gradients of a model that transformers runs. Micro-batches are padded at the end, where causal
attention keeps padding from affecting earlier tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from tinker import types
from torch import Tensor

from .hf import HfWeights, adapter_of
from .learner import AdamState, Learner, outputs_of
from .lora import Lora
from .packing import to_device
from .passes import EngineExample, Pass, read_pass

TOKENS = 1024
"""The most tokens of a micro-batch, padding included, unless it is a single example."""


class HfLearner(Learner):
    """One model in training; it differs from the fast learner only in its passes."""

    def __init__(self, base: HfWeights, lora: Lora, token_budget: int = TOKENS) -> None:
        self._model, self.lora, self.budget = base, lora, token_budget
        self.adam = AdamState.fresh(lora.flat)
        self.gradient: Tensor | None = None

    def trace(self, examples: Sequence[EngineExample]) -> None:
        part = max(self._batches(examples), key=len)
        flat = self.lora.flat.detach().clone().requires_grad_()
        self._pass([examples[i] for i in part], read_pass("importance_sampling", None), flat)

    def snapshot(self) -> HfWeights:
        """Return weights for a sampler that later training does not change."""
        adapter = adapter_of(self.lora, self.lora.flat.detach().clone())
        return HfWeights(self._model.arch, self._model.module, adapter)

    def forward(self, examples: Sequence[EngineExample], how: Pass) -> types.ForwardBackwardOutput:
        with torch.no_grad():
            return self._passes(examples, how, self.lora.flat)

    def forward_backward(
        self, examples: Sequence[EngineExample], how: Pass
    ) -> types.ForwardBackwardOutput:
        flat = self.lora.flat.detach().clone().requires_grad_()
        output = self._passes(examples, how, flat)
        self.accumulate(torch.zeros_like(flat) if flat.grad is None else flat.grad)
        return output

    def _passes(
        self, examples: Sequence[EngineExample], how: Pass, flat: Tensor
    ) -> types.ForwardBackwardOutput:
        logprobs = [np.empty(each.targets.shape, dtype=np.float32) for each in examples]
        losses = [np.zeros(each.targets.shape, dtype=np.float32) for each in examples]
        for part in self._batches(examples):
            # One transfer for the whole micro-batch.
            results = self._pass([examples[i] for i in part], how, flat)
            together = torch.cat(results).cpu().numpy()
            read = np.split(together, np.cumsum([len(each) for each in results])[:-1])
            for i, found_i, lost_i in zip(part, read[::2], read[1::2], strict=True):
                logprobs[i][...] = found_i
                losses[i][examples[i].context :] = lost_i
        return outputs_of(logprobs, losses)

    def _pass(self, examples: Sequence[EngineExample], how: Pass, flat: Tensor) -> list[Tensor]:
        """Return each example's log-probabilities and losses; the gradient is added to `flat`."""
        model = HfWeights(self._model.arch, self._model.module, adapter_of(self.lora, flat))
        tokens = np.zeros((len(examples), max(len(e.tokens) for e in examples)), np.int64)
        for row, example in enumerate(examples):
            tokens[row, : len(example.tokens)] = example.tokens
        logits = model(torch.from_numpy(tokens).to(model.device), use_cache=False).logits
        total = torch.zeros((), device=model.device)
        results: list[Tensor] = []
        for row, example in enumerate(examples):
            found, lost = _one(example, logits[row], how)
            results += [found.detach(), lost.detach()]
            total = total + lost.sum()
        if total.requires_grad:
            total.backward()  # type: ignore[no-untyped-call]
        return results

    def _batches(self, examples: Sequence[EngineExample]) -> Iterator[list[int]]:
        """Yield the indices of examples of similar length that fit the budget together."""
        part: list[int] = []
        for i in sorted(range(len(examples)), key=lambda i: len(examples[i].tokens)):
            if part and (len(part) + 1) * len(examples[i].tokens) > self.budget:
                yield part
                part = []
            part.append(i)
        if part:
            yield part


def _one(example: EngineExample, logits: Tensor, how: Pass) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of an example's targets, and the losses of those that count."""
    count, start, device = len(example.tokens), example.context, logits.device
    scaled = logits[:count].float() / how.temperature
    targets = to_device(example.targets, device)
    chosen = scaled.gather(1, targets.view(count, -1)) - scaled.logsumexp(-1, keepdim=True)
    logprobs = chosen.view(targets.shape)
    inputs = {name: to_device(values[start:], device) for name, values in example.inputs.items()}
    losses: Tensor = how.loss.formula(torch, logprobs[start:], inputs, how.settings)
    return logprobs, losses
