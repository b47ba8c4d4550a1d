"""x ~ problems: which problems a batch has, and the seeds of their draws. A function of the
settings alone, so that any step is found again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from code_rl.data.order import ProblemOrder
from code_rl.grading.problem import Problem
from code_rl.policy.sample import derive_seed
from code_rl.util.errors import DataError

MAX_TRIES = 1000
"""Problems looked at, one after the other, for one whose prompt fits."""


@dataclass(frozen=True, slots=True)
class SampledProblem:
    """A problem, the length of its prompt in tokens, the seed of its draws; `replaced` names one
    whose prompt did not fit."""

    problem: Problem
    prompt_tokens: int
    seed: int
    replaced: str | None = None


class ProblemSampler:
    """Batches from the problem order; a problem whose prompt (of so many tokens by `length`) is not
    below `limit` gives its place to another, drawn at random."""

    def __init__(
        self,
        order: ProblemOrder,
        seed: int,
        prompts: int,
        resamples: int,
        length: Callable[[Problem], int],
        limit: int,
    ) -> None:
        self._order, self._seed, self._prompts, self._most = order, seed, prompts, resamples
        self._refills = ProblemOrder(order.problems, derive_seed(seed, "refill"))
        self._length, self._limit = length, limit
        self.at = lru_cache(maxsize=4 * prompts * (resamples + 1))(self._at)

    def batch(self, step: int, attempt: int = 0) -> list[SampledProblem]:
        """The problems of a step, one for each place; of those that a place may be filled with
        again, number `attempt`."""
        return [self.at(step, slot, attempt) for slot in range(self._prompts)]

    def longest(self, step: int) -> int:
        """The longest prompt that a step can have, refills included, in tokens."""
        return max(
            chosen.prompt_tokens for n in range(self._most + 1) for chosen in self.batch(step, n)
        )

    def _at(self, step: int, slot: int, attempt: int) -> SampledProblem:
        """The problem of a place: at first (`attempt` 0), or when it is filled again for that
        time."""
        if attempt == 0:
            (problem,) = self._order.batch(step * self._prompts + slot, 1)
            seed = derive_seed(self._seed, "sample", step, slot)
        else:
            (problem,) = self._refills.batch(
                (step * self._prompts + slot) * self._most + attempt - 1, 1
            )
            seed = derive_seed(self._seed, "refill", step, slot, attempt)
        length, replaced = self._length(problem), None
        for number in range(MAX_TRIES):
            if length < self._limit:
                return SampledProblem(problem, length, seed, replaced)
            replaced = replaced or problem.id
            problems = self._order.problems
            problem = problems[derive_seed(seed, "instead", number) % len(problems)]
            length = self._length(problem)
        raise DataError(
            f"none of {MAX_TRIES} prompts is below {self._limit} tokens, which is what the "
            "model's context leaves beside an answer "
            "and the tokens of overlong=penalty; choose another dataset or model, or fewer of these"
        )
