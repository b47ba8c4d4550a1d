"""The state folder: sessions, runs, their checkpoints, and the weights of samplers. Everything
here but the samplers survives a restart.

```
lock                       held by the one server that uses the folder
sessions/SESSION.json      tags, metadata, how it ended
runs/RUN/run.json          base model, adapter settings, metadata
runs/RUN/checkpoints/NAME.KIND.safetensors, with NAME.KIND.json
                           KIND is state, sampler, or external (a folder in peft's form)
samplers/SAMPLER.safetensors
                           the weights of a sampling session of this server, as its own hard link
```
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from code_rl.engine.local.state import NAME
from code_rl.util.errors import CheckpointError, ConfigError
from code_rl.util.files import only_writer, write_atomically

from .wire import bad, unknown

Kind = Literal["state", "sampler", "external"]
_SEGMENTS: dict[str, Kind] = {
    "weights": "state",
    "sampler_weights": "sampler",
    "external_weights": "external",
}
_RUN_ID = re.compile(r"[0-9a-f-]{36}:train:\d{1,19}")
_SESSION_ID = re.compile(r"[0-9a-f-]{36}")


@dataclass(frozen=True)
class RunRecord:
    """A model in training, as stored on disk. `base_model` is the requested name, `local` its local
    source."""

    run_id: str
    base_model: str
    local: str
    arch: str
    tokenizer: str
    rank: int
    created: str
    user_metadata: dict[str, str] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A saved checkpoint."""

    run_id: str
    name: str
    kind: Kind
    time: str
    size_bytes: int
    user_metadata: dict[str, str] | None

    @property
    def checkpoint_id(self) -> str:
        """Its id within the run, such as `weights/NAME`; the first part is its kind."""
        segments = {kind: segment for segment, kind in _SEGMENTS.items()}
        return f"{segments[self.kind]}/{self.name}"

    @property
    def tinker_path(self) -> str:
        """Its URI, `tinker://RUN/weights/NAME`, by which clients name it."""
        return f"tinker://{self.run_id}/{self.checkpoint_id}"


def now() -> str:
    """Return the time in the records' form, ISO 8601 in UTC, which sorts as text."""
    return datetime.now(UTC).isoformat()


