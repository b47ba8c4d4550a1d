"""Losses of one's own: any function of the log-probabilities, trained through its gradient as Tinker's SDK does it.

With C the function and lp the log-probabilities, cross-entropy with the weights −∂C/∂lp has the gradient of C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tinker import types

from code_rl.errors import DataError

CustomLoss = Callable[[list[types.Datum], list[Any]], tuple[Any, Mapping[str, float]]]


def differentiated(
    data: Sequence[types.Datum], loss_fn: CustomLoss, forward: types.ForwardBackwardOutput
) -> tuple[list[torch.Tensor], float, Mapping[str, float]]:
    """The weights −∂C/∂lp of each datum, C, and its metrics: `loss_fn(data, logprobs)` is called with one fp32 tensor per datum.

    Raises DataError when the loss does not depend on a datum's log-probabilities; what `loss_fn` raises comes through.
    """
    logprobs = [torch.tensor(out["logprobs"].to_numpy()).requires_grad_() for out in forward.loss_fn_outputs]
    with torch.enable_grad():
        loss, metrics = loss_fn(list(data), list(logprobs))
        loss.backward()
    for i, lp in enumerate(logprobs):
        if lp.grad is None:
            raise DataError(f"datum {i}: the custom loss has no gradient with respect to its log-probabilities")
    return [-lp.grad for lp in logprobs if lp.grad is not None], float(loss.detach().sum()), metrics


def reweighted(data: Sequence[types.Datum], weights: Sequence[torch.Tensor] | None = None) -> list[types.Datum]:
    """The data for a cross-entropy pass with these weights (None: zeros). Raises DataError where targets are missing."""
    made = []
    for i, datum in enumerate(data):
        targets = datum.loss_fn_inputs.get("target_tokens")
        if targets is None:
            raise DataError(f"datum {i}: a custom loss needs target_tokens")
        values = types.TensorData.from_torch(torch.zeros(targets.to_numpy().shape) if weights is None else weights[i])
        inputs = {"target_tokens": targets, "weights": values}
        made.append(types.Datum(model_input=datum.model_input, loss_fn_inputs=inputs))
    return made
