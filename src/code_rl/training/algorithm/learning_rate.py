"""The learning rate of a step: linear warm-up, then constant, or a decay to 0 at the last step (SGDR's half cosine, or a line)."""

from __future__ import annotations

import math
from typing import Literal

LearningRateSchedule = Literal["constant", "linear", "cosine"]


def learning_rate(
    base: float, step: int, *, schedule: LearningRateSchedule, warmup_steps: int, max_steps: int
) -> float:
    """The rate of `step` (0: the first), never above `base`; it reaches `base` with the last step of the warm-up, and 0 at `max_steps`.

    A decay needs `warmup_steps` < `max_steps`; a constant rate looks at neither's relation nor at `max_steps`.
    """
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    if schedule == "constant":
        return base
    left = max(max_steps - step, 0) / (max_steps - warmup_steps)
    return base * (left if schedule == "linear" else (1 - math.cos(math.pi * left)) / 2)
