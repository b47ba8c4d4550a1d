"""Gradients and AdamW steps for one model: base weights, its adapter, accumulated gradient,
optimizer state.

Not thread-safe: the client's worker calls it, one operation at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tinker import types
from torch import Tensor

from code_rl.util.errors import BackendError, ConfigError

from .device import Device
from .forward import LOGIT_CHUNK, hidden_states, target_logprobs
from .lora import Lora, Module
from .packing import Packed, Unit, pack, plan
from .passes import EngineExample, Floats, Pass
from .weights import Architecture, Linear, Weights, packed

if TYPE_CHECKING:
    from .hf import HfWeights

MERGE_LIMIT = 32_000_000
_CHUNKS = 3
# Bytes of a micro-batch's activations; above this they are recomputed
ACTIVATIONS_LIMIT = 2 * 2**30
Leaf = tuple[tuple[Tensor, ...], Callable[..., None]]
"""Tensors of the trainable weights that collect a gradient, and the function that chains the
gradient to A and B."""
Trainable = tuple[Any, list[Leaf]]
"""The weights of a pass with gradients, of the learner's kind, and their leaves."""


@dataclass
class AdamState:
    """Running means of the gradient and of its square, laid out like the parameters, and the number
    of steps taken."""

    mean: Tensor
    square: Tensor
    steps: int = 0

    @classmethod
    def fresh(cls, parameters: Tensor) -> AdamState:
        """Return the state before the first step: zeros, laid out like the parameters."""
        return cls(torch.zeros_like(parameters), torch.zeros_like(parameters))


def check_adam(params: object) -> types.AdamParams:
    """Return `params` unchanged. Raises ConfigError if they are another optimizer's, or if a value
    is out of range."""
    if not isinstance(params, types.AdamParams):
        raise ConfigError(
            f"optim_params {type(params).__name__} is not supported by the embedded engine, only "
            "AdamParams"
        )
    for name in ("learning_rate", "eps", "weight_decay", "grad_clip_norm"):
        value = getattr(params, name)
        if not math.isfinite(value) or value < 0:
            raise ConfigError(f"AdamParams {name}={value} must be a finite number of at least 0")
    for name in ("beta1", "beta2"):
        value = getattr(params, name)
        if not 0 <= value < 1:
            raise ConfigError(f"AdamParams {name}={value} must be in [0, 1)")
    return params


@torch.no_grad()
def adam_step(
    parameters: Tensor, gradient: Tensor, state: AdamState, params: types.AdamParams
) -> dict[str, float]:
    """Take one AdamW step: update `parameters` and `state` in place, and return `grad_norm:mean`,
    the norm before clipping. Clipping to `grad_clip_norm` (0: none) scales `gradient` in place."""
    norm = float(torch.linalg.vector_norm(gradient))
    if params.grad_clip_norm > 0 and norm > params.grad_clip_norm:
        gradient.mul_(params.grad_clip_norm / norm)
    state.steps += 1
    state.mean.lerp_(gradient, 1 - params.beta1)
    state.square.mul_(params.beta2).addcmul_(gradient, gradient, value=1 - params.beta2)
    mean_correction = 1 - params.beta1**state.steps
    square_correction = math.sqrt(1 - params.beta2**state.steps)
    if params.weight_decay:
        parameters.mul_(1 - params.learning_rate * params.weight_decay)
    denominator = state.square.sqrt().div_(square_correction).add_(params.eps)
    parameters.addcdiv_(state.mean, denominator, value=-params.learning_rate / mean_correction)
    return {"grad_norm:mean": norm}


def merges(modules: Sequence[Module], dtype: torch.dtype) -> bool:
    """Return True if a model is trained through merged matrices (see `Learner`): in float32, with
    at most `MERGE_LIMIT` adapted elements."""
    adapted = sum(m.inputs * m.outputs for m in modules)
    return dtype == torch.float32 and adapted <= MERGE_LIMIT


def kept_tokens(arch: Architecture, dtype: torch.dtype) -> int:
    """Return the most tokens of a micro-batch whose activations, 2 GiB by an estimate, are kept and
    not recomputed."""
    per_token = arch.layers * (10 * arch.hidden + 5 * arch.ffn) * dtype.itemsize
    return ACTIVATIONS_LIMIT // per_token


