"""A renderer that follows any tokenizer's own chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from code_rl.policy.renderers.base import Message, Renderer
from code_rl.util.errors import ConfigError, DataError

_PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": "answer"},
)
_PRIVATE = range(0xE000, 0xF8FF)


class ChatTemplateRenderer(Renderer):
    """Whatever the tokenizer's `chat_template` writes, token for token.

    Special-token text inside messages stays text: it travels through the template in disguise
    (characters of the private use area) and the pieces between real special tokens are encoded one
    by one. Templates may rewrite earlier turns, so the extension property is not promised.

    Raises ConfigError when the tokenizer has no chat template, or one in which an assistant's turn
    never ends.
    """

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError("the tokenizer has no chat template; give renderer= by name")
        specials = {
            token.content: index
            for index, token in tokenizer.added_tokens_decoder.items()
            if token.special
        }
        self._specials: Mapping[str, int] = dict(
            sorted(specials.items(), key=lambda item: -len(item[0]))
        )
        self._split = (
            re.compile("(" + "|".join(map(re.escape, self._specials)) + ")") if specials else None
        )
        self._stops = self._find_stops()
        opening = self._text(_PROBE[:1], opening=True).rpartition(_PROBE[0]["content"])[2]
        self.opens_thinking = self.leaves_thinking_open(opening)
        text = self._text(_PROBE, opening=True)
        self._pieces_agree = self._encode_pieces(text, {}) == self._encode_whole(text)

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """The template with its generation prompt. Raises DataError where special-token text cannot
        be kept text."""
        disguised, disguises = self._disguise(messages)
        return self._encode(self._text(disguised, opening=True), disguises)

    def supervised_tokens(self, messages: Sequence[Message]) -> tuple[list[int], list[float]]:
        """Loss on assistant turns that stand in the whole conversation as they do when they are its
        end.

        Raises DataError when not even the last turn does, or when it is not the assistant's.
        """
        disguised, disguises = self._disguise(messages)
        text = self._text(disguised, opening=False)
        cuts: list[tuple[int, int]] = []
        for index, message in enumerate(disguised):
            if message["role"] == "assistant":
                prompt = self._text(disguised[:index], opening=True)
                whole = self._text(disguised[: index + 1], opening=False)
                end = len(prompt) + self._turn_length(whole[len(prompt) :])
                if whole.startswith(prompt) and text.startswith(whole[:end]):
                    cuts.append((len(prompt), end))
        if (
            not messages
            or messages[-1]["role"] != "assistant"
            or not cuts
            or cuts[-1][0] < len(prompt)
        ):
            raise DataError(
                "the chat template does not write the last turn as the answer to the turns "
                "before it"
            )
        tokens: list[int] = []
        weights: list[float] = []
        at = 0
        for start, end in [*cuts, (len(text), len(text))]:
            for piece, weight in ((text[at:start], 0.0), (text[start:end], 1.0)):
                encoded = self._encode(piece, disguises) if piece else []
                tokens += encoded
                weights += [weight] * len(encoded)
            at = end
        return tokens, weights

    def get_stop_sequences(self) -> list[int]:
        """The special token that ends an assistant's turn in the template, and the tokenizer's end
        of text."""
        return list(self._stops)

    def _text(self, messages: Sequence[Message], *, opening: bool) -> str:
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=opening
            )
        except Exception as error:  # a template raises what it likes, jinja's own errors included
            raise DataError(
                f"the chat template refuses this conversation: {' '.join(str(error).split())}"
            ) from error
        return cast(str, text)

    def _find_stops(self) -> tuple[int, ...]:
        after = self._text(_PROBE, opening=False).rpartition("answer")[2]
        ends = [self._specials[piece] for piece in self._cut(after) if piece in self._specials][:1]
        eos = self.tokenizer.eos_token_id
        stops = tuple(dict.fromkeys([*ends, *([] if eos is None else [int(eos)])]))
        if not stops:
            raise ConfigError(
                "the chat template ends the assistant's turn with no special token, and there is "
                "no eos"
            )
        return stops

    def _turn_length(self, text: str) -> int:
        """Length of an assistant's turn at the beginning of `text`: up to and with the first
        special token that ends it."""
        at = 0
        for piece in self._cut(text):
            at += len(piece)
            if self._specials.get(piece) in self._stops:
                return at
        return len(text)

    def _cut(self, text: str) -> list[str]:
        return [piece for piece in self._split.split(text) if piece] if self._split else [text]

    def _disguise(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, str]]:
        """Replace special-token text in the messages by unused private characters; return both and
        the mapping."""
        everything = "".join(
            value for message in messages for value in message.values() if isinstance(value, str)
        )
        used = set(everything)
        free = (chr(code) for code in _PRIVATE if chr(code) not in used)
        disguises = {next(free): token for token in self._specials if token in everything}
        if not disguises:
            return list(messages), {}
        if not self._pieces_agree:
            raise DataError(
                "a message holds the text of a special token, which this tokenizer cannot encode "
                "as text"
            )

        def hide(value: str) -> str:
            for mask, token in disguises.items():
                value = value.replace(token, mask)
            return value

        return [
            cast(Message, {key: hide(cast(str, value)) for key, value in m.items()})
            for m in messages
        ], disguises

    def _encode(self, text: str, disguises: Mapping[str, str]) -> list[int]:
        return self._encode_pieces(text, disguises) if disguises else self._encode_whole(text)

    def _encode_whole(self, text: str) -> list[int]:
        tokens: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def _encode_pieces(self, text: str, disguises: Mapping[str, str]) -> list[int]:
        tokens: list[int] = []
        for piece in self._cut(text):
            if piece in self._specials:
                tokens.append(self._specials[piece])
                continue
            for mask, token in disguises.items():
                piece = piece.replace(mask, token)
            tokens += self.encode_text(piece)
        return tokens
