"""Reads a run directory, also while it grows: settings, metrics by step, an index of every group,
and a sample of the rollouts.

The page carries whole steps, evenly spaced, as many as fit a budget of bytes: all groups of every
`stride`-th step and of the last step. `stride` starts at 1 and doubles whenever the budget is full.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import orjson

from code_rl.engine.checkpoints import CONFIG, is_run, read_config
from code_rl.training.report.groups import (
    CLIP_NAME,
    UNDECIDED,
    Tally,
    as_text,
    group_flags,
    group_record,
    is_group,
    letters_of,
    problem_record,
)
from code_rl.training.report.token_decoder import TokenDecoder, load_pieces
from code_rl.training.runs.directory import METRICS, ROLLOUTS
from code_rl.util.errors import DataError, command_line
from code_rl.util.files import LOCK, is_held
from code_rl.util.redaction import redacted

ATTEMPT = 2**16
"""Added to a group's number once for each time that its slot was resampled."""
BUDGET = 3_200_000
"""Bytes of compressed groups; base64 adds a third in the page."""

Place = tuple[int, int]


def pack(value: Any) -> bytes:
    """Return the value as JSON, deflated without a header (a browser's `deflate-raw` reads it).
    Raises TypeError for a value without a JSON form; NaN becomes null."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    return deflate.compress(orjson.dumps(value)) + deflate.flush()


@dataclass(slots=True)
class DownsampledGroups:
    """Packed groups by (step, group), downsampled to at most `budget` bytes."""

    budget: int = BUDGET
    stride: int = 1
    size: int = 0
    groups: dict[Place, bytes] = field(default_factory=dict)

    def wants(self, step: int) -> bool:
        """Return True if the groups of this step are to be kept, by the current `stride`, which may
        double later."""
        return step % self.stride == 0

    def put(self, place: Place, record: Any) -> None:
        """Keep a group of a step for which `wants` is True. If the budget is exceeded, `stride`
        doubles until the rest fits or two steps are left; dropped steps do not return."""
        self.groups[place] = packed = pack(record)
        self.size += len(packed)
        while self.size > self.budget and len({step for step, _ in self.groups}) > 2:
            self.stride *= 2
            kept = {place: each for place, each in self.groups.items() if self.wants(place[0])}
            self.groups, self.size = kept, sum(map(len, kept.values()))

    def rule(self) -> str:
        """Return the rule that holds for the groups kept so far as text."""
        if self.stride == 1:
            return "every group of every step"
        return f"all groups of every {self.stride}th step and of the last one"


@dataclass(slots=True)
class GrowingFile:
    """The JSON objects of a growing file. A line without its newline is left for later; a damaged
    one is counted and left out."""

    path: Path
    damaged: int = 0
    _offset: int = 0

    def added(self) -> Iterator[dict[str, Any]]:
        """Yield the complete objects that were appended since the last call, in order; nothing if
        the file is missing. The file must not be cut between calls."""
        if not self.path.exists():
            return
        with self.path.open("rb", buffering=1 << 20) as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                row = _parsed(line)
                if isinstance(row, dict):
                    yield row
                else:
                    self.damaged += 1


def _parsed(line: bytes) -> Any:
    """Return the value of a line of JSON, NaN included; None if it is damaged."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        pass  # Python writes NaN, infinity and lone surrogates, which JSON does not allow.
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


