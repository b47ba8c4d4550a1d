"""Logging of settings and metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from code_rl.training.runs import logs
from code_rl.training.runs.logs import MultiplexLogger
from code_rl.training.runs.trackers import read_log_to

__all__ = ["MultiplexLogger", "setup_logging"]


def setup_logging(
    log_dir: str | Path, wandb_project: str | None = None, config: Mapping[str, Any] | None = None
) -> MultiplexLogger:
    """Log to the console and into `log_dir` (`config.json`, `metrics.jsonl`, `logs.log`); to
    Weights & Biases where a project is named.

    Raises ConfigError when a project is named and wandb is not installed. Without a key wandb
    records offline.
    """
    if wandb_project:
        os.environ["WANDB_PROJECT"] = wandb_project
    return logs.setup_logging(
        log_dir, config, read_log_to("wandb") if wandb_project else (), console=True
    )
