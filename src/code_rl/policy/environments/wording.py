"""How a problem is put to a policy: `prompt=` names the wording, `system_prompt=` is what the
system says before it.

One of your own is `package.module:function`, from a `ProblemView` to messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from code_rl.data.prompts import build_prompt
from code_rl.data.sources.verl import CODE_R1_SYSTEM, code_r1_question
from code_rl.grading.problem import ProblemView
from code_rl.policy.renderers.base import Message
from code_rl.util.registry import attribute_errors_to, find

Wording = Callable[[ProblemView], list[Message]]


def livecodebench(problem: ProblemView) -> list[Message]:
    """Statement and starter code inside LiveCodeBench's instructions, in one message."""
    return [{"role": "user", "content": build_prompt(problem)}]


def plain(problem: ProblemView) -> list[Message]:
    """The statement, and its starter code in a block."""
    starter = f"\n\n```python\n{problem.starter_code}\n```" if problem.starter_code else ""
    return [{"role": "user", "content": problem.statement + starter}]


def code_r1(problem: ProblemView) -> list[Message]:
    """As in ganler/code-r1-12k: the system asks for `<think>` and `<answer>`, the user for code."""
    question = code_r1_question(problem.statement, problem.starter_code)
    return [{"role": "system", "content": CODE_R1_SYSTEM}, {"role": "user", "content": question}]


PROMPTS: Mapping[str, Wording] = {
    "livecodebench": livecodebench,
    "plain": plain,
    "code-r1": code_r1,
}


def get_wording(prompt: str | None = None, system_prompt: str | None = None) -> Wording:
    """The wording called `prompt` (None: livecodebench), or the function that
    `package.module:object` is, under a system message.

    Raises ConfigError for an unknown name, and for one of your own that gives no messages.
    """
    name = prompt or "livecodebench"
    found = find("prompt", name, PROMPTS)

    def worded(problem: ProblemView) -> list[Message]:
        with attribute_errors_to("prompt", name):
            given = found(problem)
            if not isinstance(given, list | tuple):
                raise TypeError(f"it gave {given!r:.80}; a list of messages is wanted: {_MESSAGE}")
            return with_system([check_message(message) for message in given], system_prompt)

    return worded


def with_system(messages: list[Message], system_prompt: str | None) -> list[Message]:
    """The conversation with this system message in place of its own; none for an empty one, its own
    for None."""
    if system_prompt is None:
        return messages
    others = [message for message in messages if message["role"] != "system"]
    return [{"role": "system", "content": system_prompt}, *others] if system_prompt else others


def check_message(message: Message) -> Message:
    """The message, if it is one. Raises TypeError for anything else, UnicodeEncodeError for halves
    of characters in it."""
    told = message if isinstance(message, Mapping) else {}
    if told.keys() - {"reasoning_content"} != {"role", "content"} or not all(
        isinstance(each, str) for each in told.values()
    ):
        raise TypeError(
            f"{message!r:.80} is no message with role and content; a list of messages is wanted: "
            f"{_MESSAGE}"
        )
    "".join(map(str, told.values())).encode()
    return message


_MESSAGE = '[{"role": "user", "content": TEXT}]'
