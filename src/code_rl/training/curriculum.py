"""The curriculum: how likely a problem is to be sampled, by how often the policy has solved it.

A curriculum is a function of one problem's `History`, which depends only on the groups that were
trained; a resumed run rebuilds it from `rollouts.jsonl`. With `max_steps_off_policy=K` the batch of
step n is sampled by the groups of steps before n − K, which are trained when its sampling begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from code_rl.data import all_keys
from code_rl.grading import Problem, VerdictKind
from code_rl.policy import derive_seed
from code_rl.util.errors import ConfigError
from code_rl.util.files import read_record
from code_rl.util.registry import attribute_errors_to, find

NEWEST = 0.5
"""The weight of the newest group in the running solve rate, after the first group."""
TOO_HARD, TOO_EASY, PATIENCE, RETIRED_STEPS, LEAST = 0.125, 0.875, 2, 25, 0.05


@dataclass(frozen=True, slots=True)
class History:
    """One problem's history: the number of judged groups, the running solve rate (½ before the
    first group), and the step of the last group."""

    groups: int = 0
    solve_rate: float = 0.5
    last_step: int = -1

    def after(self, step: int, solved: float) -> History:
        """Return the history with one more group, of which the share `solved` was right."""
        newest = NEWEST if self.groups else 1.0
        rate = self.solve_rate + newest * (solved - self.solve_rate)
        return History(self.groups + 1, rate, step)


Curriculum = Callable[[History, int], float]
"""A function from a problem's history and a step to the problem's weight; 0 retires it for that
step."""
Outcome = tuple[str, float]
"""(problem id, share of right answers among those of one group with a verdict)"""


def uniform(history: History, step: int) -> float:
    """Every problem once per epoch, in an order shuffled by the seed."""
    del history, step
    return 1.0


def solve_rate(history: History, step: int) -> float:
    """p · (1 − p), at least 0.05, with p the running solve rate. After two groups a problem with p
    at most 0.125 or at least 0.875 is retired for 25 steps.

    Foster et al. 2025 (Learning to Reason at the Frontier of Learnability), arXiv 2502.12272.
    """
    p = history.solve_rate
    retired = history.groups >= PATIENCE and not TOO_HARD < p < TOO_EASY
    if retired and step - history.last_step <= RETIRED_STEPS:
        return 0.0
    return max(p * (1 - p), LEAST)


CURRICULA: Mapping[str, Curriculum] = {"uniform": uniform, "solve_rate": solve_rate}


def get_curriculum(name: str) -> Curriculum:
    """Return the curriculum called `name`, or the function `package.module:function`. Raises
    ConfigError for an unknown name, and for a curriculum that gives a new problem no weight."""
    curriculum = find("curriculum", name, CURRICULA)
    if weight_of(name, curriculum, History(), 0) == 0:
        raise ConfigError(
            f"curriculum={name} gives 0 for a problem that was never drawn; give more"
        )
    return curriculum


def weight_of(name: str, curriculum: Curriculum, history: History, step: int) -> float:
    """Return the weight that a curriculum gives. Raises ConfigError unless it is finite and at
    least 0."""
    with attribute_errors_to("curriculum", name):
        weight = float(curriculum(history, step))
        if not 0 <= weight < math.inf:
            raise ValueError(f"it gives {weight}; a weight is a finite number of at least 0")
    return weight


def outcome(problem_id: str, kinds: Iterable[VerdictKind]) -> list[Outcome]:
    """Return the outcome of one group as a list of one, or an empty list if no verdict is
    decided."""
    decided = [kind is VerdictKind.PASSED for kind in kinds if not kind.undecided]
    return [(problem_id, sum(decided) / len(decided))] if decided else []


def logged_outcomes(rollouts: Path) -> dict[int, list[Outcome]]:
    """Return the outcomes of each step in `rollouts.jsonl`."""
    found: dict[int, list[Outcome]] = {}
    for line in read_record(rollouts):
        kinds = (VerdictKind(each["verdict"]) for each in line["completions"])
        found.setdefault(line["step"], []).extend(outcome(line["problem_id"], kinds))
    return found


class WeightedOrder:
    """Samples problems with a curriculum's weights. `lag` is K; steps are sampled in order."""

    def __init__(
        self, problems: Sequence[Problem], name: str, seed: int, prompts: int, lag: int
    ) -> None:
        self._problems, self._name, self._curriculum = problems, name, get_curriculum(name)
        self._seed, self._prompts, self._lag = seed, prompts, lag
        self._ids = [key for key, _ in all_keys(problems)]
        self._histories: dict[str, History] = {}
        self._waiting: dict[int, list[Outcome]] = {}
        self._weights: dict[int, npt.NDArray[np.float64]] = {}
        self._retired: dict[int, int] = {}
        self._drawn: dict[int, npt.NDArray[np.int64]] = {}

    def observe(self, step: int, found: Sequence[Outcome]) -> None:
        """Record the outcomes of a trained step. Batches that have already begun do not use
        them."""
        self._waiting.setdefault(step, []).extend(found)

    def problem(self, step: int, slot: int, attempt: int) -> Problem:
        """Return the problem of a slot. At `attempt` 0 the problems of a batch are all
        different."""
        weights = self.weights(step)
        if attempt == 0:
            return self._problems[int(self._drawn[step][slot])]
        seed = derive_seed(self._seed, "curriculum", step, slot, attempt)
        return self._problems[int(np.random.default_rng(seed).choice(len(weights), p=weights))]

    def weights(self, step: int) -> npt.NDArray[np.float64]:
        """Return each problem's probability in the batch of a step, computed once when the batch
        begins. Retired problems return early if too few others are left for a batch."""
        if step not in self._weights:
            self._absorb(step - self._lag)
            size, unseen = len(self._ids), self._weight(History(), step)
            seen = {key: self._weight(history, step) for key, history in self._histories.items()}
            weights = np.array([seen.get(key, unseen) for key in self._ids])
            weights /= weights.max() or 1.0
            self._retired[step] = int(np.count_nonzero(weights == 0))
            if size - self._retired[step] < min(self._prompts, size):
                weights = np.where(weights > 0, weights, LEAST)
            self._weights[step] = weights / weights.sum()
            rng = np.random.default_rng(derive_seed(self._seed, "curriculum", step))
            repeats = size < self._prompts
            self._drawn[step] = rng.choice(size, self._prompts, repeats, self._weights[step])
            for past in (self._weights, self._retired, self._drawn):
                past.pop(step - self._lag - 2, None)
        return self._weights[step]

    def measured(self, step: int) -> dict[str, float]:
        """Return the metrics of the batch of a step."""
        self.weights(step)
        rates = [each.solve_rate for each in self._histories.values()]
        return {
            "curriculum/seen": len(self._histories),
            "curriculum/retired": self._retired[step],
            **({"curriculum/solve_rate": math.fsum(rates) / len(rates)} if rates else {}),
        }

    def _absorb(self, until: int) -> None:
        for step in sorted(each for each in self._waiting if each < until):
            for key, solved in self._waiting.pop(step):
                self._histories[key] = self._histories.get(key, History()).after(step, solved)

    def _weight(self, history: History, step: int) -> float:
        return weight_of(self._name, self._curriculum, history, step)
