"""Checks forward and forward_backward requests: the loss, the examples as NumPy arrays, or a custom
loss.

A custom loss is any function C of the log-probabilities lp. It is trained as in Tinker's SDK:
cross-entropy with the weights −∂C/∂lp has the gradient of C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tinker import types

from code_rl.engine import losses
from code_rl.engine.losses import LOSSES, Loss, Settings
from code_rl.util.errors import ConfigError, DataError

from .weights import Architecture

TEMPERATURE = "temperature"
# Below this temperature, divided logits overflow fp32.
MIN_TEMPERATURE = 1e-5
MAX_TARGETS = 1024
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
CustomLoss = Callable[[list[types.Datum], list[Any]], tuple[Any, Mapping[str, float]]]


@dataclass(frozen=True)
class Pass:
    """The parameters of a pass. Logits are divided by `temperature` before the log-softmax, so that
    the trained policy is the one that was sampled from."""

    loss: Loss
    settings: Settings
    temperature: float = 1.0


def read_pass(loss_fn: str, config: Mapping[str, float | str] | None) -> Pass:
    """Return the pass for `loss_fn` and `loss_fn_config` (None: the defaults); every loss accepts
    `temperature`.

    Raises ConfigError for an unknown loss, an unknown setting, or an invalid value.
    """
    settings = dict(config or {})
    temperature = settings.pop(TEMPERATURE, 1.0)
    check_temperature(temperature, f"loss_fn_config {TEMPERATURE}")
    if loss_fn not in LOSSES:
        raise ConfigError(
            f"loss_fn {loss_fn!r} is not implemented by the embedded engine; it has "
            f"{', '.join(LOSSES)}"
        )
    return Pass(
        LOSSES[loss_fn], losses.loss_settings(LOSSES[loss_fn], settings), float(temperature)
    )


def check_temperature(value: object, name: str) -> None:
    """Raise ConfigError, which calls the value `name`, for a temperature at which log-probabilities
    are undefined: below 1e-5, not finite, or no number."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not MIN_TEMPERATURE <= number < math.inf:
        raise ConfigError(f"{name}={value!r} must be a finite number of at least {MIN_TEMPERATURE}")


def loss_settings() -> dict[str, frozenset[str]]:
    """Return the engine's losses, each with the keys that its `loss_fn_config` accepts."""
    return {name: frozenset({*loss.defaults, TEMPERATURE}) for name, loss in LOSSES.items()}


@dataclass(frozen=True)
class EngineExample:
    """One datum of N positions: `tokens` [N], `targets` [N], and loss inputs, each [N] in fp32.

    With soft targets, `targets` and the loss inputs are [N, C], for C candidates per position.
    `context` counts the leading positions without a loss.
    """

    tokens: Ints
    targets: Ints
    inputs: dict[str, Floats]
    context: int


def read_datums(data: Sequence[types.Datum], loss: Loss, arch: Architecture) -> list[EngineExample]:
    """Return the examples of a request.

    Raises DataError, naming the datum and the field: a field is missing or unknown, lengths differ,
    tokens are outside the vocabulary, numbers are not finite, the sequence exceeds the context, or
    the number of targets per position differs from the first datum's.
    """
    if not data:
        raise DataError("no data: forward and forward_backward need at least one datum")
    examples = [_read_datum(i, datum, loss, arch) for i, datum in enumerate(data)]
    first = examples[0].targets.shape[1:]
    for i, example in enumerate(examples):
        if example.targets.shape[1:] != first:
            raise DataError(
                f"datum {i}, target_tokens: {example.targets.shape[1:]} targets a position, and "
                f"{first} in datum 0"
            )
    return examples


def prompt_tokens(prompt: types.ModelInput, arch: Architecture, where: str) -> list[int]:
    """Return the token ids of a text-only input. Raises DataError, which begins with `where`, for
    other chunks, no tokens, or ids outside the vocabulary. The context is not checked."""
    try:
        tokens = prompt.to_ints()
    except ValueError as error:
        raise DataError(
            f"{where}: only text chunks are supported by the embedded engine"
        ) from error
    if not tokens:
        raise DataError(f"{where}: it has no tokens")
    if min(tokens) < 0 or max(tokens) >= arch.vocab:
        raise DataError(f"{where}: a token id is outside the vocabulary of {arch.vocab}")
    return tokens


