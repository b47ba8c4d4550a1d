"""Losses of one's own: any function of the log-probabilities, trained through its gradient as Tinker's SDK does it.

With C the function and lp the log-probabilities, cross-entropy with the weights −∂C/∂lp has the gradient of C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tinker import types

from code_rl.errors import DataError

CustomLoss = Callable[[list[types.Datum], list[Any]], tuple[Any, Mapping[str, float]]]


@dataclass(frozen=True)
class Linear:
    """A custom loss at one point: data whose cross-entropy has its gradient, its value, and its metrics."""

    data: list[types.Datum]
    value: float
    metrics: Mapping[str, float]


def unweighted(data: Sequence[types.Datum]) -> list[types.Datum]:
    """The data for the forward pass: targets alone. Raises DataError where they are missing."""
    return [_reweighted(datum, i, None) for i, datum in enumerate(data)]


def linearised(data: Sequence[types.Datum], loss_fn: CustomLoss, forward: types.ForwardBackwardOutput) -> Linear:
    """Call `loss_fn(data, logprobs)` on the forward pass's log-probabilities (one tensor per datum, fp32, on the CPU).

    Raises DataError when the loss does not depend on a datum's log-probabilities; what `loss_fn` raises comes through.
    """
    logprobs = [torch.tensor(out["logprobs"].to_numpy()).requires_grad_() for out in forward.loss_fn_outputs]
    with torch.enable_grad():
        loss, metrics = loss_fn(list(data), list(logprobs))
        loss.backward()
    weighted = []
    for i, (datum, lp) in enumerate(zip(data, logprobs, strict=True)):
        if lp.grad is None:
            raise DataError(f"datum {i}: the custom loss has no gradient with respect to its log-probabilities")
        weighted.append(_reweighted(datum, i, -lp.grad))
    return Linear(weighted, float(loss.detach().sum()), metrics)


def _reweighted(datum: types.Datum, index: int, weights: torch.Tensor | None) -> types.Datum:
    targets = datum.loss_fn_inputs.get("target_tokens")
    if targets is None:
        raise DataError(f"datum {index}: a custom loss needs target_tokens")
    values = torch.zeros(targets.to_numpy().shape) if weights is None else weights
    return types.Datum(
        model_input=datum.model_input,
        loss_fn_inputs={"target_tokens": targets, "weights": types.TensorData.from_torch(values)},
    )
