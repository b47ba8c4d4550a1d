"""Logging of settings and metrics."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import chz

from code_rl.training.runs import metrics_log
from code_rl.training.runs.metrics_log import MultiplexLogger, read_log_to
from code_rl.util.redaction import without_keys

__all__ = ["MultiplexLogger", "setup_logging"]


def setup_logging(
    log_dir: str | Path, wandb_project: str | None = None, config: Any = None
) -> MultiplexLogger:
    """Log to the console and into `log_dir` (`config.json`, `metrics.jsonl`, `logs.log`), and to
    Weights & Biases if a project is named, in whose variable WANDB_PROJECT it is put. `config` is a
    mapping, a chz object or a dataclass; None writes no settings.

    Raises ConfigError if a project is named and wandb is not installed. Without a key wandb records
    offline.
    """
    if wandb_project:
        os.environ["WANDB_PROJECT"] = wandb_project
    return metrics_log.setup_logging(
        log_dir, _settings(config), read_log_to("wandb") if wandb_project else (), console=True
    )


def _settings(config: Any) -> Mapping[str, Any] | None:
    """Return settings as a mapping, with *** for every key; None stays None. Raises TypeError for
    anything but a mapping, a chz object or a dataclass."""
    if config is None:
        return None
    if not isinstance(config, Mapping):
        config = chz.asdict(config) if chz.is_chz(config) else dataclasses.asdict(config)
    return without_keys(config)
