"""The verb `eval`: benchmarks one after the other, or a comparison of two finished evaluations."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from code_rl.evaluation import (
    COMPARISON,
    SAMPLES,
    EvalConfig,
    EvalView,
    check_benchmarks,
    compare,
    evaluate_benchmarks,
    holds_evaluations,
    make_eval_config,
)
from code_rl.training import new_folder
from code_rl.training.config import published_values, refuse_settings
from code_rl.util.errors import ConfigError
from code_rl.util.files import LOCK, check_out, make_folder, write_atomically
from code_rl.util.outage import noted


def eval_command(given: Mapping[str, Any]) -> int:
    """Run `code-rl eval` with its settings as text. Return 0 if every sample has a decided verdict,
    else 1. Samples and verdicts stay after an interruption, with a note how to go on; a new folder
    without any is deleted. Raises ConfigError for a wrong setting."""
    config = make_eval_config(given)
    if config.compare is not None:
        return _compare(config)
    data = check_benchmarks(config)
    if config.answered_by == "weights":
        refuse_settings(config)
    out = _out(config)
    is_new = config.out is None or not out.exists()
    kept = f"what is there is kept; to go on: the same command with out={out}"
    try:
        with noted(lambda: kept if any(out.rglob(SAMPLES)) else None):
            return asyncio.run(evaluate_benchmarks(config, data, out))
    finally:
        if is_new and out.is_dir() and {entry.name for entry in out.iterdir()} <= {LOCK}:
            shutil.rmtree(out)


def _compare(config: EvalConfig) -> int:
    """Print, and write if `out` is given, the paired difference of two evaluations. Return 0.
    Raises ConfigError unless two folders with evaluations of the same data are named."""
    folders = [Path(part.strip()).expanduser() for part in (config.compare or "").split(",")]
    if len(folders) != 2:
        raise ConfigError(f"compare={config.compare} must be two folders, A,B")
    found = compare(folders[0], folders[1], published_values)
    EvalView().comparison(found)
    if config.out is not None:
        out = make_folder(Path(config.out).expanduser())
        write_atomically(out / COMPARISON, json.dumps(found, indent=2) + "\n")
    return 0


def _out(config: EvalConfig) -> Path:
    """Return the folder of the results: `out=`, which is not made here, or a new one in
    `~/code-rl-logs`. Raises ConfigError if it holds anything but evaluations."""
    if config.out is not None:
        out = Path(config.out).expanduser()
        check_out(out, holds_evaluations, "evaluation, or other things beside some")
        return out
    return new_folder("eval-")
