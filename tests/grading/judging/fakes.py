"""Verdicts of the real sandbox, and an executor that yields prepared executions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from code_rl.grading import Problem, Verdict, judge_async
from code_rl.grading.sandbox import Job, Status
from code_rl.grading.sandbox.executor import Execution
from code_rl.util.errors import SandboxError
from tests.boxes import shared_box
from tests.stand_in import StandIn

Answer = Execution | SandboxError
Script = Callable[[Job], Sequence[Answer]]


def printed(text: str | bytes, **fields: Any) -> Execution:
    return Execution(Status.OK, stdout=text.encode() if isinstance(text, str) else text, exit_code=0, **fields)


def returned(value: str | bytes, **fields: Any) -> Execution:
    return Execution(Status.OK, value=value.encode() if isinstance(value, str) else value, exit_code=0, **fields)


class ScriptedExecutor(StandIn):
    """Answers the n-th job with the n-th script; the last script repeats."""

    description = "scripted"

    def __init__(self, *scripts: Script | Sequence[Answer]) -> None:
        self.scripts = scripts
        self.jobs: list[Job] = []
        self.yielded: list[int] = []
        self.open = self.most_open = 0
        self.closed = False

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        script = self.scripts[min(len(self.jobs), len(self.scripts) - 1)]
        self.jobs.append(job)
        self.yielded.append(0)
        place = len(self.yielded) - 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            for answer in script(job) if callable(script) else script:
                if isinstance(answer, Exception):
                    raise answer
                self.yielded[place] += 1
                yield answer
        finally:
            self.open -= 1

    async def aclose(self) -> None:
        self.closed = True


def verdict_of(problem: Problem, code: str, **options: Any) -> Verdict:
    """The verdict of the real sandbox."""
    return asyncio.run(judge_async(problem, code, shared_box(), **options))
