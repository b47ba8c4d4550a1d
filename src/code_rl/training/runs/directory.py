"""The run directory: its path, its lock, the fate of an earlier run in it, and its settings.
`resume` restores its content."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Set
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from code_rl.engine.checkpoints import (
    CONFIG,
    VLLM_LOG,
    is_run,
    read_config,
)
from code_rl.training.config import Config
from code_rl.util.errors import ConfigError
from code_rl.util.files import (
    LOCK,
    TEMPORARY,
    only_writer,
    read_record,
    write_atomically,
    writes,
)
from code_rl.util.settings import make_settings

Behavior = Literal["resume", "ask", "delete", "raise"]
RESUMES: tuple[Behavior, ...] = ("resume", "ask")
BEGUN = "begun.json"
"""Holds the run's settings until `config.json` is written."""
REPLACED = ".replaced"
"""Holds an earlier run until the one that replaces it has started."""
METRICS = "metrics.jsonl"
ROLLOUTS = "rollouts.jsonl"
_OF_THE_PLACE = ("log_path", "behavior_if_log_dir_exists", "resolved")


@dataclass(slots=True)
class Claim:
    """A run directory that this process holds; `resumes` is True if its run goes on. `started` is
    True once the run is assembled, `cleared` once an earlier one is set aside."""

    path: Path
    resumes: bool
    started: bool = False
    cleared: bool = False

    def clear(self) -> None:
        """Move the earlier run, or the files of an interrupted start, to `.replaced`, `config.json`
        first; the lock and `begun.json` stay. A start that fails puts them back. If an interrupted
        start moved files there, its own files of the same names are deleted. Raises OSError."""
        aside = self.path / REPLACED
        self.cleared = True
        entries = {*self.path.iterdir()} - {self.path / name for name in (LOCK, BEGUN, REPLACED)}
        if entries:
            aside.mkdir(mode=0o700, exist_ok=True)
        # The settings first: what is left is then not taken for a run.
        for entry in sorted(entries, key=lambda entry: entry.name != CONFIG):
            if (aside / entry.name).exists():
                _delete(entry)
            else:
                entry.rename(aside / entry.name)

    def begin(self) -> None:
        """Mark the run as started, and delete the files that were set aside, for good. A file that
        cannot be deleted is left."""
        self.started = True
        shutil.rmtree(self.path / REPLACED, ignore_errors=True)


@contextlib.contextmanager
def claimed(log_path: Path | None, behavior: Behavior, resumes: bool) -> Iterator[Claim]:
    """Make the run directory (None: a new one with the default name), lock it for the block, and
    decide about its earlier run: `behavior` says how, and the settings were read to resume it if
    `resumes`. Nothing of it is removed before `Claim.clear`.

    After a start that fails, the directory is as it was before, but for vLLM's log; a new one is
    deleted. Raises ConfigError if the directory is in use, if a run began in it meanwhile, or as
    `check_log_dir` does.
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
        begun = (path / BEGUN).read_text("utf-8") if (path / BEGUN).exists() else None
        try:
            yield claim
        except BaseException as error:
            ends = isinstance(error, Exception) or (path / REPLACED).exists()
            if ends and not (claim.started or claim.resumes):
                with contextlib.suppress(OSError):
                    _undo(claim, made, begun)
            raise


def _undo(claim: Claim, made: bool, begun: str | None) -> None:
    """Remove the files of a start that failed, and the directory if it was `made` for it. Put back
    the files that were set aside, and the settings `begun` of an interrupted start (None: there was
    none). vLLM's log stays in an old directory. Raises OSError, which the caller ignores."""
    path, aside = claim.path, claim.path / REPLACED
    replaced = aside.exists()
    if made or claim.cleared or replaced:
        clear(path, {VLLM_LOG} if made else {VLLM_LOG, LOCK, REPLACED})
    (path / BEGUN).unlink(missing_ok=True)
    if made:
        path.rmdir()
    elif replaced:
        # The settings last: with them the run is whole again.
        for entry in sorted(aside.iterdir(), key=lambda entry: entry.name == CONFIG):
            entry.rename(path / entry.name)
        aside.rmdir()
    elif begun is not None:
        write_atomically(path / BEGUN, begun)


