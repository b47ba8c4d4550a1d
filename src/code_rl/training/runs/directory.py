"""The run directory: its path, what happens to an existing one, and its settings."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

from code_rl.engine.checkpoints import CONFIG, is_run, read_config
from code_rl.training.config import Config
from code_rl.util.errors import ConfigError
from code_rl.util.settings import make_settings

Behavior = Literal["resume", "ask", "delete", "raise"]
BEGUN = "begun.json"
"""Holds the run's settings until `config.json` is written."""
METRICS = "metrics.jsonl"
LOCK = "lock"
_OF_THE_PLACE = ("log_path", "behavior_if_log_dir_exists")


def default_log_path() -> Path:
    """`~/code-rl-logs/YYYY_MM_DD-HH_MM_SS`, local time."""
    return Path.home() / "code-rl-logs" / datetime.now().astimezone().strftime("%Y_%m_%d-%H_%M_%S")


def begun_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings of a run that was interrupted before its `config.json` was written, or
    None."""
    try:
        begun = json.loads((path / BEGUN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(begun, dict) or is_run(path):
        return None
    return {name: value for name, value in begun.items() if name not in _OF_THE_PLACE}


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
    if path.exists() and not path.is_dir():
        raise ConfigError(f"log_path={path} is a file; give a directory")
    try:
        occupied = path.exists() and any(
            entry.name not in (LOCK, BEGUN) for entry in path.iterdir()
        )
        if occupied:
            _decide(path, behavior_if_exists)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ConfigError(
            f"log_path={path} cannot be used: {error.strerror or error}; choose another directory"
        ) from error
    return path


def _decide(path: Path, behavior: Behavior) -> None:
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
    if not is_run(path):
        if (path / METRICS).is_file():
            raise ConfigError(
                f"log_path={path} holds a run without its {CONFIG}; restore it, or choose "
                "another directory"
            )
        if (path / LOCK).is_file():
            return  # a run that was interrupted before its settings were written
        raise ConfigError(
            f"log_path={path} is not empty and holds no run (no {CONFIG} of one); choose "
            "another directory"
        )
    if behavior == "delete":
        shutil.rmtree(path)


def settings_of(log_path: Path) -> dict[str, Any]:
    """Return the settings of the run in a directory. Raises ConfigError, naming the file, if there
    are none."""
    left_out = ("resolved", *_OF_THE_PLACE)
    settings = {
        name: value for name, value in read_config(log_path).items() if name not in left_out
    }
    try:
        make_settings(Config, settings)
    except ConfigError as error:
        raise ConfigError(
            f"{log_path / CONFIG} is damaged, or of another version of code-rl: {error}; the run "
            "cannot be resumed"
        ) from error
    return settings
