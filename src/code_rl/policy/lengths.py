"""The lengths of prompts, and the room that a model's context leaves for answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from code_rl.grading import Problem
from code_rl.policy.environments import Environment
from code_rl.policy.renderers import Message, Renderer
from code_rl.util.errors import DataError

Say = Callable[[str], None]
CHARS_PER_TOKEN = 16
"""Upper bound of characters per token. Only the beginning of a very long prompt is encoded."""


def cap_max_tokens(max_tokens: int, context: int, say: Say) -> int:
    """Return `max_tokens`, lowered with a notice to at most `context` − 1. Each prompt leaves
    less."""
    room = context - 1
    if max_tokens > room:
        say(
            f"max_tokens={max_tokens} capped to {room}: the model's context is {context} tokens, "
            "each prompt's own included"
        )
    return min(max_tokens, room)


def prompt_length(
    problem: Problem, environment: Environment, renderer: Renderer, limit: int
) -> int:
    """Return the number of tokens of a problem's first prompt. A prompt longer than `limit` may be
    counted only in part; its count is at least `limit`."""
    messages = environment.begin(problem.view())
    most = CHARS_PER_TOKEN * limit
    if any(len(each["content"]) > most for each in messages):
        cut: list[Message] = [{**each, "content": each["content"][:most]} for each in messages]
        length = len(renderer.prompt_tokens(cut))
        if length >= limit:
            return length
    return len(renderer.prompt_tokens(messages))


def refuse_prompts(lengths: Sequence[tuple[str, int]], context: int, which: str) -> None:
    """Raise DataError if prompts, given as (id, length), leave no room for an answer in the model's
    context. The message has their number and the first of them."""
    overlong = [(name, length) for name, length in lengths if length >= context]
    if overlong:
        raise DataError(
            f"{len(overlong)} of {len(lengths)} {which} problems have prompts that do not fit "
            f"into the model's context of {context} tokens; the first is {overlong[0][0]!r} with "
            f"at least {overlong[0][1]}. Leave these problems out, or choose another model"
        )