class Learner:
    """One model in training.

    Small fp32 models are trained through merged matrices, whose gradient is chained to A and B once
    per request. Models with over `MERGE_LIMIT` adapted elements and bf16 models keep A and B
    separate, so that no full-size gradient exists.
    """

    def __init__(
        self,
        base: Weights,
        lora: Lora,
        token_budget: int | None = None,
        for_sampling: Callable[[], Weights] | None = None,
    ) -> None:
        """Begin with a fresh optimizer and no gradient; `lora` is used as it is. `token_budget` is
        the most tokens of a micro-batch (None: by the device and its memory), and `for_sampling`
        gives the base weights for samplers (None: `base`)."""
        self.base = base
        self._for_sampling = for_sampling or (lambda: base)
        self.lora = lora
        self.adam = AdamState.fresh(lora.flat)
        self.gradient: Tensor | None = None
        self.merging = merges(lora.modules, base.dtype)
        fitting = kept_tokens(base.arch, base.dtype)
        most = Device(base.device).tokens
        # Half a budget whose activations are kept is faster than a whole one that recomputes them.
        chosen = most // 2 if most // 2 <= fitting < most else most
        self.budget = token_budget or chosen
        self.recompute = self.budget > fitting
        self._merged: Weights | None = None

    def trace(self, examples: Sequence[EngineExample]) -> None:
        """Run the largest micro-batch of the examples forward and backward, so that `memory` can
        count the bytes of its tensors, which have no contents. Gradients are dropped."""
        units = max(self._plan(examples), key=lambda units: sum(unit.tokens for unit in units))
        weights, _ = self._trainable()
        batch = pack(units, self.base.device)
        states = hidden_states(weights, batch, recompute=self.recompute)
        # Logits are computed in chunks, of which a few show the peak of all.
        targets = batch.targets[: _CHUNKS * LOGIT_CHUNK // self.base.arch.vocab]
        found = target_logprobs(weights, states[: len(targets)], targets, 1.0)
        found.sum().backward()  # type: ignore[no-untyped-call]

    def snapshot(self) -> Weights | HfWeights:
        """Return weights for a sampler that later training does not change, the same object until
        the next step in fp32. The adapter is merged in fp32, and separate in bf16, where merging
        would round small updates away."""
        if self.base.dtype != torch.float32:
            # The same rounding as in each product
            return self.lora.apart(self._for_sampling(), self.base.dtype)
        if self._merged is None:
            merged = self.lora.merged(self.base)
            self._merged = merged if self.merging else packed(merged)
        return self._merged

    def forward(self, examples: Sequence[EngineExample], how: Pass) -> types.ForwardBackwardOutput:
        """Return losses and log-probabilities of every position, in the order of the examples,
        without gradients."""
        with torch.no_grad():
            return self._passes(examples, how, self._weights(), backward=False)

    def forward_backward(
        self, examples: Sequence[EngineExample], how: Pass
    ) -> types.ForwardBackwardOutput:
        """Return the same as `forward`, and add the gradient of the request to the accumulated one.
        On failure nothing is added."""
        weights, leaves = self._trainable()
        output = self._passes(examples, how, weights, backward=True)
        gradient = torch.zeros_like(self.lora.flat)
        into = self.lora.views(gradient)
        for tensors, chain in leaves:
            grads = [tensor.grad for tensor in tensors if tensor.grad is not None]
            if len(grads) == len(tensors):
                chain(*grads, into=into)
        if self.gradient is None:
            self.gradient = gradient
        else:
            self.gradient += gradient
        return output

    def optim_step(self, params: types.AdamParams) -> dict[str, float]:
        """Apply the accumulated gradient and reset it; return the step's metrics. Raises
        BackendError if there is none or it is not finite; it is then dropped and no parameter has
        changed."""
        if self.gradient is None:
            raise BackendError(
                "optim_step without a forward_backward since the last step: there is no gradient "
                "to apply"
            )
        gradient, self.gradient = self.gradient, None
        if not bool(torch.isfinite(gradient).all()):
            raise BackendError(
                "the accumulated gradient is not finite; it was dropped and no step was taken"
            )
        metrics = adam_step(self.lora.flat, gradient, self.adam, params)
        self._merged = None
        return metrics

    def weights_changed(self) -> None:
        """Tell the learner that the adapter was replaced from outside (a restored checkpoint), so
        that it is merged anew."""
        self._merged = None

    def _trainable(self) -> Trainable:
        """Return weights with gradients, and the leaves with the functions that turn their
        gradients into those of A and B."""
        weights = self._weights()
        leaves: list[Leaf] = []

        def leaf(linear: Linear, layer: int, site: str) -> Linear:
            """Return the layer with the tensors that get a gradient, the merged weight, or A and B,
            and add these to `leaves`."""
            if self.merging:
                weight = linear.weight.detach().requires_grad_()
                leaves.append(((weight,), partial(self.lora.chain_merged, layer, site)))
                return replace(linear, weight=weight)
            assert linear.lora_a is not None
            assert linear.lora_b is not None
            a, b = linear.lora_a.requires_grad_(), linear.lora_b.requires_grad_()
            leaves.append(((a, b), partial(self.lora.chain_apart, layer, site)))
            return replace(linear, lora_a=a, lora_b=b)

        return self.lora.mapped(weights, leaf), leaves

    def _weights(self) -> Any:
        """Return the weights of a pass without gradients, of the learner's kind: merged, or with A
        and B apart."""
        return self.snapshot() if self.merging else self.lora.apart(self.base)

    def _plan(self, examples: Sequence[EngineExample]) -> Iterator[list[Unit]]:
        """Yield micro-batches of about `budget` tokens at most, in which every example is once."""
        return plan(examples, self.budget)

    def _passes(
        self, examples: Sequence[EngineExample], how: Pass, weights: Any, backward: bool
    ) -> types.ForwardBackwardOutput:
        """Run the examples in micro-batches, and return losses and log-probabilities in their
        order. With `backward` the gradients are added to those of `weights`."""
        logprobs = [np.empty(e.targets.shape, dtype=np.float32) for e in examples]
        losses = [np.zeros(e.targets.shape, dtype=np.float32) for e in examples]
        for units in self._plan(examples):
            _spread(units, self._micro_batch(units, how, weights, backward), logprobs, losses)
        return outputs_of(logprobs, losses)

    def _micro_batch(
        self, units: Sequence[Unit], how: Pass, weights: Any, backward: bool
    ) -> list[Tensor]:
        """Return the log-probabilities of prefixes and of suffixes, and the suffixes' losses,
        without gradients. With `backward` the gradients are added to those of the weights."""
        batch = pack(units, self.base.device)
        recompute = self.recompute and backward
        prefix, suffix = self._logprobs(batch, how.temperature, weights, recompute)
        losses = _losses(how, suffix, batch)
        if backward:
            losses.sum().backward()  # type: ignore[no-untyped-call]
        return [prefix, suffix.detach(), losses.detach()]

    def _logprobs(
        self, batch: Packed, temperature: float, weights: Any, recompute: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the targets of prefixes, without gradients, and of
        suffixes, both at `temperature` and in the batch's order. `recompute` trades time for
        memory."""
        states, at = hidden_states(weights, batch, recompute), batch.prefix_tokens
        with torch.no_grad():
            nothing = states.new_empty(batch.targets[:0].shape, dtype=torch.float32)
            prefix = (
                target_logprobs(weights, states[:at], batch.targets[:at], temperature)
                if at
                else nothing
            )
        return prefix, target_logprobs(weights, states[at:], batch.targets[at:], temperature)


def outputs_of(logprobs: Sequence[Floats], losses: Sequence[Floats]) -> types.ForwardBackwardOutput:
    """Return a request's response from the arrays of its examples, in their order. `loss:sum` is
    the sum over all tokens, in float64."""
    total = math.fsum(float(part.sum(dtype=np.float64)) for part in losses)
    return types.ForwardBackwardOutput(
        loss_fn_output_type="ArrayRecord",
        loss_fn_outputs=[
            {
                "logprobs": types.TensorData.from_numpy(lp),
                "elementwise_loss": types.TensorData.from_numpy(part),
            }
            for lp, part in zip(logprobs, losses, strict=True)
        ],
        metrics={"loss:sum": total},
    )


def _losses(how: Pass, logprobs: Tensor, batch: Packed) -> Tensor:
    """Return the loss of each of the suffixes' tokens. A `whole` loss is computed for one sequence
    at a time. Values are not checked."""
    if not how.loss.whole:
        losses: Tensor = how.loss.formula(torch, logprobs, batch.inputs, how.settings)
        return losses
    lengths = [part.length for unit in batch.units for part in unit.suffixes]
    cut = {name: torch.split(values, lengths) for name, values in batch.inputs.items()}
    return torch.cat(
        [
            how.loss.formula(
                torch, part, {name: parts[i] for name, parts in cut.items()}, how.settings
            )
            for i, part in enumerate(torch.split(logprobs, lengths))
        ]
    )


def _spread(
    units: Sequence[Unit], found: Sequence[Tensor], logprobs: list[Floats], losses: list[Floats]
) -> None:
    """Write a micro-batch's results into the examples' arrays in `logprobs` and `losses`, by their
    indices. A prefix is written to every example that shares it, and has no losses."""
    # One transfer for all three.
    lengths = [len(part) for part in found]
    together = torch.cat(list(found)).cpu().numpy()
    prefix, suffix, token_losses = np.split(together, np.cumsum(lengths)[:-1])
    at_prefix = at = 0
    for unit in units:
        for part in unit.suffixes:
            logprobs[part.index][: unit.prefix] = prefix[at_prefix : at_prefix + unit.prefix]
            logprobs[part.index][unit.prefix :] = suffix[at : at + part.length]
            losses[part.index][unit.prefix :] = token_losses[at : at + part.length]
            at += part.length
        at_prefix += unit.prefix
