"""This package's own judge on any executor: the embedded sandbox, or a Sandbox Fusion server
through our client."""

from __future__ import annotations

from code_rl.grading.audit.graders.base import AuditedGrader, GraderOutcome
from code_rl.grading.judging import judge_async
from code_rl.grading.problem import Problem
from code_rl.grading.sandbox.connect import check_executor
from code_rl.grading.sandbox.executor import Executor
from code_rl.util.errors import CodeRLError


class Ours(AuditedGrader):
    """`code_rl.judge`."""

    def __init__(self, executor: Executor) -> None:
        self.name = f"code-rl on {executor.description}"
        self._executor = executor

    def takes(self, problem: Problem) -> bool:  # noqa: ARG002 - the seam's
        """Return True."""
        return True

    async def check(self) -> None:
        """Check that the executor works."""
        await check_executor(self._executor)

    async def grade(self, problem: Problem, code: str) -> GraderOutcome:
        """Judge one program; `sandbox_error` is a failure of this grader."""
        try:
            verdict = await judge_async(problem, code, self._executor)
        except CodeRLError as error:
            return GraderOutcome(None, str(error))
        return GraderOutcome(None if verdict.undecided else verdict.correct, verdict.kind.value)

    async def aclose(self) -> None:
        """Close the sandbox."""
        await self._executor.aclose()
