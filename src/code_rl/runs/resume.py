"""Taking a run up again: which checkpoint it goes on from, and what its directory holds then; here, or (a fork) in a directory of its own.

A checkpoint lists how the files began that belong to it. Only when they still begin so is it used; else the one before, said plainly.
What the journal can restore is restored: lines of `metrics.jsonl` and of `checkpoints.jsonl`. A fork's directory gets what the checkpoint's own had then:
metrics, rollouts, journal, and the completions that were sampled ahead where they still hold; its settings may differ.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import chz

from code_rl.budget import Tokens
from code_rl.config import Config, changed_settings, make_config
from code_rl.errors import CheckpointError, ConfigError
from code_rl.files import Mark, mark_of, truncate, write_lines_atomically
from code_rl.runs.checkpoints import read_checkpoints, state_path_of, write_checkpoints
from code_rl.runs.directory import FORMAT, METRICS, is_run, settings_of
from code_rl.runs.inflight import INFLIGHT, read_inflight, step_file
from code_rl.runs.journal import JOURNAL, History, Journal, read_history, set_aside_damage
from code_rl.runs.recorder import ROLLOUTS

Say = Callable[[str], None]
Loaded = TypeVar("Loaded")
CHECKED_BATCHES = 4
OF_THE_STATE = ("backend", "model_name", "lora_rank")
"""Settings that the saved weights are of."""
_OF_EACH = ("fork", "log_path", "behavior_if_log_dir_exists", "dry_run")


@dataclass(frozen=True, slots=True)
class Start:
    """Where a run goes on: after `step` steps, from a checkpoint's record, or (None) from the beginning."""

    step: int = 0
    record: Mapping[str, Any] | None = None

    def state_path(self, log_path: Path) -> str | None:
        """The training state to load."""
        return None if self.record is None else state_path_of(self.record, log_path)

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        return "the beginning" if self.record is None else f"checkpoint {self.record.get('name', self.step)}"


def open_history(log_path: Path, say: Say) -> History:
    """What the journal says of a run; a damaged one is set aside, and cut after its last whole line."""
    history = read_history(log_path / JOURNAL)
    if history.damaged is not None:
        kept = set_aside_damage(log_path / JOURNAL, history.damaged)
        say(
            f"{log_path / JOURNAL} is damaged after {history.damaged} bytes: it is cut there, the whole is in {kept.name}; "
            "what the run decided and spent after that point is not known"
        )
    return history


async def choose_start(
    log_path: Path, history: History, say: Say, load: Callable[[Start], Awaitable[Loaded]]
) -> tuple[Start, Loaded]:
    """The latest point that the run can go on from, and what `load` made of it. Why a later one cannot be used is said.

    `load` raises CheckpointError for state that is missing or damaged. Without any checkpoint, or while everything since the
    beginning is still kept, the beginning is the last of them.

    Raises CheckpointError: nothing is left to go on from, or the directory is of a version that this one cannot go on with.
    """
    reasons = []
    for start in _starts(log_path, history):
        try:
            if start.record is not None:
                _check_marks(log_path, start, history, say)
            return start, await load(start)
        except CheckpointError as error:
            if start.record is None:
                raise
            reasons.append(f"{start.name} cannot be used: {error}")
            say(reasons[-1])
    raise CheckpointError(
        f"log_path={log_path}: {reasons[0]}; no earlier one can be used either. Restore what is damaged, or begin anew with "
        "behavior_if_log_dir_exists=delete"
    )


def _starts(log_path: Path, history: History) -> Iterator[Start]:
    listed = {record["step"]: record for record in read_checkpoints(log_path) if isinstance(record.get("step"), int)}
    records = {step: record for step, record in {**listed, **history.saved}.items() if "state_path" in record}
    for step in sorted(records, reverse=True):
        yield Start(step, records[step])
    if not records or step_file(log_path / INFLIGHT, 0).exists():
        yield Start()


