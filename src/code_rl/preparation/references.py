"""One reference solution on its problem's tests, with the judge that gives the reward: passes, fails, or cannot be told."""

from __future__ import annotations

import ast
import dataclasses
import re
import sys
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from code_rl.problems.problem import Problem
from code_rl.reward.judge import judge
from code_rl.reward.verdict import Verdict
from code_rl.sandbox.executor import Execution, Executor, Job, closing

_UNSTEADY = re.compile(
    r"\b(?:random|randint|randrange|shuffle|choice|secrets|uuid|urandom|time|datetime|perf_counter|monotonic|threading|multiprocessing"
    r"|asyncio|concurrent|getpid)\b|\b(?:id|hash)\("
)


@dataclass(frozen=True, slots=True)
class Trial:
    """A program's verdict and the CPU seconds of each test that ran, in order."""

    verdict: Verdict
    seconds: tuple[float, ...] = ()

    @property
    def slowest_s(self) -> float:
        """CPU seconds of the slowest test."""
        return max(self.seconds, default=0.0)


@dataclass(slots=True)
class _Listener:
    """An executor that passes everything through and writes down the CPU time of one program's tests."""

    executor: Executor
    code: str
    seconds: list[float] = field(default_factory=list)

    @property
    def description(self) -> str:
        return self.executor.description

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        async with closing(self.executor.run(job)) as executions:
            async for execution in executions:
                if job.code == self.code:
                    self.seconds.append(execution.cpu_s)
                yield execution

    async def aclose(self) -> None:
        await self.executor.aclose()


async def attempt(problem: Problem, code: str, executor: Executor, cpu_limit_s: float | None = None) -> Trial:
    """Judge `code`, keeping the time of each test. `cpu_limit_s` stands in place of the problem's own limit: it may be higher."""
    if cpu_limit_s is not None:
        problem = dataclasses.replace(problem, time_limit_s=cpu_limit_s)
    if problem.interactor is not None:
        verdict = await judge(problem, code, executor)
        return Trial(verdict, (verdict.cpu_s,))
    listener = _Listener(executor, code)
    verdict = await judge(problem, code, listener)
    return Trial(verdict, tuple(listener.seconds))


def reseeded(problem: Problem, seed: int) -> Problem:
    """The problem with another seed of `random` before each run: the sandbox starts every program from the same one."""
    before = str(problem.meta.get("preamble") or "")
    lines = f"import random as _random\n_random.seed({seed})\ndel _random\n"
    return dataclasses.replace(problem, meta={**problem.meta, "preamble": f"{before}\n{lines}"})


def is_unsteady(code: str) -> bool:
    """True when a program uses randomness, the clock or threads: it may answer differently another time."""
    return _UNSTEADY.search(code) is not None


def outside_imports(code: str) -> list[str]:
    """Top-level packages that a program imports and Python does not bring."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return sorted(found - sys.stdlib_module_names)
