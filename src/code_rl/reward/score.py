"""From a completion to a reward: R = format_coef · format_score + correctness."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from code_rl.concurrency import together
from code_rl.problems.problem import Problem
from code_rl.reward.extract import extract_code
from code_rl.reward.judge import judge
from code_rl.reward.verdict import Verdict
from code_rl.sandbox.executor import Executor


@dataclass(frozen=True, slots=True)
class RewardConfig:
    """`format_coef` weighs the format score; `cpu_limit_s` (None: each problem's own) is the CPU limit of one test in seconds."""

    format_coef: float = 0.1
    cpu_limit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """One completion's score. `reward` and `correctness` are None when the verdict is ours: the completion is masked.

    `format_ok` is true when a fenced block was found; `code` is its content.
    """

    reward: float | None
    correctness: float | None
    format_ok: bool
    verdict: Verdict
    code: str | None

    @property
    def format_score(self) -> float:
        """0 with a fenced block, −1 without."""
        return 0.0 if self.format_ok else -1.0


async def score_completion(
    problem: Problem, text: str, executor: Executor, config: RewardConfig | None = None
) -> Score:
    """Extract the last fenced block of `text`, judge it, and weigh format and correctness. Nothing runs without a block."""
    return (await score_completions(problem, [text], executor, config))[0]


async def score_completions(
    problem: Problem, texts: Sequence[str], executor: Executor, config: RewardConfig | None = None
) -> list[Score]:
    """One score per text. Texts whose code is the same share one run: same program, same inputs, same seeds."""
    scorer = GroupScorer(problem, executor, config)
    return await together(scorer.score(text) for text in texts)


class GroupScorer:
    """Scores the completions of one problem as they come; those whose code is the same share one run."""

    def __init__(self, problem: Problem, executor: Executor, config: RewardConfig | None = None) -> None:
        self._problem, self._executor, self._config = problem, executor, config or RewardConfig()
        self._runs: dict[str | None, asyncio.Task[Verdict]] = {}
        self._reached: dict[str | None, Verdict] = {}

    def reached(self, code: str | None, verdict: Verdict) -> None:
        """Take a verdict that an earlier process reached: this program is not run again."""
        self._reached[code] = verdict

    async def score(self, text: str) -> Score:
        """Score one completion. Whoever cancels one cancels the group: its run may be shared."""
        code = extract_code(text)
        if code in self._reached:
            return make_score(self._reached[code], code, self._config)
        if code not in self._runs:
            judged = judge(self._problem, code, self._executor, cpu_limit_s=self._config.cpu_limit_s)
            self._runs[code] = asyncio.create_task(judged)
        return make_score(await self._runs[code], code, self._config)


def make_score(verdict: Verdict, code: str | None, config: RewardConfig) -> Score:
    """The score that `verdict` means: correctness 1 when every test passed, else 0; none at all for a verdict of ours."""
    format_ok = code is not None
    if verdict.ours:
        return Score(None, None, format_ok, verdict, code)
    correctness = 1.0 if verdict.correct else 0.0
    reward = config.format_coef * (0.0 if format_ok else -1.0) + correctness
    return Score(reward, correctness, format_ok, verdict, code)
