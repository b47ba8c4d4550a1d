"""The run directory: its path, what happens to an existing one, its settings, and its content as a
resume restores it.

A checkpoint names the lengths of the run's logs. It is used only if its files of completions have
that length and its weights are whole; else the checkpoint before it is tried, with a notice. A
damaged line of completions ends the resume with the file's name. Metrics and rollouts only record:
they are cut to their lengths, and damaged lines are left out wherever they are read.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from code_rl.engine.checkpoints import (
    CHECKPOINTS,
    CONFIG,
    VLLM_LOG,
    checkpoint_record,
    is_run,
    read_checkpoints,
    read_config,
    state_path_of,
    write_checkpoints,
)
from code_rl.policy.completion_log import INFLIGHT, step_file
from code_rl.training.config import Config, make_config
from code_rl.util.errors import CheckpointError, ConfigError
from code_rl.util.files import (
    LOCK,
    TEMPORARY,
    drop_torn_line,
    only_writer,
    read_record,
    size_of,
    truncate,
    writes,
)
from code_rl.util.settings import make_settings

Behavior = Literal["resume", "ask", "delete", "raise"]
BEGUN = "begun.json"
"""Holds the run's settings until `config.json` is written."""
METRICS = "metrics.jsonl"
ROLLOUTS = "rollouts.jsonl"
_OF_THE_PLACE = ("log_path", "behavior_if_log_dir_exists", "resolved")


@dataclass(slots=True)
class Claim:
    """A run directory that this process holds; `resumes` is True if its run goes on. `started` is
    set when the run is assembled."""

    path: Path
    resumes: bool
    started: bool = False


@contextlib.contextmanager
def claimed(log_path: Path | None, behavior: Behavior, resumes: bool) -> Iterator[Claim]:
    """Make the run directory (None: a new one with the default name), lock it for the block, and
    decide about its earlier run, which the settings were read to resume if `resumes`.

    A directory made for a start that fails is deleted, but for vLLM's log. Raises ConfigError if
    the directory is in use, or as `check_log_dir` does.
    """
    path = log_path or new_folder()
    _holds_run(path)  # before a lock is written beside other things
    made = _make(path) or log_path is None
    with only_writer(path / LOCK, f"log_path={path}"):
        for left in path.rglob(f".*{TEMPORARY}"):  # of a killed process
            left.unlink(missing_ok=True)
        claim = Claim(path, _holds_run(path) and not _is_deleted(path, behavior))
        if claim.resumes and not resumes:
            raise ConfigError(
                f"log_path={path} holds a run that began just now; give the command again to "
                "resume it, or choose another log_path"
            )
        begun = (path / BEGUN).exists()
        try:
            yield claim
        except Exception:
            if made and not claim.started:
                with contextlib.suppress(OSError):
                    clear(path, {VLLM_LOG})
                    path.rmdir()
            elif not (claim.started or begun):
                (path / BEGUN).unlink(missing_ok=True)
            raise