def _read_datum(index: int, datum: types.Datum, loss: Loss, arch: Architecture) -> EngineExample:
    """Check one datum against the loss and the model, and convert it; leading positions where all
    inputs of `loss.signal` are 0 become its context. `index` is for messages. Raises DataError."""
    where = f"datum {index}"
    ids = prompt_tokens(datum.model_input, arch, f"{where}, model_input")
    tokens = np.asarray(ids, dtype=np.int64)
    if len(tokens) > arch.max_context:
        raise DataError(
            f"{where}: {len(tokens)} tokens exceed the model's context of {arch.max_context}"
        )
    fields, given = ("target_tokens", *loss.inputs), datum.loss_fn_inputs
    if given.keys() != set(fields):
        raise DataError(
            f"{where}: {loss.name} reads {', '.join(fields)}, and not "
            f"{', '.join(sorted(given)) or 'nothing'}"
        )
    arrays = {name: given[name].to_numpy() for name in fields}
    # One number a token, or K weighted targets a token.
    shape: tuple[int, ...] = (len(tokens),)
    found = arrays["target_tokens"].shape
    if loss.name == "cross_entropy" and len(found) == 2 and 1 <= found[1] <= MAX_TARGETS:
        shape = (len(tokens), found[1])
    for name, array in arrays.items():
        if array.shape != shape:
            raise DataError(f"{where}, {name}: shape {array.shape} where {shape} is needed")
        if not np.isfinite(array).all():
            raise DataError(f"{where}, {name}: a value is not finite")
    given_targets = arrays.pop("target_tokens")
    targets = given_targets.astype(np.int64)
    if (targets != given_targets).any():
        raise DataError(f"{where}, target_tokens: a token id is no whole number")
    if targets.min() < 0 or targets.max() >= arch.vocab:
        raise DataError(
            f"{where}, target_tokens: a token id is outside the vocabulary of {arch.vocab}"
        )
    inputs = {name: np.asarray(array, dtype=np.float32) for name, array in arrays.items()}
    signal = np.any([inputs[name] != 0 for name in loss.signal], axis=0)
    active = np.flatnonzero(signal.reshape(len(tokens), -1).any(axis=1))
    return EngineExample(tokens, targets, inputs, int(active[0]) if len(active) else len(tokens))


def differentiated(
    data: Sequence[types.Datum], loss_fn: CustomLoss, forward: types.ForwardBackwardOutput
) -> tuple[list[torch.Tensor], float, Mapping[str, float]]:
    """Return the weights −∂C/∂lp of each datum, the loss C, and its metrics. `loss_fn(data,
    logprobs)` is called with one fp32 tensor per datum.

    Raises DataError if the loss does not depend on a datum's log-probabilities, and any exception
    of `loss_fn`.
    """
    logprobs = [
        torch.tensor(out["logprobs"].to_numpy()).requires_grad_() for out in forward.loss_fn_outputs
    ]
    with torch.enable_grad():
        loss, metrics = loss_fn(list(data), list(logprobs))
        loss.backward()
    for i, lp in enumerate(logprobs):
        if lp.grad is None:
            raise DataError(
                f"datum {i}: the custom loss has no gradient with respect to its log-probabilities"
            )
    return [-lp.grad for lp in logprobs if lp.grad is not None], float(loss.detach().sum()), metrics


def reweighted(
    data: Sequence[types.Datum], weights: Sequence[torch.Tensor] | None = None
) -> list[types.Datum]:
    """Return new datums for a cross-entropy pass with these weights (None: zeros), each of the
    shape of its targets; other loss inputs are left out. Raises DataError if targets are
    missing."""
    made = []
    for i, datum in enumerate(data):
        targets = datum.loss_fn_inputs.get("target_tokens")
        if targets is None:
            raise DataError(f"datum {i}: a custom loss needs target_tokens")
        values = types.TensorData.from_torch(
            torch.zeros(targets.to_numpy().shape) if weights is None else weights[i]
        )
        inputs = {"target_tokens": targets, "weights": values}
        made.append(types.Datum(model_input=datum.model_input, loss_fn_inputs=inputs))
    return made