class StateStore:
    """One server's state folder. Raises ConfigError if another server uses it, or if it cannot be
    written."""

    def __init__(self, folder: Path) -> None:
        """Make the folder, lock it until `close`, and delete the sampler weights that an earlier
        server left. Raises ConfigError if another server uses it, or if it cannot be written."""
        self.folder = folder
        try:
            for name in ("sessions", "runs", "samplers"):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"state_dir={folder} cannot be used: {error.strerror}") from error
        self._lock = contextlib.ExitStack()
        self._lock.enter_context(only_writer(folder / "lock", f"state_dir={folder}"))
        for left in (folder / "samplers").iterdir():  # of an earlier server
            left.unlink()

    def close(self) -> None:
        """Release the folder for another server. Its files stay."""
        self._lock.close()

    def write_session(self, session_id: str, record: Mapping[str, Any]) -> None:
        """Write a session's record, over an earlier one. Raises OSError."""
        _write(self.folder / "sessions" / f"{session_id}.json", record)

    def read_session(self, session_id: str) -> dict[str, Any]:
        """Return a session's record. Raises a Refusal if it is unknown."""
        if _SESSION_ID.fullmatch(session_id):
            found = _read(self.folder / "sessions" / f"{session_id}.json")
            if found is not None:
                return found
        raise unknown(f"session {session_id!r}")

    def sessions(self) -> list[str]:
        """Return the ids of all sessions, finished ones too, newest first."""
        files = sorted(
            (self.folder / "sessions").glob("*.json"), key=lambda p: p.stat().st_mtime, reverse=True
        )
        return [path.stem for path in files]

    def write_run(self, record: RunRecord) -> None:
        """Make the run's folder and write its record, over an earlier one. The run exists from then
        on. Raises OSError."""
        self.checkpoint_folder(record.run_id).mkdir(parents=True, exist_ok=True)
        _write(self.folder / "runs" / record.run_id / "run.json", asdict(record))

    def read_run(self, run_id: str) -> RunRecord | None:
        """Return a run's record, or None if it is unknown or the id is malformed. Raises
        CheckpointError for a damaged one."""
        found = (
            _read(self.folder / "runs" / run_id / "run.json") if _RUN_ID.fullmatch(run_id) else None
        )
        return RunRecord(**found) if found is not None else None

    def run(self, run_id: str) -> RunRecord:
        """Return a run's record. Raises a Refusal (404) if it is unknown, and CheckpointError for a
        damaged one."""
        found = self.read_run(run_id)
        if found is None:
            raise unknown(f"training run {run_id!r}")
        return found

    def runs(self) -> list[RunRecord]:
        """Return all runs, also those no longer in memory, newest first."""
        found = [self.read_run(run_id) for run_id in self.runs_of("")]
        return sorted((r for r in found if r is not None), key=lambda r: r.created, reverse=True)

    def runs_of(self, session_id: str) -> list[str]:
        """Return the ids of the runs of a session ("" means all), sorted as text."""
        return sorted(path.name for path in (self.folder / "runs").glob(f"{session_id}*:*"))

    def checkpoint_folder(self, run_id: str) -> Path:
        """Return the folder of a run's checkpoints. Neither is checked."""
        return self.folder / "runs" / run_id / "checkpoints"

    def write_checkpoint(
        self,
        run_id: str,
        name: str,
        kind: Kind,
        metadata: dict[str, str] | None,
    ) -> Checkpoint:
        """Write and return the description of a checkpoint whose tensors are on disk, over an
        earlier one; only with it does the checkpoint exist. Raises OSError if the tensors are
        missing."""
        file = self.checkpoint_file(run_id, name, kind)
        record = Checkpoint(
            run_id,
            name,
            kind,
            now(),
            sum(path.stat().st_size for path in (file.iterdir() if kind == "external" else [file])),
            metadata,
        )
        _write(self.checkpoint_folder(run_id) / f"{name}.{kind}.json", asdict(record))
        return record

    def checkpoints(self, run_id: str | None = None) -> list[Checkpoint]:
        """Return the checkpoints of one run or of all (None), newest first. Raises CheckpointError
        for a damaged record."""
        folders = [
            self.checkpoint_folder(each)
            for each in ([run_id] if run_id is not None else self.runs_of(""))
        ]
        records = [_read(path) for folder in folders for path in folder.glob("*.json")]
        found = [Checkpoint(**record) for record in records if record is not None]
        return sorted(found, key=lambda c: c.time, reverse=True)

    def checkpoint_file(self, run_id: str, name: str, kind: Kind) -> Path:
        """Return the path of a checkpoint's tensors, or of an external checkpoint's folder. It may
        not exist, and the name is not checked."""
        end = "" if kind == "external" else ".safetensors"
        return self.checkpoint_folder(run_id) / f"{name}.{kind}{end}"

    def path_of(self, checkpoint: Checkpoint) -> Path:
        """Return the path of a checkpoint's tensors, or of an external one's folder. It is not
        checked."""
        return self.checkpoint_file(checkpoint.run_id, checkpoint.name, checkpoint.kind)

    def delete_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Delete a checkpoint and its description; samplers that use its weights keep them. One
        that is gone already is no error."""
        folder = self.checkpoint_folder(checkpoint.run_id)
        (folder / f"{checkpoint.name}.{checkpoint.kind}.json").unlink(missing_ok=True)
        file = self.path_of(checkpoint)
        if checkpoint.kind == "external":
            shutil.rmtree(file, ignore_errors=True)
        else:
            file.unlink(missing_ok=True)

    def find(self, tinker_path: str, *kinds: Kind) -> Checkpoint:
        """Return the checkpoint that a URI names. Raises a Refusal if there is none (404), or if
        the URI is malformed or of another kind than `kinds` (400)."""
        parts = tinker_path.removeprefix("tinker://").split("/")
        allowed = [segment for segment, kind in _SEGMENTS.items() if kind in kinds]
        if not tinker_path.startswith("tinker://") or len(parts) != 3 or parts[1] not in allowed:
            raise bad(
                f"path {tinker_path!r} must be "
                f"{' or '.join(f'tinker://RUN/{s}/NAME' for s in allowed)}"
            )
        return self.find_in_run(parts[0], f"{parts[1]}/{parts[2]}")

    def find_in_run(self, run_id: str, checkpoint_id: str) -> Checkpoint:
        """Return the checkpoint of a run by its id, `weights/NAME`. Raises a Refusal (404) if there
        is none, also for malformed ids, so no other file can be named."""
        segment, _, name = checkpoint_id.partition("/")
        kind = _SEGMENTS.get(segment)
        if kind is not None and _RUN_ID.fullmatch(run_id) and NAME.fullmatch(name):
            found = _read(self.checkpoint_folder(run_id) / f"{name}.{kind}.json")
            if found is not None:
                return Checkpoint(**found)
        raise unknown(f"checkpoint {checkpoint_id!r} of run {run_id!r}")

    def sampler_file(self, sampler_id: str) -> Path:
        """Return the path of a sampling session's weights, which may not exist."""
        return self.folder / "samplers" / f"{sampler_id}.safetensors"

    def link_sampler(self, sampler_id: str, source: Path) -> Path:
        """Give a sampling session a hard link to the weights in `source`, which later saves of the
        same name do not change, and return its path. Raises FileNotFoundError."""
        target = self.sampler_file(sampler_id)
        target.unlink(missing_ok=True)
        os.link(source, target)
        return target

    def delete_sampler(self, sampler_id: str) -> None:
        """Delete a sampling session's weights. One without any is no error."""
        self.sampler_file(sampler_id).unlink(missing_ok=True)


def _write(path: Path, record: Mapping[str, Any]) -> None:
    """Write the record as JSON, atomically, over an earlier file. Raises OSError."""
    write_atomically(path, json.dumps(dict(record)))


def _read(path: Path) -> dict[str, Any] | None:
    """Return the object of a JSON file, or None if it is missing. Raises CheckpointError if it
    cannot be read."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return data
