"""The renderer contract: a conversation becomes the tokens of a generation prompt, and sampled
tokens become a message."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NotRequired, TypedDict

from code_rl.util.door import Lazy
from code_rl.util.thinking import THINK, UNTHINK, split_thinking

if TYPE_CHECKING:
    from tinker import types
else:
    types = Lazy("tinker.types")


class Message(TypedDict):
    """One turn of a conversation; `role` is system, user or assistant. The reasoning of a thinking
    model has its own field."""

    role: str
    content: str
    reasoning_content: NotRequired[str]


class Renderer(ABC):
    """Turns conversations into tokens for one family of models.

    `extends` states the extension property: the prompt of a longer conversation begins with the
    prompt and the completion of the shorter one. Several turns then make one training example. A
    chat template that rewrites earlier turns, for example by dropping their reasoning, does not
    have it.

    `opens_thinking` is true if the generation prompt ends inside a think block.
    """

    extends: ClassVar[bool] = False
    opens_thinking: bool = False

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of the conversation, up to the beginning of the assistant's next
        turn."""

    @abstractmethod
    def build_supervised_example(
        self, messages: Sequence[Message]
    ) -> tuple[list[int], list[float]]:
        """Return the tokens of the whole conversation and the loss weight of each token.

        The weight is 1.0 on the text of trained assistant turns and on the token that ends each of
        them, else 0.0. All assistant turns are trained with the extension property; without it,
        only the last one, because templates rewrite earlier turns.
        """

    @abstractmethod
    def get_stop_sequences(self) -> list[int] | list[str]:
        """Return the token ids, or the texts, that end a completion. The sampler gets them, and
        `parse_response` looks for them."""

    def build_generation_prompt(
        self, messages: Sequence[Message], role: Literal["assistant"] = "assistant"
    ) -> types.ModelInput:
        """Return `prompt_tokens` as a sampler's input; only the assistant's turn can follow.
        Raises ValueError for another role."""
        if role != "assistant":
            raise ValueError(f"role={role!r} cannot be sampled; it must be 'assistant'")
        return types.ModelInput.from_ints(self.prompt_tokens(messages))

    def parse_response(self, tokens: Sequence[int]) -> tuple[Message, bool]:
        """Return the assistant's message in sampled `tokens`, and True if a stop sequence ended it
        (False: the token limit). A stop token at the end is not part of the message."""
        stops = self.get_stop_sequences()
        ended = bool(tokens) and tokens[-1] in stops
        body = tokens[:-1] if ended else tokens
        content = self.tokenizer.decode(
            list(body), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        named = any(isinstance(stop, str) and stop in content for stop in stops)
        return self.read_message(content), ended or named

    def read_message(self, text: str) -> Message:
        """Split a completion into reasoning and answer, in time linear in the text.

        Think blocks at the beginning of the text are reasoning, each up to its first end tag; the
        rest is the answer. Without an end tag there is no answer.
        """
        thoughts, answer = split_thinking(text, self.opens_thinking)
        if not thoughts:
            return {"role": "assistant", "content": text}
        return {
            "role": "assistant",
            "content": answer.lstrip("\n"),
            "reasoning_content": "\n".join(thought.strip("\n") for thought in thoughts),
        }

    @staticmethod
    def leaves_thinking_open(opening: str) -> bool:
        """Return True if a prompt's last text, `opening`, opens a think block without closing
        it."""
        _, begun, rest = opening.rpartition(THINK)
        return bool(begun) and UNTHINK not in rest

    def encode_text(self, text: str) -> list[int]:
        """Return the tokens of plain text, without a beginning-of-text token. Strings that look
        like special tokens stay text, so content cannot forge a turn."""
        tokens: list[int] = self.tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=True
        )
        return tokens

    def special(self, token: str) -> int:
        """Return the id of a special token. Raises ValueError if the tokenizer does not have it."""
        index = self.tokenizer.convert_tokens_to_ids(token)
        if index is None or index == getattr(self.tokenizer, "unk_token_id", None):
            raise ValueError(
                f"the tokenizer has no token {token!r}; this renderer is not made for its model"
            )
        return int(index)
