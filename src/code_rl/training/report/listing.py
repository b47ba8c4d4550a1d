"""The runs of a directory, a line for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from code_rl.engine.checkpoints import is_run, read_config
from code_rl.training.runs.recorder import read_metrics
from code_rl.util.errors import CodeRLError
from code_rl.util.files import LOCK, is_held

HEAD = ("run", "state", "recipe", "steps", "held-out Pass@1")


def runs_in(folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the head, and a row for each run in the directory, by name."""
    yield HEAD
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if is_run(path):
            try:
                yield _row(path)
            except CodeRLError:
                yield path.name, "damaged", "-", "-", "-"


def _row(path: Path) -> tuple[str, ...]:
    config, metrics = read_config(path), read_metrics(path)
    steps, most = sum(record["step"] >= 0 for record in metrics), config.get("max_steps", -1)
    state = "stopped"
    if (path / LOCK).exists() and is_held(path / LOCK):
        state = "running"
    elif steps >= most > 0:
        state = "finished"
    held_out: list[Any] = [each["eval/pass@1"] for each in metrics if "eval/pass@1" in each]
    ends = held_out[:1] + held_out[1:][-1:]
    shown = " → ".join(f"{100 * value:.1f}%" for value in ends) or "-"
    return path.name, state, str(config.get("recipe") or "-"), f"{steps}/{most}", shown
