"""The contract of an environment (the opening of a conversation, and the reply to an answer), and
the environment of one question and one answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from code_rl.grading import ProblemView, Verdict, extract_code
from code_rl.policy.prompt_templates import PromptTemplate, livecodebench
from code_rl.policy.renderers.base import Message
from code_rl.util.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Reply:
    """The environment's reply to an answer: the program, the verdict, and the messages that
    continue the conversation. Without messages the conversation is over."""

    code: str | None
    verdict: Verdict
    messages: tuple[Message, ...] = ()


class Grader(Protocol):
    """Runs programs on the tests of one problem. Identical programs are run once."""

    async def judge(self, code: str | None) -> Verdict:
        """Judge the last answer on all tests, hidden ones included. Never show this verdict to a
        policy."""
        ...

    async def judge_public(self, code: str | None) -> Verdict:
        """Judge on the public tests only. `failure.test` is an index among the public tests; the
        failure's message may be shown to a policy. Without public tests the verdict is `passed`, 0
        of 0, by the rule `no public tests`; `code` None is otherwise `no_code`, without a failure.
        A failure of the sandbox is an undecided verdict, which is not to be shown. This verdict
        cannot end a conversation. Raises as `judge_async` does."""
        ...

    async def run_commands(self, commands: Sequence[str]) -> str:
        """Run the last shell command in a box with the public tests, after the earlier commands of
        its conversation, and return what a policy may be shown of it. Equal sequences run once."""
        ...


class Environment(Protocol):
    """Conversations about problems. An environment has no state: everything is in the conversation,
    so a resumed run can continue one.

    `max_turns` limits the answers of one trajectory.
    """

    @property
    def max_turns(self) -> int:
        """The most answers of one conversation."""
        ...

    def begin(self, problem: ProblemView) -> list[Message]:
        """Return the conversation up to the first answer. A resumed run calls it again and expects
        the same messages."""
        ...

    async def reply(
        self, problem: ProblemView, conversation: Sequence[Message], grader: Grader
    ) -> Reply:
        """Reply to `conversation`, whose last message is the policy's answer. A resumed run calls
        it again for the same conversation and expects the same reply."""
        ...


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
        """Return the messages of the prompt template."""
        return self.prompt(problem)

    async def reply(
        self, problem: ProblemView, conversation: Sequence[Message], grader: Grader
    ) -> Reply:
        """Judge the program in the last answer on all tests, and end the conversation. An answer
        without a program has the verdict `no_code`."""
        code = extract_code(conversation[-1]["content"], problem.language)
        return Reply(code, await grader.judge(code))
