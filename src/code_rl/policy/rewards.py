"""R(τ): from a judged trajectory to a number; `REWARDS` has the built-in ones.

Your own reward is a function of a trajectory, or of a trajectory and its problem, that returns a
number or named parts; it is given as `package.module:function`. With its attribute
`all_tests = True` the judge does not stop at the first failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from code_rl.grading import Problem, extract_code
from code_rl.policy.trajectory import Trajectory
from code_rl.util.registry import LARGEST, arity, attribute_errors_to, find, not_finite

RewardFunction = Callable[..., float | Mapping[str, float]]
"""A function of a trajectory, or of a trajectory and its problem. Named parts are added up."""


def correctness(trajectory: Trajectory) -> float:
    """1 if every test passes, else 0."""
    return 1.0 if trajectory.verdict.correct else 0.0


def fraction(trajectory: Trajectory) -> float:
    """The share of tests passed, from 0 to 1."""
    return trajectory.verdict.passed / trajectory.verdict.total


def think_answer(trajectory: Trajectory, problem: Problem | None) -> float:
    """Correctness; −1.2 for any form but a think block and `<answer>` with the program.

    Code-R1's reward minus 0.1; for its prompt, with `format_coef=0`.
    """
    _, opened, answer = trajectory.text.rstrip().partition("<answer>")
    ends = bool(opened) and answer.endswith("</answer>")
    program = extract_code(answer) if problem is None else extract_code(answer, problem.language)
    tagged = ends and trajectory.reasoning is not None and program == trajectory.last.code
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
        """Return the reward of a trajectory before shaping, or None if its verdict is undecided.
        `problem` is needed only if `program` takes two arguments. Raises ConfigError for a user's
        function that fails."""
        return total(self.parts(trajectory, problem))

    def parts(
        self, trajectory: Trajectory, problem: Problem | None = None
    ) -> Mapping[str, float] | None:
        """Return the summands of `of`: the named parts of `program`, and under "" all others, the
        format's included. Return None if the verdict is undecided; `program` is not called then."""
        if trajectory.verdict.undecided:
            return None
        earned = self.program(*(trajectory, problem)[: self.arguments])
        named = earned if isinstance(earned, Mapping) else {"": float(earned)}
        if self.cut_is_wrong and trajectory.truncated and sum(named.values()) > 0:
            named = dict.fromkeys(named, 0.0)
        score = self.format_coef * (0.0 if trajectory.format_ok else -1.0)
        return {**named, "": score + named.get("", 0.0)}


def total(parts: Mapping[str, float] | None) -> float | None:
    """Return the sum of a reward's parts, None without a verdict."""
    return None if parts is None else sum(parts.values())


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
    Raises ConfigError for an unknown name, and for a function that does not take one or two
    arguments or is async.

    The judge then runs every test for `fraction`, and for a function with `all_tests = True`.
    """
    program = find("reward", name, REWARDS)
    arguments = arity("reward", name, program, 1, 2)
    all_tests = name == "fraction" or bool(getattr(program, "all_tests", False))
    if name not in REWARDS:
        program = _guarded(name, program)
    return Reward(program, format_coef, all_tests, cut_is_wrong, arguments)


def _guarded(name: str, theirs: RewardFunction) -> RewardFunction:
    """Wrap the user's reward. The wrapper returns a float or checked parts, and raises ConfigError
    that names the reward for any exception and any result that is not finite."""

    def program(*arguments: Any) -> float | Mapping[str, float]:
        """Call the user's reward and check its result. Raises ConfigError."""
        with attribute_errors_to("reward", name):
            earned: object = theirs(*arguments)
            if not isinstance(earned, Mapping):
                return _number("the reward", earned)
            if not all(isinstance(part, str) and part for part in earned):
                raise TypeError(f"the names of its parts are {[*earned]!r:.80}; give them as text")
            parts = {part: _number(f"part {part!r}", value) for part, value in earned.items()}
            _number("the sum of its parts", sum(parts.values()))
            return parts

    return program


def _number(name: str, value: Any) -> float:
    """Return the value as a float. Raises ValueError for a text, and for a value without a finite
    float of at most `LARGEST`."""
    try:
        number = float("nan" if isinstance(value, str | bytes | bytearray) else value)
    except (ArithmeticError, RuntimeError, TypeError, ValueError):
        number = float("nan")
    if not abs(number) <= LARGEST:
        raise not_finite(name, value)
    return number
