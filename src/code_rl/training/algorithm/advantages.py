"""A(r): how much better each member of a group did than its group. `ESTIMATORS` has the built-in
estimators.

A member without a reward (None) is left out of the baseline and gets no advantage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from code_rl.policy import Trajectory
from code_rl.util.registry import arity, attribute_errors_to, find, require_finite

Estimator = Callable[..., list[float]]
"""A function from the `rewards_G` of members that have one to `advantages_G`. A function with two
parameters gets `(rewards_G, trajectories_G)`."""
DEGENERATE = 1e-8
STD_FLOOR = 1e-6


def compute_advantages(
    rewards: Sequence[float | None],
    estimator: Estimator | None = None,
    trajectories: Sequence[Trajectory] = (),
) -> list[float | None]:
    """Return `advantages_G` for `rewards_G`, by `mean` unless another estimator is given (None:
    `mean`). A member whose reward is None keeps its position and gets None. If all rewards are
    equal, every estimator but `ones` gives zeros and is not called. `trajectories`, one for each
    reward, are for an estimator with two parameters.

    Raises ValueError for a reward that is NaN or infinite. Raises ConfigError for an estimator that
    fails or does not return one finite number per reward.
    """
    known = [reward for reward in rewards if reward is not None]
    require_finite(known, "reward")
    advantages = mean(known)
    if estimator is ones:
        advantages = ones(known)
    elif estimator is not None and not should_skip(advantages):
        made_by = getattr(estimator, "__qualname__", type(estimator).__qualname__)
        name = f"{estimator.__module__}:{made_by}"
        with attribute_errors_to("advantage", name):
            reads = arity("advantage", name, estimator, 1, 2) == 2
            more = [_rewarded(trajectories, rewards)] if reads else []
            advantages = [float(advantage) for advantage in estimator(known.copy(), *more)]
            require_finite(advantages, "advantage")
            if len(advantages) != len(known):
                raise ValueError(
                    f"it gives {len(advantages)} advantages for {len(known)} rewards, not one "
                    "for each"
                )
    each = iter(advantages)
    return [None if reward is None else next(each) for reward in rewards]


def _rewarded(
    trajectories: Sequence[Trajectory], rewards: Sequence[float | None]
) -> list[Trajectory]:
    """Return the trajectories whose reward is known, in order. Raises ValueError unless there is
    one reward for each."""
    pairs = zip(trajectories, rewards, strict=True)
    return [trajectory for trajectory, reward in pairs if reward is not None]


def should_skip(advantages: Sequence[float | None]) -> bool:
    """Return True if no advantage in the group differs from zero by more than 1e-8, or the group is
    empty. Raises ValueError for NaN or infinity."""
    known = [advantage for advantage in advantages if advantage is not None]
    require_finite(known, "advantage")
    return all(abs(advantage) <= DEGENERATE for advantage in known)


def mean(rewards_G: list[float]) -> list[float]:
    """r − mean(r).

    Liu et al. 2025 (Dr. GRPO), arXiv 2503.20783.
    """
    if not rewards_G:
        return []
    baseline = math.fsum(rewards_G) / len(rewards_G)
    return [reward - baseline for reward in rewards_G]


def mean_std(rewards_G: list[float]) -> list[float]:
    """(r − mean(r)) / (s + 1e-6), s the sample standard deviation.

    Shao et al. 2024 (GRPO), arXiv 2402.03300. It needs at least two rewards.
    """
    advantages = mean(rewards_G)
    deviation = math.sqrt(
        math.fsum(advantage**2 for advantage in advantages) / (len(advantages) - 1)
    )
    return [advantage / (deviation + STD_FLOOR) for advantage in advantages]


def leave_one_out(rewards_G: list[float]) -> list[float]:
    """r − mean of the others.

    Ahmadian et al. 2024 (RLOO), arXiv 2402.14740. It needs at least two rewards.
    """
    count = len(rewards_G)
    return [advantage * count / (count - 1) for advantage in mean(rewards_G)]


def maxrl(rewards_G: list[float]) -> list[float]:
    """(r − mean(r)) / mean(max(r, 0)): a rare success counts for more.

    Tajwar et al. 2026 (MaxRL), arXiv 2602.02710. The divisor is at least 1 / G, that of a single
    success. No division if no reward is above 0.
    """
    gain = math.fsum(max(reward, 0.0) for reward in rewards_G) / len(rewards_G)
    divisor = max(gain, 1 / len(rewards_G)) if gain else 1.0
    return [advantage / divisor for advantage in mean(rewards_G)]


def ones(rewards_G: list[float]) -> list[float]:
    """1.

    With `loss=reinforce`, supervised training on the model's own samples: a control.
    """
    return [1.0] * len(rewards_G)


ESTIMATORS: Mapping[str, Estimator] = {
    "mean": mean,
    "mean_std": mean_std,
    "leave_one_out": leave_one_out,
    "maxrl": maxrl,
    "ones": ones,
}


def get_estimator(name: str) -> Estimator:
    """Return the estimator called `name`, or the function `package.module:function`. Raises
    ConfigError for an unknown name, an object that cannot be imported, or a function that does not
    take one or two parameters."""
    found = find("advantage", name, ESTIMATORS)
    arity("advantage", name, found, 1, 2)
    return found