def _check_marks(log_path: Path, start: Start, history: History, say: Say) -> None:
    """Raise CheckpointError, naming the file, when one that the checkpoint needs no longer begins as it did; for one of another format, too."""
    assert start.record is not None
    if start.record.get("version") != FORMAT:
        raise CheckpointError(
            f"it has format {start.record.get('version')}, and this version of code-rl reads {FORMAT}"
        )
    for name, mark in _marks(start.record).items():
        path = log_path / name
        if mark_of(path, mark.size) == mark:
            continue
        if name == METRICS and _restore_metrics(path, start.step, history, mark):
            say(f"{path} was damaged and is restored from the journal")
        elif name in (JOURNAL, ROLLOUTS) and not path.exists():
            say(f"{path} is missing: the run goes on without its earlier part")
        elif name == JOURNAL:
            say(f"{path} has lost lines: what the run decided and spent there is not known")
        else:
            hint = "; move it away to go on without it" if name == ROLLOUTS else ""
            raise CheckpointError(f"the first {mark.size} bytes of {path} are damaged or missing{hint}")


def _marks(record: Mapping[str, Any]) -> dict[str, Mark]:
    try:
        return {str(name): Mark(int(size), int(crc)) for name, (size, crc) in record.get("marks", {}).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(f"its record is malformed ({error})") from error


def _restore_metrics(path: Path, step: int, history: History, mark: Mark) -> bool:
    lines = [json.dumps({"step": at, **history.logged[at]}) + "\n" for at in sorted(history.logged) if at < step]
    whole = "".join(lines).encode()
    if Mark(len(whole), zlib.crc32(whole)) != mark:
        return False
    write_lines_atomically(path, lines)
    return True


def lost_tokens(log_path: Path, history: History, step: int, completions: int) -> Tokens:
    """What a resume from `step` pays for again, at worst. `completions` is the size of a group."""
    counts: dict[int, Counter[tuple[int, int]]] = {}

    def drawn(at: int, place: int, attempt: int) -> int:
        if at not in counts:
            counts[at] = Counter()
            for record in read_inflight(step_file(log_path / INFLIGHT, at)):
                if record["kind"] == "drawn" and not record.get("turn"):
                    counts[at][record["place"], record["attempt"]] += len(record["sequences"])
        return counts[at][place, attempt]

    return history.lost_from(step, completions, drawn)


def go_back(log_path: Path, start: Start, lost: Tokens) -> None:
    """Make the directory what it was at `start`: journaled first, then everything later is cut off, so that each step is there once."""
    with contextlib.closing(Journal(log_path / JOURNAL)) as journal:
        journal.record("resume", step=start.step, checkpoint=start.name, lost=asdict(lost))
    marks = {} if start.record is None else _marks(start.record)
    for name in (METRICS, ROLLOUTS):
        truncate(log_path / name, marks[name].size if name in marks else 0)
    kept = [record for record in read_checkpoints(log_path) if int(record.get("step", 0)) <= start.step]
    if start.record is not None and start.record not in kept:
        kept = [*kept, dict(start.record)]
    write_checkpoints(log_path, kept)


def check_decisions(history: History, batch: Callable[[int], tuple[Sequence[str], Sequence[int]]]) -> None:
    """Hold the last batches that the journal decided on against `batch`, which gives ids of problems and seeds by step.

    Raises ConfigError: they differ: the data or the program changed under the run.
    """
    for step in sorted(history.sampled)[-CHECKED_BATCHES:]:
        problems, seeds = batch(step)
        decided = history.sampled[step]
        for was, now in ((decided["problems"], problems), (decided["seeds"], seeds)):
            if list(was) != list(now):
                changed = next((f"{a!r} became {b!r}" for a, b in zip(was, now, strict=False) if a != b), None)
                changed = changed or f"{len(was)} became {len(now)}"
                raise ConfigError(
                    f"the batch of step {step} would not be the one that the journal has ({changed}): "
                    "dataset= has other problems than when the run began; restore them, or begin a new run"
                )


@dataclass(frozen=True, slots=True)
class Fork:
    """A checkpoint of another run: its directory, the checkpoint's record, and the settings that it ran with."""

    run: Path
    record: Mapping[str, Any]
    was: Config

    @property
    def step(self) -> int:
        """Steps done at the checkpoint."""
        return int(self.record["step"])

    def changed(self, config: Config) -> dict[str, list[Any]]:
        """Settings that differ: what each was and is."""
        was, now = chz.asdict(self.was), chz.asdict(config)
        return {name: [was[name], now[name]] for name in now if name not in _OF_EACH and was[name] != now[name]}

    def check(self, config: Config, log_path: Path | None) -> None:
        """Refuse, before anything is written, what this checkpoint cannot go on with. Raises ConfigError."""
        for name in OF_THE_STATE:
            if name in self.changed(config):
                raise ConfigError(
                    f"{name}={getattr(config, name)} differs from the run in {self.run} ({name}={getattr(self.was, name)}), "
                    "and its checkpoints hold weights of that; leave it out"
                )
        if log_path is not None and log_path.resolve() in (self.run.resolve(), *self.run.resolve().parents):
            raise ConfigError(f"log_path={log_path} holds the run that is forked; choose another directory")
        if 0 < config.max_steps <= self.step:
            raise ConfigError(
                f"fork={config.fork} has done {self.step} steps and max_steps={config.max_steps}; give a larger one to go on"
            )

    def plant(self, config: Config, log_path: Path, say: Callable[[str], None]) -> None:
        """Make `log_path` the directory of a run that was cut at the checkpoint. Idempotent."""
        state = Start(self.step, self.record).state_path(self.run)
        marks = _marks(self.record)
        # Where a setting differs that a resumed run would keep, what was sampled and judged ahead is of other settings.
        redecides = not set(changed_settings(self.was, config)).isdisjoint(self.changed(config))
        for name, mark in list(marks.items()):
            source, target = self.run / name, log_path / name
            ahead = Path(name).parts[0] == INFLIGHT
            if ahead and (redecides or mark_of(source, mark.size) != mark):
                del marks[name]
                say(f"the completions that were sampled ahead of the checkpoint ({name}) are sampled anew")
            elif source.exists():
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copyfile(source, target)
                target.chmod(0o600)
                truncate(target, mark.size)  # it may still grow
        kept = {name: [mark.size, mark.crc] for name, mark in marks.items()}
        write_checkpoints(log_path, [{**self.record, "state_path": state, "marks": kept}])
        with contextlib.closing(Journal(log_path / JOURNAL)) as journal:
            journal.record("fork", step=self.step, run=str(self.run), checkpoint=str(self.record["name"]))

    def describe(self, config: Config) -> dict[str, Any]:
        """For `config.json` and the report: where from, and which settings differ."""
        facts = {"run": str(self.run.absolute()), "checkpoint": str(self.record["name"]), "step": self.step}
        return {**facts, "changed": self.changed(config)}


def find_fork(text: str) -> Fork:
    """The checkpoint that `fork=DIR/NAME` names. Raises ConfigError where there is none."""
    path = Path(text).expanduser()
    if is_run(path):
        raise ConfigError(f"fork={text} is a run; name its checkpoint too: fork={path}/CHECKPOINT")
    run = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    if not is_run(run):
        raise ConfigError(f"fork={text}: {run} holds no run (config.json is missing); write fork=DIR/CHECKPOINT")
    records = {
        str(each["name"]): each for each in read_checkpoints(run) if {"name", "state_path", "marks"} <= set(each)
    }
    if path.name not in records:
        there = f"there are: {', '.join(records)}" if records else "it has none that can be gone on from"
        raise ConfigError(f"fork={text}: the run in {run} has no checkpoint {path.name!r}; {there}")
    return Fork(run, records[path.name], make_config({}, settings_of(run)))
