"""Messages to tokens and back: `get_renderer` chooses a renderer, `base` is the contract, `qwen3`
and `template` are built in.

Other packages import from here, and `Message` and `Renderer` from `base`.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from code_rl.policy.renderers.base import Message, Renderer
from code_rl.policy.renderers.qwen3 import (
    Qwen3DisableThinkingRenderer,
    Qwen3InstructRenderer,
    Qwen3Renderer,
    Qwen3ThinkingRenderer,
    Qwen35DisableThinkingRenderer,
    Qwen35Renderer,
)
from code_rl.policy.renderers.template import ChatTemplateRenderer, RoleColonRenderer
from code_rl.util.errors import ConfigError, DataError

__all__ = ["AUTO", "Message", "Renderer", "check_renderer", "get_renderer", "name_of"]

AUTO = "auto"
RENDERERS: dict[str, type[Renderer]] = {
    "qwen3_instruct": Qwen3InstructRenderer,
    "qwen3": Qwen3Renderer,
    "qwen3_thinking": Qwen3ThinkingRenderer,
    "qwen3_disable_thinking": Qwen3DisableThinkingRenderer,
    "qwen3_5": Qwen35Renderer,
    "qwen3_5_disable_thinking": Qwen35DisableThinkingRenderer,
    "chat_template": ChatTemplateRenderer,
    "role_colon": RoleColonRenderer,
}
_PROBES: tuple[tuple[Message, ...], ...] = (
    ({"role": "user", "content": "one"},),
    (
        {"role": "system", "content": "zero"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\ntwo"},
        {"role": "user", "content": " three \n"},
    ),
)


class UnknownRendererError(ConfigError, ValueError):
    """No renderer has that name."""


def get_renderer(name: str, tokenizer: Any) -> Renderer:
    """Return the renderer called `name`, which for `chat_template` may have options
    (`chat_template:option=value,…`). `auto` chooses one that agrees with the tokenizer's own chat
    template, or `role_colon`, with a warning in the log, if it has none.

    Raises ConfigError (also a ValueError) for an unknown name, and ConfigError for a renderer that
    the tokenizer does not support.
    """
    if name == AUTO:
        return _matching(tokenizer)
    check_renderer(name)
    name, _, options = name.partition(":")
    try:
        if name == "chat_template":
            return ChatTemplateRenderer(tokenizer, _read_options(options))
        if options:
            raise ValueError(f"only chat_template takes options, as {options}")
        return RENDERERS[name](tokenizer)
    except ValueError as error:
        raise ConfigError(f"renderer={name}: {error}") from error


def _read_options(text: str) -> dict[str, Any]:
    """Read options like `reasoning_effort=low,enable_thinking=false`. Values are parsed as JSON
    where possible, else they are text; one that is missing is an empty text."""
    options: dict[str, Any] = {}
    for item in text.split(",") if text else ():
        option, _, value = item.partition("=")
        try:
            options[option] = json.loads(value)
        except ValueError:
            options[option] = value
    return options


def check_renderer(name: str) -> None:
    """Raise ConfigError (also a ValueError) for an unknown `renderer=`. Options after a colon are
    not checked, since that needs the tokenizer."""
    names = [AUTO, *sorted(RENDERERS)]
    if name.partition(":")[0] not in names:
        raise UnknownRendererError(f"renderer={name!r} must be one of {', '.join(names)}")


def name_of(renderer: Renderer) -> str:
    """Return the value of `renderer=` that names this renderer, without options, or its class's
    name if it is not built in."""
    return next(
        (name for name, kind in RENDERERS.items() if kind is type(renderer)),
        type(renderer).__name__,
    )


def _matching(tokenizer: Any) -> Renderer:
    """Return the first renderer of `RENDERERS` whose prompts equal the chat template's on
    `_PROBES`, else the renderer that calls the template. Without a template, it is the plain one,
    with a warning. Raises ConfigError for a template that cannot be followed."""
    if not getattr(tokenizer, "chat_template", None):
        logging.getLogger("code_rl").warning(
            "the tokenizer has no chat template: renderer=role_colon writes plain text, 'User: …'"
        )
        return RoleColonRenderer(tokenizer)
    general = ChatTemplateRenderer(tokenizer)
    try:
        prompts = [general.prompt_tokens(probe) for probe in _PROBES]
    except DataError:  # for example a template without system turns
        return general
    for kind in RENDERERS.values():
        try:
            candidate = kind(tokenizer)
        except ValueError:
            continue
        if [candidate.prompt_tokens(probe) for probe in _PROBES] == prompts:
            return candidate
    return general
