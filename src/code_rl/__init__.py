"""Reinforcement learning that makes a language model write better code. What is listed here is
loaded when it is first used (docs/library.md)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from code_rl.util.version import __version__

if TYPE_CHECKING:
    from code_rl.data import load_problems
    from code_rl.engine import Loss
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
    from code_rl.policy import Policy, Sampling, Trajectory
    from code_rl.policy.environments import Environment, Grader, Repair, Reply, Single
    from code_rl.training import (
        TrainingResult,
        compute_advantages,
        evaluate,
        evaluate_async,
        make_datum,
        should_skip,
        train,
        train_async,
        train_step,
    )
    from code_rl.util.errors import CodeRLError, ConfigError, DataError

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
    "make_datum",
    "should_skip",
    "train",
    "train_async",
    "train_step",
]
_NAMES = {
    "data.library": ("load_problems",),
    "engine.losses": ("Loss",),
    "grading.extract": ("extract_code",),
    "grading.problem": (
        "CallTest",
        "Compare",
        "Problem",
        "ProblemView",
        "SequenceTest",
        "StdinTest",
    ),
    "grading.shared": ("judge", "judge_async"),
    "grading.verdict": ("Verdict",),
    "policy.environments": ("Environment", "Grader", "Repair", "Reply", "Single"),
    "policy.sample": ("Policy", "Sampling"),
    "policy.trajectory": ("Trajectory",),
    "training.algorithm.advantages": ("compute_advantages", "should_skip"),
    "training.algorithm.datums": ("make_datum", "train_step"),
    "util.errors": ("CodeRLError", "ConfigError", "DataError"),
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        where = _WHERE.get(name, "training.library")
        if where.startswith("training."):
            from code_rl.util.errors import TRAIN, require

            require("train", f"{__name__}.{name}", *TRAIN)
        module = importlib.import_module(f"{__name__}.{where}")
        value = globals()[name] = getattr(module, name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
