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
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from code_rl.runs.files import JsonLines, Mark, drop_torn_line, unseal

JOURNAL = "journal.jsonl"
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
            entry = unseal(line) or _unseal_earlier(line)
            if entry is None or not isinstance(entry.get("event"), str):
                return
            end += len(line)
            yield entry, end


def _unseal_earlier(line: bytes) -> dict[str, Any] | None:
    """An event as 0.1.0 wrote it before these checksums: `crc` at the end, of the canonical JSON of the rest."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not line.endswith(b"\n"):
        return None
    return entry if entry.pop("crc", None) == checksum(entry) else None


def checksum(entry: Mapping[str, Any]) -> int:
    """CRC-32 of a record's canonical JSON."""
    return zlib.crc32(json.dumps(entry, sort_keys=True, ensure_ascii=True).encode())
