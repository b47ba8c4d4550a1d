"""Crafted groups: completions with given rewards, lengths and endings, without a model or a sandbox."""

from __future__ import annotations

from collections.abc import Iterable

from code_rl.reward.score import Score

from code_rl.problems.problem import Problem, StdinTest
from code_rl.reward.verdict import Verdict, VerdictKind
from code_rl.rollouts import Completion, Group

PROBLEM = Problem(id="p", statement="s", tests=(StdinTest(input="", expected="", public=True),))


def completion(
    reward: float | None, *, correctness: float | None = None, truncated: bool = False, length: int = 3
) -> Completion:
    known = None if reward is None else (correctness if correctness is not None else reward)
    kind = VerdictKind.SANDBOX_ERROR if reward is None else VerdictKind.PASSED if known else VerdictKind.WRONG_ANSWER
    return Completion(
        tokens=tuple(range(10, 10 + length)),
        logprobs=tuple(-0.5 - 0.25 * i for i in range(length)),
        text="",
        truncated=truncated,
        score=Score(reward, known, True, Verdict(kind, 0, 1, "lcb"), "pass"),
    )


def group_of(completions: Iterable[Completion], *, max_tokens: int = 8, policy_step: int = 0) -> Group:
    return Group(PROBLEM, (1, 2, 3), tuple(completions), 0.0, 0.0, max_tokens, policy_step)
