"""A run directory read back for a replay: settings, and step by step the groups, what the trainer answered, metrics and decisions."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from code_rl.config import BatchShape, Config, batch_shape
from code_rl.errors import DataError
from code_rl.files import raw_lines
from code_rl.judging.extract import extract_code
from code_rl.judging.verdict import Failure, Verdict, VerdictKind
from code_rl.objective import ScoredGroup
from code_rl.problems.problem import Problem
from code_rl.runs.directory import METRICS, is_run, read_config, settings_of
from code_rl.runs.journal import JOURNAL, TRAINED, Logprobs, read_journal, read_trained_line
from code_rl.runs.recorder import ROLLOUTS
from code_rl.settings import make_settings
from code_rl.trajectory import Group, Trajectory, Turn

UNREADABLE = (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError)
"""What reading a record of the wrong shape can raise."""


UNRECORDED = {each.name for each in fields(Verdict)} - {"kind", "passed", "total", "failure"}


NOT_RECORDED = "not recorded"
"""Why a group was skipped, where an older run does not say it."""


class RecordedVerdict(Verdict):
    """A verdict as `rollouts.jsonl` has it. A reward that reads what is not there cannot be replayed, and is told so."""

    def __getattribute__(self, name: str) -> Any:
        if name in UNRECORDED:
            raise LookupError(
                f"a recording keeps no {name} of a verdict, so that a reward that reads it cannot be replayed"
            )
        return super().__getattribute__(name)


Answers = tuple[list[Logprobs], list[Logprobs]]
"""What the trainer answered for one step's datums, and the reference model where it was asked."""


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step as it was recorded: its groups (their problems without tests) with the rewards and advantages that the run gave them.

    `metrics` is None when the run was cut before it logged them.
    """

    step: int
    groups: list[ScoredGroup]
    metrics: Mapping[str, Any] | None
    answers: Answers | None
    sampled: Mapping[str, Any] | None


@dataclass(slots=True)
class RecordedRun:
    """A run directory. `notices` grows with what a reader should know while steps are read."""

    log_path: Path
    config: Config
    settings: Mapping[str, Any]
    notices: list[str] = field(default_factory=list)

    @property
    def shape(self) -> BatchShape:
        """Prompts and completions per step."""
        return batch_shape(self.config)

    def steps(self) -> Iterator[RecordedStep]:
        """Every step in order. Raises DataError: names the file and the line that cannot be read."""
        metrics = {record["step"]: record for record in self._metrics() if record["step"] >= 0}
        answers = self._answers()
        sampled = {
            entry["step"]: entry
            for entry in read_journal(self.log_path / JOURNAL)
            if entry.get("event") == "sample" and isinstance(entry.get("step"), int)
        }
        without, seen = sorted(metrics), -1

        def recorded(step: int, groups: list[ScoredGroup]) -> RecordedStep:
            return RecordedStep(step, groups, metrics.get(step), answers.get(step), sampled.get(step))

        for step, lines in itertools.groupby(self._groups(), key=lambda line: line[0]):
            if step <= seen:
                raise DataError(f"{self.log_path / ROLLOUTS}: step {step} comes after step {seen}")
            yield from (recorded(absent, []) for absent in without if seen < absent < step)
            seen = step
            yield recorded(step, [scored for _, scored in lines])
        yield from (recorded(absent, []) for absent in without if absent > seen)

    def _groups(self) -> Iterator[tuple[int, ScoredGroup]]:
        path = self.log_path / ROLLOUTS
        for number, record in self._lines(path):
            try:
                yield _group(record)
            except UNREADABLE as error:
                raise DataError(f"{path} line {number} is no whole group: {type(error).__name__}: {error}") from error

    def _metrics(self) -> Iterator[dict[str, Any]]:
        path = self.log_path / METRICS
        for number, record in self._lines(path):
            if type(record.get("step")) is not int:
                raise DataError(f"{path} line {number} names no step")
            yield record

    def _answers(self) -> dict[int, Answers]:
        found = {}
        path = self.log_path / TRAINED
        for number, record in self._lines(path):
            try:
                step, logprobs, reference = read_trained_line(record)
            except UNREADABLE as error:
                raise DataError(f"{path} line {number} is damaged: {error}") from error
            found[step] = logprobs, reference
        return found

    def _lines(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """Numbered objects of a file; a torn last line is left out with a notice, any other that cannot be read is an error."""
        try:
            for number, line in enumerate(raw_lines(path), 1):
                if not line.endswith(b"\n"):
                    self.notices.append(f"{path.name}: the last line is torn and was left out")
                    return
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise DataError(f"{path} line {number} is no object")
                yield number, record
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path} line {number} cannot be read: {error}") from error
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def open_recorded_run(log_path: Path) -> RecordedRun:
    """The recording in a run directory. Raises ConfigError or DataError when there is none that can be read."""
    if not is_run(log_path):
        raise DataError(f"{log_path} holds no run (config.json is missing); give the directory of a run")
    if not (log_path / ROLLOUTS).is_file():
        raise DataError(f"{log_path} holds no {ROLLOUTS}: nothing was recorded that could be judged or scored again")
    return RecordedRun(log_path, make_settings(Config, settings_of(log_path)), read_config(log_path))


def _group(record: Mapping[str, Any]) -> tuple[int, ScoredGroup]:
    """One line: its step, and the group."""
    rows = record["completions"]
    prompt = tuple(_is(token, int) for token in record["prompt_tokens"])
    group = Group(
        problem=Problem(_is(record["problem_id"], str), _is(record["statement"], str), tests=()),
        trajectories=tuple(_trajectory(row, prompt) for row in rows),
        sample_s=0.0,
        max_tokens=_is(record["max_tokens"], int),
        policy_step=_is(record["policy_step"], int),
        place=_is(record["group"], int),
        attempt=_is(record["attempt"], int),
    )
    return _is(record["step"], int), ScoredGroup(
        group,
        tuple(_number(row["reward"]) for row in rows),
        tuple(_number(row["advantage"]) for row in rows),
        tuple(row["masked"] for row in rows),
        record.get("skip_reason") or NOT_RECORDED if _is(record["skipped"], bool) else None,
    )


def _trajectory(row: Mapping[str, Any], prompt: tuple[int, ...]) -> Trajectory:
    return Trajectory(tuple(_turn(each, prompt) for each in (*row.get("turns", ()), row)))


def _turn(row: Mapping[str, Any], prompt: tuple[int, ...]) -> Turn:
    """One turn; the prompt of the first is written once for the group."""
    text = _is(row["text"], str)
    tokens = tuple(_is(token, int) for token in row["tokens"])
    logprobs = tuple(float(logprob) for logprob in row["logprobs"])
    if len(tokens) != len(logprobs):
        raise ValueError(f"{len(tokens)} tokens and {len(logprobs)} logprobs")
    failure = None if row.get("failure") is None else Failure(**row["failure"])
    return Turn(
        prompt_tokens=tuple(_is(token, int) for token in row["prompt_tokens"]) if "prompt_tokens" in row else prompt,
        tokens=tokens,
        logprobs=logprobs,
        text=text,
        truncated=_is(row["truncated"], bool),
        code=row["code"] if "code" in row else extract_code(text),
        verdict=RecordedVerdict(
            VerdictKind(row["verdict"]), _is(row["passed"], int), _is(row["total"], int), "", failure
        ),
        messages=tuple(row.get("messages", ())),
    )


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _is(value: Any, kind: type) -> Any:
    """`value`, which must be of exactly this type: a bool is no number."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.40} is not a {kind.__name__}")
    return value
