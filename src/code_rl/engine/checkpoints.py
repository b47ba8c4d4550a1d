"""Checkpoints of a run: training state with optimizer, sampler weights, and the line in
`checkpoints.jsonl` that names both.

A run records the lengths of its logs in `lengths`, to which a resume cuts them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from code_rl.util.concurrency import wait_for
from code_rl.util.data_files import file_sha256
from code_rl.util.door import Lazy
from code_rl.util.errors import CheckpointError, ConfigError
from code_rl.util.files import (
    JsonLines,
    drop_torn_line,
    line_of,
    read_lines,
    write_lines_atomically,
)

if TYPE_CHECKING:
    import tinker
else:
    tinker = Lazy("tinker")

CHECKPOINTS = "checkpoints.jsonl"
CONFIG = "config.json"
VLLM_LOG = "vllm.log"
DIGEST = "state_sha256"
Kind = Literal["state", "sampler", "both"]


async def save_checkpoint_async(
    training_client: tinker.TrainingClient,
    name: str,
    log_path: str | Path,
    loop_state: Mapping[str, Any],
    kind: Kind = "both",
) -> dict[str, str]:
    """Save the weights, then append `{"name", **loop_state, "state_path", "sampler_path"}` to
    `checkpoints.jsonl` in `log_path`, so an interruption leaves no incomplete record. `kind`
    chooses the training state, the sampler weights or both. Returns the paths, by these names.
    Raises the error of a failed save."""
    paths = await saved_paths(submit_save(training_client, name, kind))
    append_checkpoint(Path(log_path), {"name": name, **loop_state, **paths, **digest_of(paths)})
    return paths


def submit_save(
    training_client: tinker.TrainingClient, name: str, kind: Kind = "both"
) -> dict[str, Any]:
    """Ask the service to save the weights; return futures by `state_path` and `sampler_path`.

    A state of the same name that a killed process left without a record is replaced, if the service
    allows it.
    """
    pending: dict[str, Any] = {}
    if kind in ("state", "both"):
        pending["state_path"] = training_client.save_state(name, overwrite=True)
    if kind in ("sampler", "both"):
        pending["sampler_path"] = training_client.save_weights_for_sampler(name)
    return pending


async def saved_paths(pending: Mapping[str, Any]) -> dict[str, str]:
    """Wait for the futures of `submit_save` and return the paths by `state_path` and
    `sampler_path`. Raises the error of a save that failed."""
    return {key: str((await future).path) for key, future in pending.items()}


def digest_of(paths: Mapping[str, str]) -> dict[str, str]:
    """Return the SHA-256 of the training state's file as `state_sha256`, for its record, or an
    empty dict if a server keeps the state."""
    state = Path(paths.get("state_path", ""))
    return {DIGEST: file_sha256(state)} if state.is_file() else {}


def append_checkpoint(log_path: Path, record: Mapping[str, Any]) -> None:
    """Append the line that makes saved weights a checkpoint; it is on disk on return. An incomplete
    last line is cut off first. Raises OSError."""
    drop_torn_line(log_path / CHECKPOINTS)
    with contextlib.closing(JsonLines(log_path / CHECKPOINTS, durable=True)) as lines:
        lines.append(record)


def write_checkpoints(log_path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Replace all lines of `checkpoints.jsonl` in `log_path` at once; after an OSError the old file
    is unchanged."""
    write_lines_atomically(log_path / CHECKPOINTS, map(line_of, records))


def read_checkpoints(log_dir: str | Path) -> list[dict[str, Any]]:
    """Return the records of all checkpoints, in the order in which they were saved; none if the
    file is missing. Raises DataError for a damaged line."""
    return list(read_lines(Path(log_dir) / CHECKPOINTS))


def file_beside(path: str, log_dir: str | Path) -> Path:
    """Return the path, in a run directory that may be a copy, of the file that was saved as `path`.
    It may not exist."""
    return Path(log_dir).absolute() / "checkpoints" / Path(path).name


def state_path_of(record: Mapping[str, Any], log_dir: str | Path) -> str:
    """Return the path of a checkpoint's training state: the file beside the log if there is one,
    else the recorded path, which may be a server's.

    Raises CheckpointError if the file is not the one that was saved, by its SHA-256; records
    without one are not checked.
    """
    recorded = str(record["state_path"])
    beside = file_beside(recorded, log_dir)
    path = beside if beside.is_file() else Path(recorded)
    if not path.is_file():
        return recorded
    if DIGEST in record and file_sha256(path) != record[DIGEST]:
        raise CheckpointError(
            f"{path} is not the state that checkpoint {record.get('name')} of {log_dir} saved "
            "(another SHA-256)"
        )
    return str(path)


def save_checkpoint(
    training_client: tinker.TrainingClient,
    name: str,
    log_path: str | Path,
    loop_state: Mapping[str, Any],
    kind: Kind = "both",
) -> dict[str, str]:
    """Run `save_checkpoint_async` and wait for it, even inside a running event loop, which then
    waits."""
    return wait_for(save_checkpoint_async(training_client, name, log_path, loop_state, kind))


def get_last_checkpoint(
    log_dir: str | Path, required_key: str = "state_path"
) -> dict[str, Any] | None:
    """Return the last record that has `required_key`, or None, also if the run has no checkpoints.
    Raises DataError for a damaged line."""
    found = [record for record in read_checkpoints(log_dir) if required_key in record]
    return found[-1] if found else None


def is_run(path: Path) -> bool:
    """Return True if the directory holds a run's settings, even damaged ones. A model's folder also
    has a `config.json`, with a `model_type`."""
    if not (path / CONFIG).is_file():
        return False
    try:
        return "model_type" not in read_config(path)
    except ConfigError:
        return True  # damaged


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings in the `config.json` of an earlier run's directory. Raises ConfigError if
    they cannot be read."""
    try:
        settings = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{path / CONFIG} cannot be read: {error}; restore it, or choose another directory"
        ) from error
    if not isinstance(settings, dict):
        raise ConfigError(
            f"{path / CONFIG} does not hold an object; restore it, or choose another directory"
        )
    return settings


def run_of(checkpoint: str) -> tuple[Path, str | None]:
    """Return the run directory and the checkpoint's name (None: the last) for RUN, RUN/NAME or a
    file in RUN/checkpoints. Raises ConfigError if there is no run. The name is not checked."""
    path = Path(checkpoint).expanduser()
    for run, name in ((path, None), (path.parent, path.name), (path.parent.parent, path.name)):
        if is_run(run):
            return run, name
    raise ConfigError(
        f"checkpoint={checkpoint} is no run directory (config.json is missing), no RUN/NAME and no "
        "file"
    )


def checkpoint_record(checkpoint: str, setting: str = "checkpoint") -> tuple[Path, dict[str, Any]]:
    """Return the run directory and the record of the checkpoint, with the path of its state as it
    is now. `setting` is named in errors. Without a name, it is the last one.

    Raises ConfigError if there is no run or no such checkpoint, CheckpointError for a file that is
    not the one saved, and DataError for a damaged line.
    """
    run, name = run_of(checkpoint)
    records = [record for record in read_checkpoints(run) if "state_path" in record]
    if not records:
        raise ConfigError(f"{setting}={checkpoint}: the run has saved none yet (save_every=)")
    named = [
        each for each in records if name in (None, each["name"], Path(each["state_path"]).name)
    ]
    if not named:
        names = ", ".join(each["name"] for each in records)
        raise ConfigError(f"{setting}={checkpoint}: the run has no {name!r}; it has {names}")
    return run, named[-1] | {"state_path": state_path_of(named[-1], run)}