class RunReader:
    """Reads `log_path` and, at each `refresh`, the lines added since."""

    def __init__(self, log_path: Path) -> None:
        """Read nothing yet; the first `refresh` does."""
        self.log_path = log_path
        self.config: dict[str, Any] = {}
        self.notices: list[str] = []
        self.metrics: dict[int, dict[str, Any]] = {}
        self.kept = DownsampledGroups()
        self.index: dict[Place, tuple[int, str, bool]] = {}
        """For every group: the number of its problem, verdict letters, whether a program was
        flagged."""
        self.problems: dict[str, int] = {}
        self.shown: dict[int, bytes] = {}
        self.tallies: dict[int, Tally] = {}
        self.last: dict[int, dict[str, Any]] = {}
        self.last_step = -1
        self.pieces: TokenDecoder | None = None
        self._metrics_file = GrowingFile(log_path / METRICS)
        self._rollouts_file = GrowingFile(log_path / ROLLOUTS)

    def refresh(self) -> None:
        """Read the settings anew, and the lines that were added since the last call. Damaged lines
        are counted. Raises ConfigError for a `config.json` that cannot be read, and OSError."""
        self._read_config()
        self._read_metrics()
        for record in self._rollouts_file.added():
            if is_group(record):
                self._take(record)
            else:
                self._rollouts_file.damaged += 1

    def damage(self) -> list[str]:
        """Return notices, as text, about missing or damaged parts, and about a run that no process
        works on."""
        found = list(self.notices)
        if (
            not is_held(self.log_path / LOCK)
            and not max(self.metrics, default=-1) + 1 >= self.config.get("max_steps", 0) > 0
        ):
            found.append(
                "no process works on this run any more; to resume it: "
                f"{command_line('train')} log_path={quote(str(self.log_path.absolute()))}"
            )
        found += [
            f"{file.damaged} damaged lines of {file.path.name} are left out"
            for file in (self._metrics_file, self._rollouts_file)
            if file.damaged
        ]
        if not self.metrics:
            found.append(f"{METRICS} holds no step yet")
        if not self.index:
            found.append("no rollouts are there to look at")
        elif self.pieces is None:
            found.append(
                "the run's tokenizer is not at hand, so tokens are not shaded by their probability"
            )
        return found

    def kept_groups(self) -> dict[Place, bytes]:
        """Return every packed group that the page carries, including those of the last step, sorted
        by (step, group)."""
        kept = dict(self.kept.groups)
        for group, record in self.last.items():
            place = (self.last_step, group)
            if place not in kept:
                kept[place] = pack(group_record(record, group_flags(record), self.pieces))
        return dict(sorted(kept.items()))

    def problem_records(self, numbers: set[int]) -> dict[int, bytes]:
        """Return the packed records of these problems by number. The problems of the last step are
        packed if they were not."""
        for record in self.last.values():
            self._show_problem(record)
        return {number: packed for number, packed in self.shown.items() if number in numbers}

    def _read_config(self) -> None:
        """Read the settings, with keys replaced, and the tokenizer if it is not loaded yet. A
        missing file is a notice. Raises ConfigError for one that cannot be read."""
        if not (self.log_path / CONFIG).is_file():
            self.notices = [f"{CONFIG} is missing; settings are not shown"]
            return
        self.notices = []
        self.config = json.loads(redacted(json.dumps(read_config(self.log_path))))
        self.pieces = self.pieces or load_pieces(self.log_path)

    def _read_metrics(self) -> None:
        """Merge the new lines of `metrics.jsonl` into the metrics by step: later values replace
        earlier ones. A line without a step counts as the next one."""
        for record in self._metrics_file.added():
            # A loop of the user's own may leave the step out, or write several records about one.
            step = record.get("step", max(self.metrics, default=-1) + 1)
            if isinstance(step, int):
                self.metrics[step] = {**self.metrics.get(step, {}), **record}
            else:
                self._metrics_file.damaged += 1

    def _take(self, record: dict[str, Any]) -> None:
        """Index one group, count it, and keep it if its step is kept. Groups of a step follow each
        other in the file."""
        step = record["step"]
        if step != self.last_step:
            self.last_step, self.last = step, {}
        group = record["group"] + ATTEMPT * record["attempt"]
        letters = letters_of(record["completions"])
        name = as_text(record["problem_id"], CLIP_NAME)
        number = self.problems.setdefault(name, len(self.problems))
        self.tallies.setdefault(step, Tally()).add(record["completions"], letters)
        self.last[group] = record
        place, flagged = (step, group), not UNDECIDED.isdisjoint(letters)
        if self.kept.wants(step):
            flags_G = group_flags(record)
            flagged = flagged or any(flags_G)
            self.kept.put(place, group_record(record, flags_G, self.pieces))
            self._show_problem(record)
        self.index[place] = number, letters, flagged

    def _show_problem(self, record: Mapping[str, Any]) -> None:
        """Pack the record of a group's problem, once for each problem. The problem must have a
        number."""
        number = self.problems[as_text(record["problem_id"], CLIP_NAME)]
        if number not in self.shown:
            self.shown[number] = pack(problem_record(record, self.pieces))


def open_run(log_path: Path) -> RunReader:
    """Return a reader that has read the directory. Raises DataError if it has no files of a run,
    and ConfigError for a `config.json` that cannot be read."""
    if not (is_run(log_path) or any((log_path / name).exists() for name in (METRICS, ROLLOUTS))):
        raise DataError(
            f"{log_path} holds no run (no {CONFIG} of one, {METRICS} or {ROLLOUTS}); log_path= and "
            "compare= take directories of runs"
        )
    reader = RunReader(log_path)
    reader.refresh()
    return reader
