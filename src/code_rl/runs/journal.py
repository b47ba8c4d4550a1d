"""The journal: every decision that shapes a run, appended before it takes effect, each line with a checksum.

| event | when | what it holds |
|---|---|---|
| `begin` | a run begins | `step` 0, `version` of these formats, `release` of the project |
| `fork` | a run begins at another one's checkpoint | `step`, `run` and `checkpoint` that it comes from; what is decided before is of other settings |
| `resume` | a process takes a run up again | `step` from which on everything before this line is void, `checkpoint`, `lost` tokens |
| `evaluate` | before an evaluation | `step` (−1: before training), `samples`, `policy_step`, `worst` tokens |
| `evaluated` | after it | `step`, `samples`, `metrics` |
| `sample` | before a batch is sampled | `step`, `policy_step`, `stage`, `max_tokens`, `prompt_tokens`, `problems`, `seeds`, by place |
| `refill` | before a place is sampled again | `step`, `place`, `attempt`, `problem`, `seed` |
| `scored` | a group has its verdicts | `step`, `place`, `attempt`, `problem`, `policy_step`, `verdicts`, `rewards` of its completions |
| `train` | before a forward_backward | `step`, `substep`, `first` place, `members` [place, attempt, completion] of its datums in order, `datums`, `tokens`, and `skipped`, `masked` as below |
| `skip` | instead, when nothing is to be trained on | `step`, `substep`, `first`, `skipped` groups [place, attempt], `masked` completions [place, attempt, completion, why] |
| `optimize` | before an optimizer step | `step`, `substep`, `datums`, `learning_rate` |
| `logged` | before a line of `metrics.jsonl` | `step`, `metrics` |
| `save` | before a checkpoint is asked for | `step`, `name` |
| `saved` | before the line of `checkpoints.jsonl` that makes it one | that line |
| `stop` | a run ends | `step` it would take next, `why` |

Lines of `scored` are handed to the operating system, all others are on disk before what they announce happens.

Beside it stands what the trainer answered (`trained.jsonl`): the log-probability of every token that it trained on, so that losses can be computed again
offline, and those of the reference model where a KL term asked for them. One line a step: `{"step", "logprobs", "reference", "crc"}`, each a list with one
base64 text of little-endian float32 per datum, in the order of the datums. `reference` is empty without a KL term.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from code_rl.runs.files import JsonLines, Mark, drop_torn_line, unseal

JOURNAL = "journal.jsonl"
TRAINED = "trained.jsonl"
Logprobs = npt.NDArray[np.float32]
RELAXED = frozenset(["scored"])
"""Events that decide nothing by themselves: what they tell of is read from elsewhere after a power cut."""


class Journal:
    """Append-only `journal.jsonl`: `{"crc", "event", …}`, durable once `record` returns."""

    def __init__(self, path: Path) -> None:
        drop_torn_line(path)
        self._lines = JsonLines(path, sealed=True)

    def record(self, event: str, **facts: Any) -> None:
        """Append one event."""
        self._lines.append({"event": event, **facts}, durable=event not in RELAXED)

    def mark(self) -> Mark:
        """The journal as it is now."""
        return self._lines.mark()

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._lines.close()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """The events up to the first torn or altered line."""
    for entry, _ in read_entries(path):
        yield entry


def read_entries(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The events up to the first torn or altered line, each with the offset at which its line ends."""
    if not path.exists():
        return
    end = 0
    with path.open("rb") as file:
        for line in file:
            entry = unseal(line)
            if entry is None or not isinstance(entry.get("event"), str):
                return
            end += len(line)
            yield entry, end


def checksum(entry: Mapping[str, Any]) -> int:
    """CRC-32 of a record's canonical JSON."""
    return zlib.crc32(json.dumps(entry, sort_keys=True, ensure_ascii=True).encode())


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
