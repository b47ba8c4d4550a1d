"""Checked training examples: Tinker's `Datum` read into flat NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tinker import types

from code_rl.algorithm.losses import Loss
from code_rl.errors import DataError

from .architecture import Architecture

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Example:
    """One datum of N positions: `tokens` and `targets` [N], loss inputs [N] each, in fp32.

    `context` counts the leading positions whose loss is switched off.
    """

    tokens: Ints
    targets: Ints
    inputs: dict[str, Floats]
    context: int


def read_datums(data: Sequence[types.Datum], loss: Loss, arch: Architecture) -> list[Example]:
    """Return the examples of a request.

    Raises DataError naming the datum and the field: missing or unknown fields, lengths that differ, tokens outside the
    vocabulary, numbers that are not finite, sequences longer than the model's context.
    """
    if not data:
        raise DataError("no data: forward and forward_backward need at least one datum")
    return [_read(i, datum, loss, arch) for i, datum in enumerate(data)]


def prompt_tokens(prompt: types.ModelInput, arch: Architecture, where: str) -> list[int]:
    """Return the token ids of a text-only input; raises DataError for other chunks, no tokens, or ids outside the vocabulary."""
    try:
        tokens = prompt.to_ints()
    except ValueError as error:
        raise DataError(f"{where}: only text chunks are supported by the embedded engine") from error
    if not tokens:
        raise DataError(f"{where}: it has no tokens")
    if min(tokens) < 0 or max(tokens) >= arch.vocab:
        raise DataError(f"{where}: a token id is outside the vocabulary of {arch.vocab}")
    return tokens


def _read(index: int, datum: types.Datum, loss: Loss, arch: Architecture) -> Example:
    where = f"datum {index}"
    tokens = np.asarray(prompt_tokens(datum.model_input, arch, f"{where}, model_input"), dtype=np.int64)
    if len(tokens) > arch.max_context:
        raise DataError(f"{where}: {len(tokens)} tokens exceed the model's context of {arch.max_context}")
    fields = ("target_tokens", *loss.inputs)
    unknown = sorted(set(datum.loss_fn_inputs) - set(fields))
    if unknown:
        raise DataError(f"{where}: {loss.name} does not read {', '.join(unknown)}; its fields: {', '.join(fields)}")
    arrays = {name: _field(where, name, datum, len(tokens), loss) for name in fields}
    targets = arrays.pop("target_tokens").astype(np.int64)
    if targets.min() < 0 or targets.max() >= arch.vocab:
        raise DataError(f"{where}, target_tokens: a token id is outside the vocabulary of {arch.vocab}")
    inputs = {name: np.asarray(array, dtype=np.float32) for name, array in arrays.items()}
    active = np.flatnonzero(inputs[loss.signal])
    return Example(tokens, targets, inputs, int(active[0]) if len(active) else len(tokens))


def _field(where: str, name: str, datum: types.Datum, length: int, loss: Loss) -> npt.NDArray[np.generic]:
    data = datum.loss_fn_inputs.get(name)
    if data is None:
        raise DataError(f"{where}: {loss.name} needs {name}")
    array = data.to_numpy()
    if array.shape != (length,):
        raise DataError(f"{where}, {name}: shape {array.shape} where model_input has {length} tokens")
    if not np.isfinite(array).all():
        raise DataError(f"{where}, {name}: a value is not finite")
    return array
