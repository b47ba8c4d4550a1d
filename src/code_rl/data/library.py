"""`code_rl.load_problems`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from code_rl.data.load import find_data, load_train_problems
from code_rl.data.order import subsample
from code_rl.grading import Problem
from code_rl.grading.sandbox import shared_executor
from code_rl.util.concurrency import wait_for
from code_rl.util.errors import ConfigError


def load_problems(dataset: str | Path, limit: int | None = None) -> Sequence[Problem]:
    """Return the problems that `dataset=` would train on: `builtin`, a name, a hub id, files or a
    folder. `limit` chooses a subset, always the same.

    Each problem is read from disk on access. Raises ConfigError for an unknown name, DataError for
    unusable files.
    """
    if limit is not None and limit < 1:
        raise ConfigError(f"limit={limit} must be at least 1, or None for all problems")
    data = find_data(str(dataset), None, evaluates=False)
    problems = wait_for(shared_executor.run(lambda executor: load_train_problems(data, executor)))
    return subsample(problems, -1 if limit is None else limit)
