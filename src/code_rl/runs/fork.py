"""A run that goes on from another one's checkpoint, in a directory of its own, under settings that may differ: a resume elsewhere.

The new directory gets what the checkpoint's own had then: metrics, rollouts, journal, and the completions that were sampled ahead where they still hold.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import chz

from code_rl.config import Config, changed_settings, make_config
from code_rl.errors import ConfigError
from code_rl.runs.checkpoints import read_checkpoints, write_checkpoints
from code_rl.runs.directory import is_run, settings_of
from code_rl.runs.files import Mark, mark_of
from code_rl.runs.inflight import INFLIGHT
from code_rl.runs.journal import JOURNAL, Journal
from code_rl.runs.resume import Start

OF_THE_STATE = ("backend", "model_name", "lora_rank")
"""Settings that the saved weights are of."""
_OF_EACH = ("fork", "log_path", "behavior_if_log_dir_exists", "dry_run")


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

    def _redecides(self, config: Config) -> bool:
        """True when a setting differs that a resumed run would keep: what was sampled and judged ahead is then of other settings."""
        return bool(set(changed_settings(self.was, config)) & set(self.changed(config)))

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
        marks = {name: Mark(*mark) for name, mark in self.record["marks"].items()}
        for name, mark in list(marks.items()):
            source, target = self.run / name, log_path / name
            ahead = Path(name).parts[0] == INFLIGHT
            if ahead and (self._redecides(config) or mark_of(source, mark.size) != mark):
                del marks[name]
                say(f"the completions that were sampled ahead of the checkpoint ({name}) are sampled anew")
            elif source.exists():
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _copy(source, target, mark.size)
        kept = {name: [mark.size, mark.crc] for name, mark in marks.items()}
        write_checkpoints(log_path, [{**self.record, "state_path": state, "marks": kept}])
        journal = Journal(log_path / JOURNAL)
        journal.record("fork", step=self.step, run=str(self.run), checkpoint=str(self.record["name"]))
        journal.close()

    def describe(self, config: Config) -> dict[str, Any]:
        """For `config.json` and the report: where from, and which settings differ."""
        facts = {"run": str(self.run.absolute()), "checkpoint": str(self.record["name"]), "step": self.step}
        return {**facts, "changed": self.changed(config)}


def find_fork(text: str) -> Fork:
    """The checkpoint that `fork=DIR/NAME` names. Raises ConfigError where there is none."""
    path = Path(text).expanduser()
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


def _copy(source: Path, target: Path, size: int) -> None:
    """The first `size` bytes of a file that may still grow."""
    shutil.copyfile(source, target)
    target.chmod(0o600)
    with target.open("rb+") as file:
        file.truncate(size)