def new_folder(prefix: str = "") -> Path:
    """Make the directory `~/code-rl-logs/{prefix}YYYY_MM_DD-HH_MM_SS` (local time), with `-2`, `-3`
    … at the end if it exists, and return it. Raises ConfigError if it cannot be written."""
    now = datetime.now().astimezone().strftime("%Y_%m_%d-%H_%M_%S")
    path = first = Path.home() / "code-rl-logs" / f"{prefix}{now}"
    number = 1
    while not _make(path):
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def clear(path: Path, kept: Set[str] = frozenset({LOCK, BEGUN})) -> None:
    """Delete a run, the settings that make it one first: if this is interrupted, what is left is
    not taken for a run. The entries named in `kept` stay: by default the lock, which a process may
    hold, and the settings of the next run. The caller holds the lock or knows that no run is in
    progress. Raises OSError."""
    (path / CONFIG).unlink(missing_ok=True)
    for entry in {*path.iterdir()} - {path / name for name in kept}:
        _delete(entry)


def _delete(path: Path) -> None:
    """Delete a file, a folder, or a link."""
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def begun_settings(path: Path, behavior: Behavior, recipe: str | None) -> dict[str, Any] | None:
    """Return the settings, without those of the directory, of a start that was interrupted before
    its `config.json` was written. None if there is none that can be read, if `behavior` is not
    `resume` or `ask`, or if `recipe` (None: none given) is another one than that start had."""
    try:
        begun = json.loads((path / BEGUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(begun, dict) or recipe not in (None, begun.get("recipe")):
        return None
    return _kept(begun) if behavior in RESUMES else None


def _kept(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a resumed run takes over: all but `log_path`,
    `behavior_if_log_dir_exists` and the record `resolved`."""
    return {name: value for name, value in settings.items() if name not in _OF_THE_PLACE}


def check_log_dir(log_dir: str | Path, behavior_if_exists: Behavior = "ask") -> Path:
    """Make a directory ready for a run and return it, with `~` expanded. `behavior_if_exists`
    decides about an earlier run: `resume` keeps it, `delete` deletes it at once, `raise` refuses
    it, and `ask` asks on the terminal. The directory is not locked.

    Raises ConfigError if the path is a file or cannot be written, if it holds an earlier run that
    is not to be touched, if it holds something that is not a run, or for an unknown behavior.
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
    """Make a directory with its parents, for its owner only, and return True if it is new. An
    existing one is tested with a temporary file. Raises ConfigError if it cannot be written."""
    with writes(path, "directory", setting="log_path"):
        try:
            path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            tempfile.TemporaryFile(dir=path).close()
            return False
        return True


def _holds_run(path: Path) -> bool:
    """Return True if a directory holds an earlier run, also one with damaged settings, False if it
    is free: missing, empty, or left by a start that was interrupted or failed. Raises ConfigError
    if it holds anything else or cannot be read."""
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
    """Return True if the run in a directory is to be deleted, False if it goes on; nothing is
    deleted here. `ask` reads the answer from the terminal. Raises ConfigError if the run is not to
    be touched: `raise`, another answer, or no terminal."""
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
    """Return the records of `metrics.jsonl` in the order of the file, an empty list if there is
    none. Damaged lines and records without an integer `step` are left out."""
    records = read_record(log_path / METRICS)
    return [record for record in records if isinstance(record.get("step"), int)]


def settings_of(log_path: Path) -> dict[str, Any]:
    """Return the settings of the run in a directory, without those of the directory itself. Raises
    ConfigError, naming the file, if it cannot be read or its settings are not valid."""
    settings = _kept(read_config(log_path))
    try:
        make_settings(Config, settings)
    except ConfigError as error:
        raise ConfigError(
            f"{log_path / CONFIG} is damaged, or of another version of code-rl: {error}; restore "
            "it, or choose another directory"
        ) from error
    return settings
