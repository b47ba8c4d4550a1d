"""R(τ): from a judged trajectory to a number.

| name | reward | |
|---|---|---|
| `correctness` | 1 if every test passes, else 0; plus the format term | default |
| `fraction` | the share of tests passed; plus the format term | all tests run |
| `threshold` | 1 if at least `reward_threshold` of the tests pass, else 0; plus the format term | all tests run |

The format term is −`format_coef` for an answer without a program. A reward of your own is any function from a trajectory to a number, given as
`package.module:function`; an attribute `all_tests = True` on it asks the judge not to stop at the first failure.
A trajectory whose verdict says nothing about the program has no reward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from code_rl.errors import ConfigError
from code_rl.registry import blaming, find
from code_rl.rollouts.trajectory import Trajectory

RewardFunction = Callable[[Trajectory], float]


def correctness(trajectory: Trajectory) -> float:
    """1 when every test passed, else 0."""
    return 1.0 if trajectory.verdict.correct else 0.0


def fraction(trajectory: Trajectory) -> float:
    """The share of tests passed."""
    return trajectory.verdict.passed / trajectory.verdict.total


@dataclass(frozen=True, slots=True)
class Threshold:
    """1 when at least `share` of the tests passed, else 0."""

    share: float

    def __call__(self, trajectory: Trajectory) -> float:
        """1 or 0."""
        return 1.0 if fraction(trajectory) >= self.share else 0.0


@dataclass(frozen=True, slots=True)
class Reward:
    """R = `outcome` · `turn_discount` for each turn after the first − `format_coef` for an answer without a program.

    `all_tests`: the judge is to run every test.
    """

    outcome: RewardFunction = correctness
    format_coef: float = 0.1
    turn_discount: float = 1.0
    all_tests: bool = False

    def of(self, trajectory: Trajectory) -> float | None:
        """The reward of a trajectory; None when there is no verdict about its program. Raises ValueError for one that is not finite."""
        if trajectory.verdict.ours:
            return None
        reward = self.format_coef * (0.0 if trajectory.format_ok else -1.0) + self.earned(trajectory)
        if not math.isfinite(reward):
            raise ValueError(f"the reward of a trajectory is {reward}; it must be a finite number")
        return reward

    def earned(self, trajectory: Trajectory) -> float:
        """The part of the reward that is for the program."""
        earned = float(self.outcome(trajectory))
        return earned if self.turn_discount == 1.0 else earned * self.turn_discount ** (len(trajectory.turns) - 1)


REWARDS: dict[str, RewardFunction] = {"correctness": correctness, "fraction": fraction, "threshold": correctness}


def get_reward(
    name: str,
    *,
    format_coef: float = 0.1,
    threshold: float | None = None,
    turn_discount: float = 1.0,
) -> Reward:
    """The reward called `name`, or with the function that `package.module:object` is. Raises ConfigError."""
    outcome = find("reward", name, REWARDS)
    if not callable(outcome):
        raise ConfigError(f"reward={name} is not callable; it must be a function from a trajectory to a number")
    if name == "threshold":
        if threshold is None or not 0 < threshold <= 1:
            raise ConfigError(f"reward=threshold needs reward_threshold=SHARE, above 0 and at most 1, not {threshold}")
        outcome = Threshold(threshold)
    elif threshold is not None:
        raise ConfigError(f"reward_threshold={threshold} has no effect with reward={name}; choose reward=threshold")
    every = name in ("fraction", "threshold") or bool(getattr(outcome, "all_tests", False))
    if name not in REWARDS:
        outcome = _guarded(name, outcome)
    return Reward(outcome, format_coef, turn_discount, every)


def _guarded(name: str, theirs: RewardFunction) -> RewardFunction:
    def outcome(trajectory: Trajectory) -> float:
        with blaming("reward", name):
            earned = float(theirs(trajectory))
            if not math.isfinite(earned):
                raise ValueError(f"it gave {earned}, which is not a finite number")
        return earned

    return outcome
