"""What a run's journal says of it: the decisions that still hold, its checkpoints, what was spent in vain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from code_rl.budget import Tokens
from code_rl.runs.files import write_lines_atomically
from code_rl.runs.journal import read_entries

Drawn = Callable[[int, int, int], int]
"""How many completions are kept of a step, a place and an attempt."""


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
        elif event == "train" and "tokens" in entry:
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

    def lost_from(self, step: int, completions: int, drawn: Drawn) -> Tokens:
        """The tokens that a resume from `step` pays for again, at worst: training, samples that are not kept, evaluations cut off.

        `completions` is the size of a group.
        """
        lost = Tokens(train=sum(tokens for at, tokens in self.trained.items() if at[0] >= step))
        for at, entry in self.sampled.items():
            if at >= step and "prompt_tokens" in entry:
                for place, prompt in enumerate(entry["prompt_tokens"]):
                    lost += _asked(completions - drawn(at, place, 0), prompt, entry["max_tokens"])
        for (at, place, attempt), entry in self.refilled.items():
            if at >= step and "prompt_tokens" in entry:
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
    """A `sample` or `refill` event. Prompt lengths, where there are any, are whole numbers."""
    if several and not all(isinstance(entry[name], list) for name in ("problems", "seeds")):
        raise TypeError("problems and seeds stand in lists")
    if "prompt_tokens" in entry:
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