def new_folder(prefix: str = "") -> Path:
    """Make `~/code-rl-logs/YYYY_MM_DD-HH_MM_SS`, local time, with a number if that exists."""
    now = datetime.now().astimezone().strftime("%Y_%m_%d-%H_%M_%S")
    path = first = Path.home() / "code-rl-logs" / f"{prefix}{now}"
    number = 1
    while not _make(path):
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def clear(path: Path, kept: Set[str] = frozenset({LOCK, BEGUN})) -> None:
    """Delete a run, the settings that make it one first: if this is interrupted, what is left is
    not taken for a run. The lock, which a process may hold, and the settings of the next run
    stay."""
    (path / CONFIG).unlink(missing_ok=True)
    for entry in {*path.iterdir()} - {path / name for name in kept}:
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def begun_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings of a run that was interrupted before its `config.json` was written, or
    None."""
    try:
        begun = json.loads((path / BEGUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return _kept(begun) if isinstance(begun, dict) else None


def _kept(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in _OF_THE_PLACE}


def check_log_dir(log_dir: str | Path, behavior_if_exists: Behavior = "ask") -> Path:
    """Make a directory ready for a run and return it. `behavior_if_exists` decides about an earlier
    run.

    Raises ConfigError if the path is a file or cannot be written, if it holds an earlier run that
    is not to be touched, or (delete) if it holds something that is not a run.
    """
    if behavior_if_exists not in get_args(Behavior):
        raise ConfigError(
            f"behavior_if_exists={behavior_if_exists!r} is none of {', '.join(get_args(Behavior))}"
        )
    path = Path(log_dir).expanduser()
    if _holds_run(path) and _is_deleted(path, behavior_if_exists):
        clear(path)
    _make(path)
    return path


def _make(path: Path) -> bool:
    """Make a directory, and return True if it is new. Raises ConfigError if it cannot be
    written."""
    with writes(path, "directory", setting="log_path"):
        try:
            path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            tempfile.TemporaryFile(dir=path).close()
            return False
        return True


def _holds_run(path: Path) -> bool:
    """Return True if a directory holds an earlier run, False if it is free: missing, empty, or left
    by a start that was interrupted or failed. Raises ConfigError if it holds anything else."""
    with writes(path, "directory", setting="log_path"):
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    if is_run(path):
        return True
    left = names - {LOCK, VLLM_LOG}
    if BEGUN in names or all(name.endswith(TEMPORARY) for name in left):
        return False
    raise ConfigError(
        f"log_path={path} is not empty and holds no run (no {CONFIG} of one); restore that, or "
        "choose another directory"
    )


def _is_deleted(path: Path, behavior: Behavior) -> bool:
    """Return True if the run in a directory is to be deleted, False if it goes on. Raises
    ConfigError if it is not to be touched."""
    if behavior == "ask":
        if not sys.stdin.isatty():
            raise ConfigError(
                f"log_path={path} holds an earlier run and there is no terminal to ask on; "
                "give behavior_if_log_dir_exists=resume, delete or raise"
            )
        answer = input(f"{path} exists. [r]esume, [d]elete or [q]uit? ").strip().lower()
        answers: dict[str, Behavior] = {"r": "resume", "d": "delete"}
        behavior = answers.get(answer[:1], "raise")
    if behavior == "raise":
        raise ConfigError(
            f"log_path={path} holds an earlier run; choose another, or "
            "behavior_if_log_dir_exists=resume"
        )
    return behavior == "delete"


def read_metrics(log_path: Path) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl`; damaged lines are left out."""
    records = read_record(log_path / METRICS)
    return [record for record in records if isinstance(record.get("step"), int)]


def settings_of(log_path: Path) -> dict[str, Any]:
    """Return the settings of the run in a directory. Raises ConfigError, naming the file, if there
    are none."""
    settings = _kept(read_config(log_path))
    try:
        make_settings(Config, settings)
    except ConfigError as error:
        raise ConfigError(
            f"{log_path / CONFIG} is damaged, or of another version of code-rl: {error}; restore "
            "it, or choose another directory"
        ) from error
    return settings


Say = Callable[[str], None]
Loaded = TypeVar("Loaded")
OF_THE_STATE = ("backend", "model_name", "lora_rank")
"""Settings that must match the saved weights."""
RECORDS = (METRICS, ROLLOUTS)
"""Logs that a resume cuts to the lengths of its checkpoint. It does not read them."""


