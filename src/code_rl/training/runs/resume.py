"""Where a run starts: at its own last usable checkpoint, or with the weights of another's.

A checkpoint names the lengths of the run's logs. It is used only if its files of completions have
that length and its weights are whole; else the checkpoint before it is tried, with a notice. A
damaged line of completions ends the resume with the file's name. Metrics and rollouts only record:
they are cut to their lengths, and damaged lines are left out wherever they are read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from code_rl.data.load import Say
from code_rl.engine.checkpoints import (
    CHECKPOINTS,
    checkpoint_record,
    is_run,
    read_checkpoints,
    state_path_of,
    write_checkpoints,
)
from code_rl.policy.completion_log import INFLIGHT, step_file
from code_rl.training.config import Config, make_config
from code_rl.training.runs.directory import METRICS, ROLLOUTS, settings_of
from code_rl.util.errors import CheckpointError, ConfigError
from code_rl.util.files import drop_torn_line, size_of, truncate

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
        """Return the path of the training state to load, None for the beginning. Raises
        CheckpointError if the file is not the one that was saved."""
        return None if self.record is None else state_path_of(self.record, log_path)

    @property
    def lengths(self) -> Mapping[str, int]:
        """The bytes of the checkpoint's files by path in the run directory; empty for the
        beginning. Raises CheckpointError if the record has none."""
        if self.record is None:
            return {}
        if "lengths" not in self.record:
            raise CheckpointError("it does not name the lengths of the run's logs")
        lengths: Mapping[str, int] = self.record["lengths"]
        return lengths

    @property
    def name(self) -> str:
        """The start as text for messages: `the beginning`, or `checkpoint NAME`."""
        return "the beginning" if self.record is None else f"checkpoint {self.record['name']}"


async def choose_start(
    log_path: Path, say: Say, load: Callable[[Start], Awaitable[Loaded]]
) -> tuple[Start, Loaded]:
    """Return the latest usable start and the result of `load` on it. A notice (`say`) names each
    later start that cannot be used, with the reason. The directory is not changed.

    `load` raises CheckpointError for missing or damaged state. The beginning is the last candidate
    if there is no checkpoint, or if all logs since the beginning are still kept.

    Raises CheckpointError if no start is usable, and DataError for a damaged line of
    `checkpoints.jsonl`.
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
    again = "begin anew with behavior_if_log_dir_exists=delete"
    if not reasons:
        raise CheckpointError(
            f"{log_path / CHECKPOINTS} names no checkpoint, and the run has steps; restore the "
            f"file, or {again}"
        )
    raise CheckpointError(
        f"log_path={log_path}: {reasons[0]}; no earlier checkpoint is usable. Restore the damaged "
        f"file, begin a new run from weights that are whole with init_from={log_path}/CHECKPOINT, "
        f"or {again}"
    )


def _starts(log_path: Path) -> Iterator[Start]:
    """Yield the possible starts, the latest first: the checkpoints with a training state, then the
    beginning if its logs are still kept or the run has no step. Raises CheckpointError for a record
    without a step, and DataError for a damaged line."""
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
    """Restore the directory to its state at `start`: metrics and rollouts are cut to its lengths,
    and later checkpoint records are removed, so that each step is logged once. Kept completions
    stay for reuse. A notice (`say`) names each record that has lost lines. Raises OSError."""
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

    Raises ConfigError if there is none or its run had another `backend`, `model_name` or
    `lora_rank`, and CheckpointError if the file is damaged.
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
