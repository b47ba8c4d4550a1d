"""A running estimate of the reward's errors: wrong programs that are paid, and verdicts that change
when a program is judged again.

Two kinds of programs are known to be wrong: those for canaries, and those that fail a test. Only
canaries can show that the judge itself is cheated. Programs that fail a test can show that
`reward=` pays against the verdict. Neither shows tests that are too weak, and nothing here measures
right programs that are not paid.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from code_rl.grading import Problem, Verdict, judge_async
from code_rl.grading.sandbox import Executor
from code_rl.policy import Group, Trajectory
from code_rl.training.algorithm.metrics import mean
from code_rl.training.objective import Objective, ScoredGroup
from code_rl.util.errors import SandboxError
from code_rl.util.rates import Rate

FULL_REWARD = 1.0
MAX_PROGRAM = 1000
"""The most characters of a program that are shown."""


def reward_metrics(
    groups: Sequence[ScoredGroup], logged: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the `reward/…` counts of a step, and the upper bound of FPR over the run (None without
    evidence). `logged` has the metrics of all steps, in order, those of this step so far last; it
    is not changed."""
    wrong = [
        (scored.group.problem, each, reward)
        for scored in groups
        for each, reward in zip(scored.group.trajectories, scored.rewards_G, strict=True)
        if reward is not None and each.format_ok and not each.verdict.correct
    ]
    paid = [each for _, each, reward in wrong if reward >= FULL_REWARD]
    mixed = [  # some tests public, some hidden
        passes_public(problem, each.verdict)
        for problem, each, _ in wrong
        if len({test.public for test in problem.tests}) == 2
    ]
    metrics = {
        "reward/wrong": len(wrong),
        "reward/wrong_groups": len({id(problem) for problem, _, _ in wrong}),
        "reward/wrong_paid": len(paid),
        "reward/public_fpr": mean([float(passes) for passes in mixed if passes is not None]),
    }
    metrics["reward/fpr_upper"] = _upper([*logged, metrics])
    return metrics | ({"reward/wrong_program": shown_program(paid[0])} if paid else {})


async def second_judgment(
    groups: Sequence[ScoredGroup], executor: Executor, cpu_limit_s: float | None
) -> dict[str, int]:
    """Judge a step's first program that passed once more, and return its counts: that it was
    judged, and whether it failed now. Empty if no program passed, or if the second judgment gave no
    verdict. `cpu_limit_s` is the limit per test (None: the problem's own). A SandboxError is
    dropped; raises OutageError if the sandbox stays unreachable."""
    for scored in groups:
        problem = scored.group.problem
        for trajectory in scored.group.trajectories:
            code, verdict = trajectory.last.code, trajectory.verdict
            # An environment of a user's own may have judged in another way.
            if verdict.correct and code is not None and verdict.rule == problem.compare.rule:
                with contextlib.suppress(SandboxError):
                    again = await judge_async(problem, code, executor, cpu_limit_s=cpu_limit_s)
                    if not again.undecided:
                        return {"reward/judged_twice": 1, "reward/unstable": int(not again.correct)}
                return {}
    return {}


def passes_public(problem: Problem, verdict: Verdict) -> bool | None:
    """Return True if a wrong program passed every public test, False if its first failure was a
    public one, and None if that hidden failure left a public test out. Tests run in order until one
    fails."""
    failed = verdict.failure.test if verdict.failure else 0
    if not any(test.public for test in problem.tests[failed:]):
        return True
    return None if verdict.failure and not problem.tests[failed].public else False


def _upper(logged: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the upper end of the 95% interval of FPR (0 to 1) over the steps of `logged`, the
    larger of canaries' and judged programs', or None without evidence.

    Programs that fail a test are evidence once one of them is paid: a reward that follows the
    verdict never pays any.
    """

    def rate(passed: str, programs: str, groups: str) -> Rate:
        """Return the rate of paid programs over the run, from the names of three counts. Its
        interval counts groups, since programs of a group are alike."""
        paid, total, clusters = (
            sum(record.get(name) or 0 for record in logged) for name in (passed, programs, groups)
        )
        total = max(total, paid)
        return Rate(paid, total, max(1, min(total, clusters)))

    canaries = rate("canary/passed", "canary/programs", "canary/groups")
    judged = rate("reward/wrong_paid", "reward/wrong", "reward/wrong_groups")
    ends = [canaries.ends[1]] * (canaries.total > 0) + [judged.ends[1]] * (judged.passed > 0)
    return max(ends, default=None)


def canary_metrics(groups: Sequence[Group], objective: Objective) -> dict[str, Any]:
    """Return the `canary/…` metrics of a step's canaries: groups, programs, passes and tokens, and
    the first program that passed as text, if any. Without canaries the counts are 0."""
    done = [
        (answer, _passes(group.problem, answer, objective))
        for group in groups
        for answer in group.trajectories
    ]
    passed = [answer for answer, passes in done if passes]
    metrics: dict[str, Any] = {
        "canary/groups": len(groups),
        "canary/programs": sum(
            passes or (answer.format_ok and not answer.verdict.undecided) for answer, passes in done
        ),
        "canary/passed": len(passed),
        "canary/prefill": sum(answer.prefilled for answer, _ in done),
        "canary/tokens": sum(answer.length for answer, _ in done),
    }
    return metrics | ({"canary/program": shown_program(passed[0])} if passed else {})


def _passes(problem: Problem, trajectory: Trajectory, objective: Objective) -> bool:
    """Return True if the judge accepts a canary's answer, or the run's reward pays it in full,
    whatever it takes off for the format. Raises ConfigError for a user's reward that fails."""
    reward = replace(objective.reward, format_coef=0.0).of(trajectory, problem)
    return trajectory.verdict.correct or (reward is not None and reward >= FULL_REWARD)


def shown_program(trajectory: Trajectory) -> str:
    """Return the program, or the whole answer if it has none, cut to 1,000 characters, with
    unprintable characters escaped."""
    text = (trajectory.last.code or trajectory.text)[:MAX_PROGRAM]
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()
        for char in text
    )
