"""Crafted groups: trajectories with given rewards, lengths and endings, without a model or a sandbox."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

from code_rl.grading import Problem, StdinTest, Verdict, VerdictKind
from code_rl.policy import Group, Trajectory, Turn
from code_rl.policy.rewards import Reward
from code_rl.training.config import make_config
from code_rl.training.objective import Objective, objective_of

PROBLEM = Problem(id="p", statement="s", tests=(StdinTest(input="", expected="", public=True),))
REWARD = Reward(lambda trajectory: float(trajectory.text))
"""The reward for being correct stands in the text."""


@cache
def objective(**settings: str | float) -> Objective:
    """The objective of these settings, with the reward that stands in the text."""
    found = objective_of(make_config({name: str(value) for name, value in settings.items()}))
    return replace(found, reward=replace(REWARD, cut_is_wrong=found.reward.cut_is_wrong))


def trajectory(
    reward: float | None, *, correctness: float | None = None, truncated: bool = False, length: int = 3
) -> Trajectory:
    """One turn; a reward below its correctness is one without a program."""
    known = None if reward is None else (correctness if correctness is not None else reward)
    kind = VerdictKind.SANDBOX_ERROR if reward is None else VerdictKind.PASSED if known else VerdictKind.WRONG_ANSWER
    turn = Turn(
        prompt_tokens=(1, 2, 3),
        tokens=tuple(range(10, 10 + length)),
        logprobs=tuple(-0.5 - 0.25 * i for i in range(length)),
        text=str(known),
        truncated=truncated,
        code=None if reward is not None and known is not None and reward < known else "pass",
        verdict=Verdict(kind, 0, 1, "lcb"),
    )
    return Trajectory((turn,))


def group_of(trajectories: Iterable[Trajectory], *, max_tokens: int = 8, policy_step: int = 0) -> Group:
    return Group(PROBLEM, tuple(trajectories), 0.0, max_tokens, policy_step)
