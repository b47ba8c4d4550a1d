"""Rewards: R = format_coef · format_score + correctness, and no reward at all for a failure of ours."""

from __future__ import annotations

import asyncio

import pytest
from code_rl.reward.score import RewardConfig, score_completion

from code_rl.errors import SandboxError
from code_rl.problems.problem import Problem, StdinTest
from code_rl.reward.verdict import VerdictKind

from .fakes import ScriptedExecutor, printed

PROBLEM = Problem("p", "", (StdinTest("", "1"),))
BLOCK = "```python\nprint(1)\n```"


def score(text, *answers, config=None):
    executor = ScriptedExecutor(answers)
    return asyncio.run(score_completion(PROBLEM, text, executor, config)), executor


@pytest.mark.parametrize(
    ("text", "output", "reward", "format_ok"),
    [(BLOCK, "1", 1.0, True), (BLOCK, "2", 0.0, True), ("print(1)", "1", -0.1, False), ("", "1", -0.1, False)],
)
def test_the_reward_table(text, output, reward, format_ok):
    result, executor = score(text, printed(output))
    assert (result.reward, result.format_ok) == (reward, format_ok)
    assert result.format_score == (0.0 if format_ok else -1.0)
    assert len(executor.jobs) == (1 if format_ok else 0)


def test_the_format_coefficient_and_cpu_limit_are_settings():
    result, _ = score("no block", config=RewardConfig(format_coef=0.5))
    assert result.reward == -0.5
    _, executor = score(BLOCK, printed("1"), config=RewardConfig(cpu_limit_s=2.5))
    assert executor.jobs[0].limits.cpu_s == 2.5


def test_a_failure_of_ours_is_no_reward():
    result, _ = score(BLOCK, SandboxError("down"))
    assert result.verdict.kind is VerdictKind.SANDBOX_ERROR
    assert (result.reward, result.correctness, result.format_ok, result.code) == (None, None, True, "print(1)")
