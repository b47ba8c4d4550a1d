"""What each benchmark asks a model, as its authors publish it; every wording has a version that goes into the results.

Built from a problem's public view and the prompt text of its row: nothing hidden can reach a model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from code_rl.environments.wording import get_wording, with_system
from code_rl.problems.problem import ProblemView
from code_rl.problems.prompts import (
    LCB_FORMATTING_WITH_STARTER_CODE,
    LCB_FORMATTING_WITHOUT_STARTER_CODE,
    LCB_SYSTEM_MESSAGE_GENERIC,
)
from code_rl.renderers.base import Message

EVALPLUS_SYSTEM = "You are a helpful assistant good at coding."
EVALPLUS_INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
)
MBPP_INSTRUCTION = "You are an expert Python programmer, and here is your task:"


@dataclass(frozen=True, slots=True)
class PromptStyle:
    """`version` names the wording, and where it is from; `build` makes the conversation from a view and the row's prompt text.

    None: the conversation begins as the environment begins it, as in training.
    """

    version: str
    build: Callable[[ProblemView, str], list[Message]] | None


def _livecodebench(view: ProblemView, _text: str) -> list[Message]:
    if view.starter_code:
        body = f"### Format: {LCB_FORMATTING_WITH_STARTER_CODE}\n```python\n{view.starter_code}\n```\n\n"
    else:
        body = f"### Format: {LCB_FORMATTING_WITHOUT_STARTER_CODE}\n```python\n# YOUR CODE HERE\n```\n\n"
    question = f"### Question:\n{view.statement}\n\n{body}### Answer: (use the provided format with backticks)\n\n"
    return [{"role": "system", "content": LCB_SYSTEM_MESSAGE_GENERIC}, {"role": "user", "content": question}]


def _evalplus(_view: ProblemView, text: str) -> list[Message]:
    content = f"{EVALPLUS_INSTRUCTION}\n```python\n{text.strip()}\n```"
    return [{"role": "system", "content": EVALPLUS_SYSTEM}, {"role": "user", "content": content}]


def _mbpp(_view: ProblemView, text: str) -> list[Message]:
    return [{"role": "user", "content": f"{MBPP_INSTRUCTION} {text}\n"}]


COURSE = PromptStyle("course/1 (tinker-cookbook code_rl, LiveCodeBench's wording in one message)", None)
LIVECODEBENCH = PromptStyle("livecodebench/28fef95 (generic chat: system and user)", _livecodebench)
EVALPLUS = PromptStyle("evalplus/0.3.1 (chat: system and user)", _evalplus)
MBPP = PromptStyle("mbpp/austin2021 (zero-shot, all of the row's asserts shown)", _mbpp)


def reworded(style: PromptStyle, prompt: str | None, system_prompt: str | None) -> PromptStyle:
    """`style`, or the wording called `prompt` in its place, under another system message where one is given."""
    if prompt is None and system_prompt is None:
        return style
    wording, own = get_wording(prompt, system_prompt), style.build if prompt is None else None

    def build(view: ProblemView, text: str) -> list[Message]:
        return wording(view) if own is None else with_system(own(view, text), system_prompt)

    said = "" if system_prompt is None else f", system prompt {system_prompt!r}"
    return PromptStyle(f"{prompt or style.version}{said}", build)
