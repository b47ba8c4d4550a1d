"""R(τ): from a judged trajectory to a number; `REWARDS` has the built-in ones.

Your own reward is a function of a trajectory, or of a trajectory and its problem, that returns a
number; it is given as `package.module:function`. With its attribute `all_tests = True` the judge
does not stop at the first failure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from code_rl.grading import Problem, extract_code
from code_rl.policy.trajectory import Trajectory
from code_rl.util.registry import arity, attribute_errors_to, find, require_finite

RewardFunction = Callable[..., float]
"""A function of a trajectory, or of a trajectory and its problem."""


def correctness(trajectory: Trajectory) -> float:
    """1 if every test passes, else 0."""
    return 1.0 if trajectory.verdict.correct else 0.0


def fraction(trajectory: Trajectory) -> float:
    """The share of tests passed."""
    return trajectory.verdict.passed / trajectory.verdict.total


def think_answer(trajectory: Trajectory) -> float:
    """Correctness; −1.2 for any form but a think block and `<answer>` with the program.

    Code-R1's reward minus 0.1; for its prompt, with `format_coef=0`.
    """
    _, opened, answer = trajectory.text.rstrip().partition("<answer>")
    ends = bool(opened) and answer.endswith("</answer>")
    tagged = (
        ends and trajectory.reasoning is not None and extract_code(answer) == trajectory.last.code
    )
    return correctness(trajectory) if tagged and trajectory.format_ok else -1.2


def has_program(trajectory: Trajectory) -> float:
    """1 for an answer with a program, else 0: a control."""
    return 1.0 if trajectory.format_ok else 0.0


def coin(trajectory: Trajectory) -> float:
    """0 or 1 at random, by the seed: a control."""
    return float(trajectory.seed & 1)


@dataclass(frozen=True, slots=True)
class Reward:
    """R = `program`(τ), minus `format_coef` if the answer has no program.

    With `cut_is_wrong` a truncated answer earns nothing for its program; a negative `program` still
    counts. With `all_tests` the judge runs every test. With two `arguments` the problem is the
    second of `program`.
    """

    program: RewardFunction = correctness
    format_coef: float = 0.1
    all_tests: bool = False
    cut_is_wrong: bool = False
    arguments: int = 1

    def of(self, trajectory: Trajectory, problem: Problem | None = None) -> float | None:
        """Return the reward of a trajectory before shaping, or None if its verdict is undecided."""
        if trajectory.verdict.undecided:
            return None
        earned = float(self.program(*(trajectory, problem)[: self.arguments]))
        if earned > 0 and self.cut_is_wrong and trajectory.truncated:
            earned = 0.0
        return self.format_coef * (0.0 if trajectory.format_ok else -1.0) + earned


REWARDS: dict[str, RewardFunction] = {
    "correctness": correctness,
    "fraction": fraction,
    "think_answer": think_answer,
    "format": has_program,
    "random": coin,
}


def get_reward(
    name: str,
    *,
    format_coef: float = 0.1,
    cut_is_wrong: bool = False,
) -> Reward:
    """Return the reward called `name`, or one that uses the function `package.module:function`.
    Raises ConfigError."""
    program = find("reward", name, REWARDS)
    arguments = arity("reward", name, program, 1, 2)
    all_tests = name == "fraction" or bool(getattr(program, "all_tests", False))
    if name not in REWARDS:
        program = _guarded(name, program)
    return Reward(program, format_coef, all_tests, cut_is_wrong, arguments)


def _guarded(name: str, theirs: RewardFunction) -> RewardFunction:
    def program(*arguments: Any) -> float:
        with attribute_errors_to("reward", name):
            given: object = theirs(*arguments)
            if isinstance(given, str | bytes | bytearray):  # float() accepts these two
                raise TypeError(f"it gave {given!r:.80}, a text; a number is wanted")
            earned = float(given)  # type: ignore[arg-type]  # what is no number raises here
            require_finite([earned], "reward")
        return earned

    return program
