"""One question, one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from code_rl.grading import ProblemView, extract_code
from code_rl.policy.environments.base import Grader, Reply
from code_rl.policy.prompt_templates import PromptTemplate, livecodebench
from code_rl.policy.renderers.base import Message


@dataclass(frozen=True, slots=True)
class Single:
    """One answer; its last fenced block is judged on all tests."""

    max_turns: int = 1
    prompt: PromptTemplate = livecodebench

    def begin(self, problem: ProblemView) -> list[Message]:
        """The prompt."""
        return self.prompt(problem)

    async def reply(
        self, problem: ProblemView, conversation: Sequence[Message], grader: Grader
    ) -> Reply:
        """The verdict."""
        code = extract_code(conversation[-1]["content"], problem.language)
        return Reply(code, await grader.judge(code))
