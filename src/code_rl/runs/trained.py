"""What the trainer answered (`trained.jsonl`): the log-probability of every token that it trained on, so that losses can be computed
again offline, and those of the reference model where a KL term asked for them.

One line a step: `{"step", "logprobs", "reference", "crc"}`, each a list with one base64 text of little-endian float32 per datum, in the
order of the datums. `reference` is empty without a KL term.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from code_rl.runs.journal import checksum

TRAINED = "trained.jsonl"
Logprobs = npt.NDArray[np.float32]


def trained_line(step: int, logprobs: Sequence[Any], reference: Sequence[Any]) -> dict[str, Any]:
    """One step's record; each element of both sequences holds the completion tokens of one datum."""
    record = {"step": step, "logprobs": list(map(_packed, logprobs)), "reference": list(map(_packed, reference))}
    return {**record, "crc": checksum(record)}


def read_trained_line(record: Mapping[str, Any]) -> tuple[int, list[Logprobs], list[Logprobs]]:
    """Step, logprobs and reference of one record. Raises ValueError when it is not what `trained_line` made."""
    facts = {name: value for name, value in record.items() if name != "crc"}
    if record.get("crc") != checksum(facts):
        raise ValueError("the checksum does not fit")
    return int(facts["step"]), list(map(_unpacked, facts["logprobs"])), list(map(_unpacked, facts["reference"]))


def _packed(logprobs: Any) -> str:
    return base64.b64encode(np.asarray(logprobs, dtype="<f4").tobytes()).decode("ascii")


def _unpacked(text: str) -> Logprobs:
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype="<f4").astype(np.float32)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
