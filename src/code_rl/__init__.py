"""Reinforcement learning that makes a language model write better code. The names listed here are
imported on first use (docs/library.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door
from code_rl.util.version import __version__

if TYPE_CHECKING:
    from code_rl.data import load_problems
    from code_rl.engine.losses import Loss
    from code_rl.grading import (
        CallTest,
        Compare,
        Problem,
        ProblemView,
        SequenceTest,
        StdinTest,
        Verdict,
        extract_code,
        judge,
        judge_async,
    )
    from code_rl.grading.sandbox import open_box
    from code_rl.policy import Policy, Sampling, Trajectory
    from code_rl.policy.environments import Environment, Grader, Repair, Reply, Single
    from code_rl.training import TrainingResult, evaluate, evaluate_async, train, train_async
    from code_rl.training import open_report as report
    from code_rl.training.algorithm import compute_advantages, make_datum, should_skip, train_step
    from code_rl.util.errors import CodeRLError, ConfigError, DataError
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)

__all__ = [
    "__version__",
    "CallTest",
    "CodeRLError",
    "Compare",
    "ConfigError",
    "DataError",
    "Environment",
    "Grader",
    "Loss",
    "Policy",
    "Problem",
    "ProblemView",
    "Repair",
    "Reply",
    "Sampling",
    "SequenceTest",
    "Single",
    "StdinTest",
    "TrainingResult",
    "Trajectory",
    "Verdict",
    "compute_advantages",
    "evaluate",
    "evaluate_async",
    "extract_code",
    "judge",
    "judge_async",
    "load_problems",
    "open_box",
    "make_datum",
    "report",
    "should_skip",
    "train",
    "train_async",
    "train_step",
]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
