"""One question, one answer."""

from __future__ import annotations

from collections.abc import Sequence

from code_rl.grading import ProblemView, extract_code
from code_rl.policy.environments.base import Grader, Reply
from code_rl.policy.prompt_templates import PromptTemplate, livecodebench
from code_rl.policy.renderers.base import Message
from code_rl.util.errors import ConfigError


class Single:
    """One answer; its last fenced block is judged on all tests.

    A subclass may have another `max_turns`, and a `least_turns` that its answers need.
    """

    max_turns = 1
    least_turns = 1

    def __init__(
        self, max_turns: int | None = None, prompt: PromptTemplate = livecodebench
    ) -> None:
        """`max_turns` (None: the class's) limits the answers. Raises ConfigError below
        `least_turns`."""
        self.prompt = prompt
        if max_turns is not None:
            self.max_turns = max_turns
        if self.max_turns < self.least_turns:
            raise ConfigError(
                f"max_turns={self.max_turns} is too few; give at least {self.least_turns}, or "
                "environment=single"
            )

    def begin(self, problem: ProblemView) -> list[Message]:
        """The prompt."""
        return self.prompt(problem)

    async def reply(
        self, problem: ProblemView, conversation: Sequence[Message], grader: Grader
    ) -> Reply:
        """The verdict."""
        code = extract_code(conversation[-1]["content"], problem.language)
        return Reply(code, await grader.judge(code))
