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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from code_rl.budget import Tokens
from code_rl.files import JsonLines, Mark, drop_torn_line, raw_lines, unseal, write_lines_atomically

JOURNAL = "journal.jsonl"
RELAXED = frozenset(["scored"])
"""Events that decide nothing by themselves: what they tell of is read from elsewhere after a power cut."""
Sampled = Callable[[int, int, int], int]
"""How many completions are kept of a step, a place and an attempt."""


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
    return (entry for entry, _ in read_entries(path))


def read_entries(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """The events up to the first torn or altered line, each with the offset at which its line ends."""
    end = 0
    for line in raw_lines(path):
        entry = unseal(line)
        if entry is None or not isinstance(entry.get("event"), str):
            return
        end += len(line)
        yield entry, end


@dataclass(slots=True)
class History:
    """The journal read to its end. Whatever a `resume` made void is gone from here.

    `saved` are the records of checkpoints by step, `evaluated` the finished evaluations by step, `lost` the tokens that
    earlier resumes have written off. `damaged` is the offset of the first line that cannot be read, or None.
    """

    saved: dict[int, dict[str, Any]] = field(default_factory=dict)
    sampled: dict[int, dict[str, Any]] = field(default_factory=dict)
    refilled: dict[tuple[int, int, int], dict[str, Any]] = field(default_factory=dict)
    trained: dict[tuple[int, int], int] = field(default_factory=dict)
    evaluated: dict[int, dict[str, Any]] = field(default_factory=dict)
    evaluating: dict[int, dict[str, Any]] = field(default_factory=dict)
    logged: dict[int, dict[str, Any]] = field(default_factory=dict)
    lost: Tokens = field(default_factory=Tokens)
    version: int | None = None
    damaged: int | None = None

    def take(self, entry: Mapping[str, Any]) -> None:
        """Account for one event. Raises KeyError, TypeError, ValueError or AttributeError for one without its facts."""
        event, step = entry["event"], _whole(entry["step"])
        if event == "begin":
            self.version = entry.get("version")
        elif event == "fork":
            self.sampled, self.refilled = {}, {}
        elif event == "resume":
            lost = _tokens(entry["lost"])
            self._void_from(step)
            self.lost += lost
        elif event == "sample":
            self.sampled[step] = _request(entry, several=True)
        elif event == "refill":
            self.refilled[(step, _whole(entry["place"]), _whole(entry["attempt"]))] = _request(entry, several=False)
        elif event == "train":
            self.trained[(step, _whole(entry["first"]))] = _whole(entry["tokens"])
        elif event == "evaluate":
            self.evaluating[step] = {**entry, "worst": _tokens(entry["worst"])}
        elif event == "evaluated":
            self.evaluated[step] = dict(entry)
            self.evaluating.pop(step, None)
        elif event == "logged":
            self.logged[step] = dict(entry["metrics"])
        elif event == "saved":
            self.saved[step] = {name: value for name, value in entry.items() if name != "event"}

    def _void_from(self, step: int) -> None:
        self.saved = {at: record for at, record in self.saved.items() if at <= step}
        self.sampled = {at: entry for at, entry in self.sampled.items() if at < step}
        self.refilled = {at: entry for at, entry in self.refilled.items() if at[0] < step}
        self.trained = {at: tokens for at, tokens in self.trained.items() if at[0] < step}
        self.logged = {at: metrics for at, metrics in self.logged.items() if at < step}
        self.evaluating = {}

    def lost_from(self, step: int, completions: int, drawn: Sampled) -> Tokens:
        """The tokens that a resume from `step` pays for again, at worst: training, samples that are not kept, evaluations cut off.

        `completions` is the size of a group.
        """
        lost = Tokens(train=sum(tokens for at, tokens in self.trained.items() if at[0] >= step))
        for at, entry in self.sampled.items():
            if at >= step:
                for place, prompt in enumerate(entry["prompt_tokens"]):
                    lost += _asked(completions - drawn(at, place, 0), prompt, entry["max_tokens"])
        for (at, place, attempt), entry in self.refilled.items():
            if at >= step:
                missing = completions - drawn(at, place, attempt)
                lost += _asked(missing, entry["prompt_tokens"], entry["max_tokens"])
        for entry in self.evaluating.values():
            lost += entry["worst"]
        return lost


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} stands where a whole number is due")
    return value


def _tokens(counts: Mapping[str, object]) -> Tokens:
    return Tokens(**{name: _whole(count) for name, count in counts.items()})


def _request(entry: Mapping[str, Any], *, several: bool) -> dict[str, Any]:
    """A `sample` or `refill` event, whose prompt lengths are whole numbers."""
    if several and not all(isinstance(entry[name], list) for name in ("problems", "seeds")):
        raise TypeError("problems and seeds stand in lists")
    for count in (entry["max_tokens"], *(entry["prompt_tokens"] if several else [entry["prompt_tokens"]])):
        _whole(count)
    return dict(entry)


def _asked(missing: int, prompt: int, max_tokens: int) -> Tokens:
    return Tokens(prefill=max(missing, 0) * prompt, sample=max(missing, 0) * max_tokens)


def read_history(path: Path) -> History:
    """The history in a journal, up to the first line that is torn, altered or without its facts. A last line that a cut left torn is no damage."""
    history, end = History(), 0
    for entry, after in read_entries(path):
        try:
            history.take(entry)
        except (KeyError, TypeError, ValueError, AttributeError):
            break
        end = after
    if path.exists() and path.stat().st_size > end:
        with path.open("rb") as file:
            file.seek(end)
            if file.readline().endswith(b"\n"):
                history.damaged = end
    return history


def set_aside_damage(path: Path, end: int) -> Path:
    """Cut a damaged journal at `end`, keeping the whole of it beside, under the name that is returned."""
    kept = path.with_name(f"{path.stem}.damaged{path.suffix}")
    whole = path.read_bytes()
    for target, data in ((kept, whole), (path, whole[:end])):
        write_lines_atomically(target, (data,))
    return kept
