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
from typing import NamedTuple

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
        """Return the history with one more group, of which the share `solved` (0 to 1) was right;
        this one stays as it is. The first group sets the running rate, each later one counts for
        half of it."""
        newest = NEWEST if self.groups else 1.0
        rate = self.solve_rate + newest * (solved - self.solve_rate)
        return History(self.groups + 1, rate, step)


Curriculum = Callable[[History, int], float]
"""A function from a problem's history and a step to the problem's weight; 0 retires it for that
step."""
Outcome = tuple[str, float]
"""(problem id, share of right answers among those of one group with a verdict)"""


def uniform(history: History, step: int) -> float:
    """Return the weight 1 for every problem. With `curriculum=uniform` a run does not sample by
    weight: each problem is drawn once per epoch, in an order shuffled by the seed."""
    del history, step
    return 1.0


def solve_rate(history: History, step: int) -> float:
    """Return the weight p · (1 − p), at least 0.05, with p the running solve rate. After two groups
    a problem with p at most 0.125 or at least 0.875 has weight 0 for the 25 steps after its last
    group.

    Foster et al. 2025 (Learning to Reason at the Frontier of Learnability), arXiv 2502.12272.
    """
    p = history.solve_rate
    retired = history.groups >= PATIENCE and not TOO_HARD < p < TOO_EASY
    if retired and step - history.last_step <= RETIRED_STEPS:
        return 0.0
    return max(p * (1 - p), LEAST)


CURRICULA: Mapping[str, Curriculum] = {"uniform": uniform, "solve_rate": solve_rate}


def get_curriculum(name: str) -> Curriculum:
    """Return the curriculum called `name`, or the function `package.module:function`, after one
    call for a new problem. Raises ConfigError for an unknown name, and for a curriculum that fails
    or gives a new problem weight 0."""
    curriculum = find("curriculum", name, CURRICULA)
    if weight_of(name, curriculum, History(), 0) == 0:
        raise ConfigError(
            f"curriculum={name} gives 0 for a problem that was never drawn; give more"
        )
    return curriculum


def weight_of(name: str, curriculum: Curriculum, history: History, step: int) -> float:
    """Return the weight that a curriculum gives. Raises ConfigError, with the curriculum's `name`,
    if it fails or the weight is not finite and at least 0."""
    with attribute_errors_to("curriculum", name):
        weight = float(curriculum(history, step))
        if not 0 <= weight < math.inf:
            raise ValueError(f"it gives {weight}; a weight is a finite number of at least 0")
    return weight


def outcome(problem_id: str, kinds: Iterable[VerdictKind]) -> list[Outcome]:
    """Return the outcome of one group as a list of one, or an empty list if no verdict is decided.
    `kinds` are the verdicts of its members."""
    decided = [kind is VerdictKind.PASSED for kind in kinds if not kind.undecided]
    return [(problem_id, sum(decided) / len(decided))] if decided else []


def logged_outcomes(rollouts: Path) -> dict[int, list[Outcome]]:
    """Return the outcomes of each step in `rollouts.jsonl`, in its order, as `observe` got them;
    damaged lines are left out."""
    found: dict[int, list[Outcome]] = {}
    for line in read_record(rollouts):
        kinds = (VerdictKind(each["verdict"]) for each in line["completions"])
        found.setdefault(line["step"], []).extend(outcome(line["problem_id"], kinds))
    return found


class Draw(NamedTuple):
    """The batch of a step: each problem's probability, the number of retired problems, and the
    problem of each slot."""

    weights: npt.NDArray[np.float64]
    retired: int
    slots: npt.NDArray[np.int64]


class WeightedOrder:
    """Samples problems with a curriculum's weights. `lag` is K; steps are sampled in order."""

    def __init__(
        self, problems: Sequence[Problem], name: str, seed: int, prompts: int, lag: int
    ) -> None:
        """Load the curriculum called `name`; `prompts` is the number of slots of a batch. Raises
        ConfigError if it cannot be loaded."""
        self._problems, self._name, self._curriculum = problems, name, get_curriculum(name)
        self._seed, self._prompts, self._lag = seed, prompts, lag
        self._ids = [key for key, _ in all_keys(problems)]
        self._histories: dict[str, History] = {}
        self._waiting: dict[int, list[Outcome]] = {}
        self._draws: dict[int, Draw] = {}

    def observe(self, step: int, found: Sequence[Outcome]) -> None:
        """Record the outcomes of a trained step, at any time before batch `step` + `lag` + 1 is
        drawn. Batches that have already begun do not use them."""
        self._waiting.setdefault(step, []).extend(found)

    def problem(self, step: int, slot: int, attempt: int) -> Problem:
        """Return the problem of a slot, the same at every call. At `attempt` 0 the problems of a
        batch are all different, unless there are fewer than slots; later ones are drawn alone.
        Raises ConfigError as `weight_of` does."""
        draw = self.draw(step)
        if attempt == 0:
            return self._problems[int(draw.slots[slot])]
        seed = derive_seed(self._seed, "curriculum", step, slot, attempt)
        rng = np.random.default_rng(seed)
        return self._problems[int(rng.choice(len(self._ids), p=draw.weights))]

    def draw(self, step: int) -> Draw:
        """Return the batch of a step, computed once when it begins from the groups of steps before
        step − `lag`. Steps are drawn in ascending order; a draw is kept for `lag` + 2 steps.
        Retired problems return early if too few others are left for a batch. Raises ConfigError as
        `weight_of` does."""
        if step not in self._draws:
            for earlier in sorted(each for each in self._waiting if each < step - self._lag):
                for key, solved in self._waiting.pop(earlier):
                    self._histories[key] = self._histories.get(key, History()).after(
                        earlier, solved
                    )
            size, unseen = len(self._ids), self._weight(History(), step)
            seen = {key: self._weight(history, step) for key, history in self._histories.items()}
            weights = np.array([seen.get(key, unseen) for key in self._ids])
            weights /= weights.max() or 1.0
            retired = int(np.count_nonzero(weights == 0))
            if size - retired < min(self._prompts, size):
                weights = np.where(weights > 0, weights, LEAST)
            weights /= weights.sum()
            rng = np.random.default_rng(derive_seed(self._seed, "curriculum", step))
            slots = rng.choice(size, self._prompts, size < self._prompts, weights)
            self._draws[step] = Draw(weights, retired, slots)
            self._draws.pop(step - self._lag - 2, None)
        return self._draws[step]

    def measured(self, step: int) -> dict[str, float]:
        """Return the metrics of the batch of a step, which is drawn if it was not.
        `curriculum/solve_rate` is missing before the first outcome."""
        retired = self.draw(step).retired
        rates = [each.solve_rate for each in self._histories.values()]
        return {
            "curriculum/seen": len(self._histories),
            "curriculum/retired": retired,
            **({"curriculum/solve_rate": math.fsum(rates) / len(rates)} if rates else {}),
        }

    def _weight(self, history: History, step: int) -> float:
        """Return the weight of a problem with this history at a step. Raises ConfigError as
        `weight_of` does."""
        return weight_of(self._name, self._curriculum, history, step)
