"""The renderer contract: messages to the tokens of a generation prompt, sampled tokens back to a
message."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NotRequired, TypedDict

if TYPE_CHECKING:
    from tinker import types


THINK, UNTHINK = "<think>", "</think>"
_BLOCK_BEGINS = re.compile(r"\s*+<think>")


class Message(TypedDict):
    """One turn of a conversation; `role` is system, user or assistant. Thinking models keep their
    reasoning apart."""

    role: str
    content: str
    reasoning_content: NotRequired[str]


class Renderer(ABC):
    """Turns conversations into tokens for one family of models.

    `extends` states the extension property: the prompt of a longer conversation begins with the
    prompt and the completion of the shorter, so that several turns make one training example. Where
    a chat template rewrites earlier turns (it drops their reasoning), there is no such property.

    `opens_thinking` is true when the generation prompt ends inside a think block.
    """

    extends: ClassVar[bool] = False
    opens_thinking: bool = False

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of the conversation, up to where the assistant is to speak."""

    @abstractmethod
    def supervised_tokens(self, messages: Sequence[Message]) -> tuple[list[int], list[float]]:
        """Return the tokens of the whole conversation and the weight of each token's loss.

        The weight is 1.0 on the assistant's text and on the token that ends its turn, for those
        assistant turns that are rendered as they would have been produced; all of them with the
        extension property, else the last.
        """

    @abstractmethod
    def get_stop_sequences(self) -> list[int]:
        """Token ids that end a completion."""

    def build_generation_prompt(self, messages: Sequence[Message]) -> types.ModelInput:
        """`prompt_tokens` as the input that a sampler takes."""
        from tinker import types

        return types.ModelInput.from_ints(self.prompt_tokens(messages))

    def build_supervised_example(
        self, messages: Sequence[Message]
    ) -> tuple[list[int], list[float]]:
        """`supervised_tokens`: tokens_T and loss weights_T."""
        return self.supervised_tokens(messages)

    def parse_response(self, tokens: Sequence[int]) -> tuple[Message, bool]:
        """The assistant's message in `tokens`, and whether it ended by a stop sequence rather than
        by length."""
        stops = set(self.get_stop_sequences())
        ended = bool(tokens) and tokens[-1] in stops
        body = tokens[:-1] if ended else tokens
        content = self.tokenizer.decode(
            list(body), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return self.read_message(content), ended

    def read_message(self, text: str) -> Message:
        """Split a completion into reasoning and answer, in time linear in the text.

        Think blocks with which the text begins are reasoning, each up to the first end tag; the
        rest is the answer. While one is not ended, there is no answer.
        """
        thoughts, at = list[str](), 0
        begin = _BLOCK_BEGINS.match(text)
        if begin is None and not self.opens_thinking:
            return {"role": "assistant", "content": text}
        while begin is not None or not thoughts:
            at = begin.end() if begin else at
            end = text.find(UNTHINK, at)
            thoughts.append(text[at : end if end >= 0 else None].strip("\n"))
            at = end + len(UNTHINK) if end >= 0 else len(text)
            begin = _BLOCK_BEGINS.match(text, at)
        return {
            "role": "assistant",
            "content": text[at:].lstrip("\n"),
            "reasoning_content": "\n".join(thoughts),
        }

    @staticmethod
    def leaves_thinking_open(opening: str) -> bool:
        """True when a prompt's last words begin a think block and do not end it."""
        _, begun, rest = opening.rpartition(THINK)
        return bool(begun) and UNTHINK not in rest

    def encode_text(self, text: str) -> list[int]:
        """Tokens of plain text: special-token strings inside it stay text, so that content cannot
        forge a turn."""
        tokens: list[int] = self.tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=True
        )
        return tokens

    def special(self, token: str) -> int:
        """The id of a special token. Raises ValueError when the tokenizer has none of that name."""
        index = self.tokenizer.convert_tokens_to_ids(token)
        if index is None or index == getattr(self.tokenizer, "unk_token_id", None):
            raise ValueError(
                f"the tokenizer has no token {token!r}; this renderer is not made for its model"
            )
        return int(index)
