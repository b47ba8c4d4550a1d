"""x ~ problems: the problems of each batch, and the seeds of their samples. Both depend only on the
settings and, with a curriculum, on earlier groups, so any step can be reproduced.

Canaries are impossible problems beside a batch, which are never trained on. The idea is
ImpossibleBench's (arXiv 2510.20270): an answer that passes was rewarded without being right, so
there is a leak or a hack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from code_rl.data import ProblemOrder
from code_rl.grading import CallTest, Compare, Problem, StdinTest, TestCase
from code_rl.policy import derive_seed
from code_rl.training.curriculum import WeightedOrder, logged_outcomes, outcome
from code_rl.util.errors import DataError

if TYPE_CHECKING:
    from code_rl.training.config import Config
    from code_rl.training.objective import ScoredGroup

MAX_TRIES = 1000
"""The most problems tried in search of one whose prompt fits."""


@dataclass(frozen=True, slots=True)
class SampledProblem:
    """A problem, the length of its prompt in tokens, and the seed of its samples. `replaced` is the
    id of the problem that it replaces because that prompt did not fit, or None."""

    problem: Problem
    prompt_tokens: int
    seed: int
    replaced: str | None


class ProblemSampler:
    """Batches from the problem order. A problem whose prompt has `limit` tokens or more (measured
    by `length`) is replaced by a random one."""

    def __init__(
        self,
        order: ProblemOrder,
        config: Config,
        prompts: int,
        length: Callable[[Problem], int],
        limit: int,
    ) -> None:
        """Take the problem order; `prompts` is P, and `length` returns the tokens of a problem's
        prompt. Raises ConfigError for a curriculum that cannot be loaded."""
        self._order, self._prompts, self._length, self._limit = order, prompts, length, limit
        self._seed, self._most, self._canary = config.seed, config.dynamic_sampling, config.canary
        self._refills = ProblemOrder(order.problems, derive_seed(config.seed, "refill"))
        self._weighted = None
        if config.curriculum != "uniform":
            self._weighted = WeightedOrder(
                order.problems,
                config.curriculum,
                config.seed,
                prompts,
                config.max_steps_off_policy,
            )
        self.at = lru_cache(maxsize=4 * prompts * (self._most + 1))(self._at)

    def batch(self, step: int, attempt: int = 0) -> list[SampledProblem]:
        """Return the problem of each slot of a step, in slot order, the same at every call. With
        `attempt` above 0, return the problems of that resampling of the slots. Raises DataError if
        no prompt fits. With a curriculum, steps are asked for in ascending order."""
        return [self.at(step, slot, attempt) for slot in range(self._prompts)]

    def observe(self, step: int, groups: Sequence[ScoredGroup]) -> None:
        """Record how a trained step's groups were solved, for batches that begin later. Does
        nothing without a curriculum."""
        if self._weighted is not None:
            for group in (scored.group for scored in groups):
                kinds = (each.verdict.kind for each in group.trajectories)
                self._weighted.observe(step, outcome(group.problem.id, kinds))

    def recall(self, rollouts: Path) -> None:
        """Record the steps that a resumed run has in its `rollouts.jsonl`, once, before its first
        batch. Does nothing without a curriculum or the file."""
        if self._weighted is not None and rollouts.exists():
            for step, found in logged_outcomes(rollouts).items():
                self._weighted.observe(step, found)

    def measured(self, step: int) -> dict[str, float]:
        """Return the curriculum's metrics as the batch of a step begins; empty without a
        curriculum."""
        return {} if self._weighted is None else self._weighted.measured(step)

    def canaries(self, step: int) -> list[SampledProblem]:
        """Return the impossible problems beside a step's batch, `canary` × P on average, the same
        at every call. Raises DataError if no prompt fits."""
        drawn = derive_seed(self._seed, "canaries", step) / 2**31
        found = []
        for number in range(math.floor(self._canary * self._prompts + drawn)):
            seed = derive_seed(self._seed, "canary", step, number)
            chosen = self._fitting(self._any(seed, "of"), seed)
            found.append(replace(chosen, problem=impossible(chosen.problem, seed)))
        return found

    def longest(self, step: int) -> int:
        """Return the longest prompt that a step can have, resampled problems and canaries included,
        in tokens. Raises DataError if no prompt fits."""
        batches = [self.batch(step, n) for n in range(self._most + 1)] + [self.canaries(step)]
        return max(chosen.prompt_tokens for batch in batches for chosen in batch)

    def _problem(self, step: int, slot: int, attempt: int) -> Problem:
        """Return the problem of a slot, whatever the length of its prompt: the next of the epoch's
        order at attempt 0, and of another order of the same problems later; with a curriculum, a
        weighted one."""
        position = step * self._prompts + slot
        if self._weighted is not None:
            return self._weighted.problem(step, slot, attempt)
        if attempt == 0:
            return self._order.batch(position, 1)[0]
        return self._refills.batch(position * self._most + attempt - 1, 1)[0]

    def _at(self, step: int, slot: int, attempt: int) -> SampledProblem:
        """Return the problem of a slot at a given attempt (0 is the first), with its seed. `at`
        caches it. Raises DataError if no prompt fits."""
        at = ("sample", step, slot) if attempt == 0 else ("refill", step, slot, attempt)
        seed, problem = derive_seed(self._seed, *at), self._problem(step, slot, attempt)
        return self._fitting(problem, seed)

    def _any(self, seed: int, *names: object) -> Problem:
        """Return one of all problems, chosen by the seed and the names alone."""
        problems = self._order.problems
        return problems[derive_seed(seed, *names) % len(problems)]

    def _fitting(self, problem: Problem, seed: int) -> SampledProblem:
        """Return the problem if its prompt is below the limit, else the first problem drawn by
        `seed` whose prompt is. Raises DataError after 1,000 tries."""
        length, replaced, looked_at = self._length(problem), None, set[str]()
        for number in range(MAX_TRIES):
            looked_at.add(problem.id)
            if length < self._limit:
                return SampledProblem(problem, length, seed, replaced)
            replaced = replaced or problem.id
            problem = self._any(seed, "instead", number)
            length = self._length(problem)
        raise DataError(
            f"none of {len(looked_at)} problems tried, of {len(self._order.problems)}, has a "
            f"prompt below {self._limit} tokens, the context without the tokens of "
            "overlong=penalty:TOKENS, if that is given; choose another dataset or model"
        )


def impossible(problem: Problem, seed: int) -> Problem:
    """Return a problem with the same public view that no deterministic program solves; equal seeds
    give equal problems.

    Every hidden test gets another expected output. The first test is added again as a hidden test,
    also with another expected output. Outputs are compared by the default rule, since a checker of
    the problem's own might accept them.
    """
    tests = [
        test if test.public else _altered(test, derive_seed(seed, "test", index))
        for index, test in enumerate(problem.tests)
    ]
    again = replace(_altered(problem.tests[0], derive_seed(seed, "again")), public=False)
    return replace(problem, tests=(*tests, again), compare=Compare())


def _altered(test: TestCase, number: int) -> TestCase:
    """Return the same test with `number` added to its expected output, as a further line or
    element, so that the right answer is wrong. A test that expects an exception expects that output
    instead."""
    if isinstance(test, StdinTest):
        return replace(test, expected=f"{test.expected}\n{number}")
    if isinstance(test, CallTest):
        return replace(test, expected=[test.expected, number], raises=None)
    return replace(test, expected=(*test.expected[:-1], [test.expected[-1], number]))