@dataclass(frozen=True, slots=True)
class Start:
    """The point where a resumed run continues: after `step` steps, from a checkpoint's record, or
    (None) from the beginning."""

    step: int = 0
    record: Mapping[str, Any] | None = None

    def state_path(self, log_path: Path) -> str | None:
        """Return the path of the training state to load."""
        return None if self.record is None else state_path_of(self.record, log_path)

    @property
    def lengths(self) -> Mapping[str, int]:
        """The bytes of the checkpoint's files, by name. Raises CheckpointError if it names none."""
        if self.record is None:
            return {}
        if "lengths" not in self.record:
            raise CheckpointError("it does not name the lengths of the run's logs")
        lengths: Mapping[str, int] = self.record["lengths"]
        return lengths

    @property
    def name(self) -> str:
        """The checkpoint's name."""
        return "the beginning" if self.record is None else f"checkpoint {self.record['name']}"


async def choose_start(
    log_path: Path, say: Say, load: Callable[[Start], Awaitable[Loaded]]
) -> tuple[Start, Loaded]:
    """Return the latest usable start and the result of `load` on it. A notice names each later
    start that cannot be used, with the reason.

    `load` raises CheckpointError for missing or damaged state. The beginning is the last candidate
    if there is no checkpoint, or if all logs since the beginning are still kept.

    Raises CheckpointError if no start is usable.
    """
    reasons = []
    for start in _starts(log_path):
        try:
            for name, size in start.lengths.items():
                if name not in RECORDS and size_of(log_path / name) < size:
                    raise CheckpointError(f"{log_path / name} is shorter than {size} bytes")
            return start, await load(start)
        except CheckpointError as error:
            if start.record is None:
                raise
            reasons.append(f"{start.name} cannot be used: {error}")
            say(reasons[-1])
    why = reasons[0] if reasons else f"{CHECKPOINTS} names no checkpoint, and the run has steps"
    raise CheckpointError(
        f"log_path={log_path}: {why}; no earlier checkpoint is usable. Restore the damaged file, "
        f"begin a new run from weights that are whole with init_from={log_path}/CHECKPOINT, or "
        "begin anew with behavior_if_log_dir_exists=delete"
    )


def _starts(log_path: Path) -> Iterator[Start]:
    """Yield the possible starts, the latest first: the checkpoints, then the beginning if its logs
    are still kept."""
    try:
        steps = {int(record["step"]): record for record in read_checkpoints(log_path)}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{log_path / CHECKPOINTS}: a line has no step ({error})") from error
    for step in sorted(steps, reverse=True):
        if "state_path" in steps[step]:
            yield Start(step, steps[step])
    rollouts = log_path / ROLLOUTS
    has_steps = bool(steps) or (rollouts.is_file() and rollouts.stat().st_size > 0)
    if step_file(log_path / INFLIGHT, 0).exists() or not has_steps:
        yield Start()


def go_back(log_path: Path, start: Start, say: Say) -> None:
    """Restore the directory to its state at `start`. Everything later is removed, so that each step
    is logged once. A notice names each record that has lost lines."""
    for name in RECORDS:
        path, size = log_path / name, start.lengths.get(name, 0)
        if size_of(path) < size:
            say(f"{path} is incomplete; the run goes on without the missing lines")
        truncate(path, size)
        drop_torn_line(path)
    write_checkpoints(
        log_path,
        [record for record in read_checkpoints(log_path) if record["step"] <= start.step],
    )


def find_checkpoint(text: str, config: Config) -> str:
    """Return the path of the training state that `init_from=RUN/CHECKPOINT` names.

    Raises ConfigError if there is none or it belongs to another model, CheckpointError if the file
    is damaged.
    """
    path = Path(text).expanduser()
    if not is_run(path.parent):
        raise ConfigError(
            f"init_from={text}: {path.parent} holds no run (config.json is missing); write "
            "init_from=RUN/CHECKPOINT"
        )
    _, record = checkpoint_record(text, "init_from")
    was = make_config({}, settings_of(path.parent))
    for name in OF_THE_STATE:
        if getattr(was, name) != getattr(config, name):
            raise ConfigError(
                f"{name}={getattr(config, name)} differs from the run in {path.parent} "
                f"({name}={getattr(was, name)}), "
                "whose weights need it; give the same"
            )
    return str(record["state_path"])
