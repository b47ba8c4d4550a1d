"""TRL: `GRPOTrainer(reward_funcs=code_reward, train_dataset=Dataset.from_list([to_row(problem) for
problem in problems]))`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from code_rl.integrations.rows import to_row, verdict_of

__all__ = ["code_reward", "to_row"]


async def code_reward(
    completions: Sequence[str | Sequence[Mapping[str, Any]]],
    problem: Sequence[str],
    log_metric: Callable[[str, float], None] | None = None,
    **columns: Any,  # noqa: ARG001 - TRL's
) -> list[float | None]:
    """Return 1.0 for an answer whose program passes every test, 0.0 for one that fails, None
    without a verdict, in the order of `completions`. `problem` is the column of `to_row`.

    TRL leaves a completion without a reward out of its group's baseline and gives it no advantage;
    `unscored`, given to `log_metric` (None: not logged), is their share. Raises DataError for a row
    without a problem.
    """
    verdicts = await asyncio.gather(
        *(verdict_of(*pair) for pair in zip(problem, completions, strict=True))
    )
    if log_metric is not None and verdicts:
        log_metric("unscored", sum(verdict.undecided for verdict in verdicts) / len(verdicts))
    return [None if verdict.undecided else float(verdict.correct) for verdict in verdicts]
