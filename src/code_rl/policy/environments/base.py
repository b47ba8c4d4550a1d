"""The contract of an environment: the opening of a conversation, and the reply to an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from code_rl.grading import ProblemView, Verdict
from code_rl.policy.renderers.base import Message


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to an answer: its program, its verdict, and the messages that continue the
    conversation (none: it is over)."""

    code: str | None
    verdict: Verdict
    messages: tuple[Message, ...] = ()


class Grader(Protocol):
    """Runs programs on the tests of one problem. Programs that are the same share a run."""

    async def judge(self, code: str | None) -> Verdict:
        """On all tests, hidden ones among them: for the last answer. Nothing of this verdict may be
        shown to a policy."""
        ...

    async def judge_public(self, code: str | None) -> Verdict:
        """On the public tests alone. `failure.test` is a position among them; its message may be
        shown to a policy."""
        ...


class Environment(Protocol):
    """Conversations about problems. It has no state: everything is in the conversation, so that a
    cut run can go on from there.

    `max_turns` bounds the answers of one trajectory.
    """

    @property
    def max_turns(self) -> int:
        """The most answers of one conversation."""
        ...

    def begin(self, problem: ProblemView) -> list[Message]:
        """The conversation up to the first answer."""
        ...

    async def reply(
        self, problem: ProblemView, conversation: Sequence[Message], grader: Grader
    ) -> Reply:
        """Reply to `conversation`, whose last message is the policy's answer."""
        ...
