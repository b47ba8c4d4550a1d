"""The verb `train`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from code_rl.engine import BUILT_IN, BackendKind
from code_rl.training import forecast_lines, prepare, train_run


def train_command(given: Mapping[str, Any]) -> int:
    """Run `code-rl train` with the given settings. Return the exit code: 0, or 130 or 143 if a
    signal ended the run. With `dry_run` print the forecast and write nothing. Raises ConfigError
    for a wrong setting, and any CodeRLError of the run."""
    config, log_path, resumes = prepare(given)
    if (
        config.backend == BackendKind.EMBEDDED
        and not resumes
        and "backend" not in given
        and "recipe" not in given
    ):
        model = "the built-in model" if config.model_name == BUILT_IN else config.model_name
        print(
            f"neither TINKER_API_KEY nor TINKER_BASE_URL is set: training {model} on this "
            "machine (backend=embedded)"
        )
    if config.dry_run:
        print("\n".join(forecast_lines(config)))
        return 0
    return asyncio.run(train_run(config, log_path, resumes, signals=True))[0]
