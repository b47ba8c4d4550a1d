"""The loop's evaluations hold a bounded number of problems, however large a split is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from code_rl.evaluation.held_out import IN_FLIGHT, evaluate
from code_rl.grading import Problem
from code_rl.policy import Group, Sampling
from tests.training.rollout_support import PROBLEM, group_of, trajectory


class Answering:
    """Every second problem is solved, and the groups in flight are counted."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.seeds: list[int] = []

    async def roll_out(self, problem: Problem, count: int, sampling: Sampling, seed: int, *kept: object) -> Group:
        self.now += 1
        self.most = max(self.most, self.now)
        self.seeds.append(seed)
        await asyncio.sleep(0.0001 * (seed % 7))
        self.now -= 1
        return group_of([trajectory(float(problem.id == "right"))] * count)


class Loading(Sequence[Problem]):
    """A split on disk: problems exist only when asked for."""

    def __init__(self, size: int, policy: Answering) -> None:
        self._size, self._policy, self.ahead = size, policy, 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index):
        self.ahead = max(self.ahead, self._policy.now + 1)
        return Problem(id="right" if index % 2 else "wrong", statement="s", tests=PROBLEM.tests)


def test_a_large_split_is_asked_a_part_at_a_time_and_every_group_counts():
    policy: Any = Answering()
    splits = {"large": Loading(3 * IN_FLIGHT, policy), "small": Loading(8, policy)}
    results = asyncio.run(evaluate(policy, splits, samples=2, sampling=Sampling(8), seed=0))
    assert policy.most == splits["large"].ahead == IN_FLIGHT
    assert len(policy.seeds) == 2 * (3 * IN_FLIGHT + 8)
    assert {name: result.greedy.problems for name, result in results.items()} == {"large": 3 * IN_FLIGHT, "small": 8}
    assert all(f.pass_at[1].value == 0.5 for result in results.values() for f in (result.greedy, result.sampled))
