"""verl: set `reward.custom_reward_function.path=pkg://code_rl.integrations.verl`, and put rows of
`to_row` into its Parquet files."""

from __future__ import annotations

from typing import Any

from code_rl.grading import Problem
from code_rl.integrations import rows
from code_rl.policy.prompt_templates import PromptTemplate, livecodebench
from code_rl.util.errors import SandboxError

ATTEMPTS = 3


def to_row(
    problem: Problem, template: PromptTemplate = livecodebench, split: str = "train"
) -> dict[str, Any]:
    """Return a row of verl's Parquet files: the prompt by `template`, and as `ground_truth` the
    whole problem with its tests. `split` is kept beside the problem's id in `extra_info`."""
    row = rows.to_row(problem, template)
    return {
        "data_source": "code-rl",
        "prompt": row["prompt"],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": row["problem"]},
        "extra_info": {"index": problem.id, "split": split},
    }


# verl passes more arguments.
async def compute_score(
    *,
    solution_str: str,
    ground_truth: str,
    **given: Any,  # noqa: ARG001
) -> dict[str, float]:
    """Return `score` and `acc`: 1.0 for a program that passes every test, else 0.0. `ground_truth`
    is that of `to_row`; other arguments have no effect.

    Raises SandboxError if `ATTEMPTS` runs gave no verdict. verl has no way to leave an answer
    without a reward, so the alternative to stopping (the run can be resumed) would be an invented
    reward. Raises DataError for a row without a problem.
    """
    for _ in range(ATTEMPTS):
        verdict = await rows.verdict_of(ground_truth, solution_str)
        if not verdict.undecided:
            return {"score": float(verdict.correct), "acc": float(verdict.correct)}
    raise SandboxError(
        f"no reward after {ATTEMPTS} attempts ({rows.why(verdict)}); resume from verl's last "
        "checkpoint"
    )
