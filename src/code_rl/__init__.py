"""Reinforcement learning that makes a language model write better code. What is listed here is loaded when it is first used (docs/library.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from code_rl.algorithm.advantages import compute_advantages, should_skip
    from code_rl.algorithm.datums import make_datum, train_step
    from code_rl.algorithm.losses import Loss
    from code_rl.environments import Environment, Grader, Repair, Reply, Single
    from code_rl.errors import CodeRLError, ConfigError, DataError
    from code_rl.judging.extract import extract_code
    from code_rl.judging.verdict import Verdict
    from code_rl.library import (
        TrainingResult,
        evaluate,
        evaluate_async,
        judge,
        judge_async,
        load_problems,
        train,
        train_async,
    )
    from code_rl.problems.problem import CallTest, Compare, Problem, ProblemView, SequenceTest, StdinTest
    from code_rl.rollouts.sample import Policy, Sampling
    from code_rl.trajectory import Trajectory

__version__ = "0.1.0"
__all__ = [
    "CallTest", "CodeRLError", "Compare", "ConfigError", "DataError", "Environment", "Grader", "Loss", "Policy",
    "Problem", "ProblemView", "Repair", "Reply", "Sampling", "SequenceTest", "Single", "StdinTest", "TrainingResult",
    "Trajectory", "Verdict", "compute_advantages", "evaluate", "evaluate_async", "extract_code", "judge",
    "judge_async", "load_problems", "make_datum", "should_skip", "train", "train_async", "train_step",
]  # fmt: skip
_NAMES = {
    "algorithm.advantages": ("compute_advantages", "should_skip"),
    "algorithm.datums": ("make_datum", "train_step"),
    "algorithm.losses": ("Loss",),
    "environments": ("Environment", "Grader", "Repair", "Reply", "Single"),
    "errors": ("CodeRLError", "ConfigError", "DataError"),
    "problems.problem": ("CallTest", "Compare", "Problem", "ProblemView", "SequenceTest", "StdinTest"),
    "judging.extract": ("extract_code",),
    "judging.verdict": ("Verdict",),
    "rollouts.sample": ("Policy", "Sampling"),
    "trajectory": ("Trajectory",),
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module(f"{__name__}.{_WHERE.get(name, 'library')}")
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
