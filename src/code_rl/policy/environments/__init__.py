"""Environments: conversations about a problem. `base` has the contract and `single`; `repair` and
`tools` are built in too."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from types import SimpleNamespace
from typing import Any

from code_rl.grading import ProblemView, Verdict
from code_rl.policy.environments.base import Environment, Grader, Reply, Single
from code_rl.policy.environments.repair import Repair
from code_rl.policy.environments.tools import Tools
from code_rl.policy.prompt_templates import check_message, get_prompt_template
from code_rl.policy.renderers.base import Message
from code_rl.util.errors import ConfigError
from code_rl.util.registry import arity, attribute_errors_to, find

__all__ = [
    "ENVIRONMENTS",
    "Environment",
    "Grader",
    "Repair",
    "Reply",
    "Single",
    "Tools",
    "get_environment",
]

ENVIRONMENTS: Mapping[str, Callable[..., Environment]] = {
    "single": Single,
    "repair": Repair,
    "tools": Tools,
}


def get_environment(
    name: str,
    max_turns: int | None = None,
    prompt: str | None = None,
    system_prompt: str | None = None,
) -> Environment:
    """Return the environment called `name`, an instance of the class `package.module:Class`, or the
    object `package.module:object`. None means the environment's own `max_turns`, the template
    livecodebench, and the template's own system message.

    Raises ConfigError for an unknown name, an object without `begin` or `reply`, a constructor that
    fails, too few turns, or a setting that has no effect on the environment.
    """
    make = find("environment", name, ENVIRONMENTS)
    turns = {} if max_turns is None else {"max_turns": max_turns}
    if make is Single and max_turns is not None:
        raise ConfigError(
            f"max_turns={max_turns} has no effect with environment=single; choose "
            "environment=repair or tools"
        )
    if name in ENVIRONMENTS:
        return make(prompt=get_prompt_template(prompt, system_prompt), **turns)
    for setting, text in (("prompt", prompt), ("system_prompt", system_prompt)):
        if text is not None:
            raise ConfigError(
                f"{setting}= has no effect with environment={name}, which words its problems itself"
            )
    made: Any = make
    if isinstance(make, type) or not hasattr(make, "reply"):
        with attribute_errors_to("environment", name):
            made = make(**turns)
    elif turns:
        raise ConfigError(
            f"max_turns={max_turns} has no effect on an environment that is made already; make it "
            "with them"
        )
    most = getattr(made, "max_turns", None)
    if not hasattr(made, "begin") or not hasattr(made, "reply"):
        raise ConfigError(
            f"environment={name} lacks begin or reply; see code_rl.policy.environments.Environment"
        )
    if not isinstance(most, int) or most < 1:
        raise ConfigError(f"environment={name} has max_turns={most!r}; it must be 1 or more")
    arity("environment", f"{name}.reply", made.reply, 3, may_wait=True)
    return _Guarded(name, made, most)


@dataclass(frozen=True, slots=True)
class _Guarded:
    """A user's environment; its errors carry its name."""

    name: str
    inner: Environment
    max_turns: int

    def begin(self, problem: ProblemView) -> list[Message]:
        """Call the user's `begin` and check its messages. Raises ConfigError, with the
        environment's name, for any exception and any malformed message."""
        with attribute_errors_to("environment", self.name):
            return [check_message(message) for message in self.inner.begin(problem)]

    async def reply(
        self, problem: ProblemView, conversation: Sequence[Message], grader: Grader
    ) -> Reply:
        """Call the user's `reply`, async or not, and check what it returns. Raises ConfigError,
        with the environment's name, for any exception, a malformed Reply, and a last verdict that
        comes from `judge_public`. A CodeRLError passes unchanged."""
        public: list[Verdict] = []

        async def judge_public(code: str | None) -> Verdict:
            """Judge on the public tests, and remember the verdict, so that it cannot end the
            conversation."""
            public.append(await grader.judge_public(code))
            return public[-1]

        watched: Any = SimpleNamespace(
            judge=grader.judge, judge_public=judge_public, run_commands=grader.run_commands
        )
        with attribute_errors_to("environment", self.name):
            given: Any = self.inner.reply(problem, conversation, watched)
            reply = await given if isawaitable(given) else given
            if not isinstance(reply, Reply) or not isinstance(reply.verdict, Verdict):
                raise TypeError(f"reply gave {reply!r:.80}, not a Reply with a verdict")
            if not isinstance(reply.code, str | None):
                raise TypeError(
                    f"reply gave the code {reply.code!r:.80}; a program's text or None is wanted"
                )
            if not reply.messages and any(reply.verdict is verdict for verdict in public):
                raise ValueError(
                    "reply ends with the verdict of judge_public; the last answer is for "
                    "grader.judge"
                )
            return replace(
                reply, messages=tuple(check_message(message) for message in reply.messages)
            )
