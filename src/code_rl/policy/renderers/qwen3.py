r"""ChatML of Qwen3 and Qwen3.5: `<|im_start|>role\ncontent<|im_end|>\n`, as the models' own chat
templates write it.

The tokens equal the templates', with two intended differences. The text of a special token inside a
message stays text. The assistant's text is encoded apart from the opening before it, as in
sampling; encoding a template's whole output at once would merge the opening's newline with
whitespace at the beginning of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from code_rl.policy.renderers.base import Message, Renderer
from code_rl.util.errors import DataError
from code_rl.util.thinking import THINK, UNTHINK

START, END = "<|im_start|>", "<|im_end|>"
NO_THOUGHTS = f"{THINK}\n\n{UNTHINK}\n\n"


class _ChatML(Renderer):
    r"""Turns between `<|im_start|>` and `<|im_end|>`. Subclasses define the content of an
    assistant's turn.

    `primer` is the text after `assistant\n` that the generation prompt already contains.
    """

    primer: ClassVar[str] = ""

    def __init__(self, tokenizer: Any) -> None:
        """Look up the special tokens. Raises ValueError if the tokenizer has no `<|im_start|>` or
        `<|im_end|>`."""
        super().__init__(tokenizer)
        self._start = self.special(START)
        self._end = self.special(END)
        self._newline = self.encode_text("\n")
        self.opens_thinking = self.leaves_thinking_open(self.primer)

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of all turns, and of the opening of the assistant's next turn with the
        primer."""
        turns = self._turns(messages, last=None)
        tokens = [token for turn in turns for part in turn for token in part]
        return tokens + self._opening(self.primer)

    def build_supervised_example(
        self, messages: Sequence[Message]
    ) -> tuple[list[int], list[float]]:
        """Put the loss on the assistant's text and on the token that ends its turn, without the
        primer: in every turn with the extension property, else only in the last turn."""
        tokens: list[int] = []
        weights: list[float] = []
        last = len(messages) - 1
        for index, parts in enumerate(self._turns(messages, last)):
            trained = 1.0 if self.extends or index == last else 0.0
            for part, weight in zip(parts, (0.0, trained, 0.0), strict=True):
                tokens += part
                weights += [weight] * len(part)
        return tokens, weights

    def get_stop_sequences(self) -> list[int]:
        """Return the token that ends a turn, `<|im_end|>`."""
        return [self._end]

    def opening_and_text(
        self, messages: Sequence[Message], index: int, last: bool
    ) -> tuple[str, str]:
        """Split the assistant's turn at `index` into the text of its opening, which is never
        trained, and the assistant's own text. `last` is true if it is the turn that a training
        example ends with. By default the opening is empty."""
        del last
        return "", messages[index]["content"]

    def _turns(
        self, messages: Sequence[Message], last: int | None
    ) -> Iterator[tuple[list[int], list[int], list[int]]]:
        """Yield each turn's opening, its end, and between them the assistant's text with the token
        that ends it (empty for other turns). `last` is the index of a training example's last turn
        (None: for a prompt, no turn is the last)."""
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                primer, said = self.opening_and_text(messages, index, index == last)
                yield self._opening(primer), [*self.encode_text(said), self._end], self._newline
            else:
                body = self.encode_text(f"{message['role']}\n{message['content']}")
                yield [self._start, *body, self._end], [], self._newline

    def _after_primer(self, whole: str) -> tuple[str, str]:
        """Split an assistant's text into the primer and the rest, if it begins with the primer;
        else the first part is empty."""
        if whole.startswith(self.primer):
            return self.primer, whole.removeprefix(self.primer)
        return "", whole

    def _opening(self, primer: str) -> list[int]:
        return [self._start, *self.encode_text(f"assistant\n{primer}")]


class Qwen3InstructRenderer(_ChatML):
    """Qwen3 Instruct (2507): plain ChatML without a think block. It has the extension property."""

    extends: ClassVar[bool] = True


class Qwen3Renderer(_ChatML):
    """Qwen3's hybrid models with thinking on: the model itself opens the think block.

    Earlier turns lose their reasoning, as in the chat template, so there is no extension property.
    """

    def opening_and_text(
        self, messages: Sequence[Message], index: int, last: bool
    ) -> tuple[str, str]:
        """Include the think block only in turns after the last question. It is empty only in the
        conversation's last turn."""
        reasoning, content = reasoning_and_answer(messages[index])
        if index > last_question(messages) and (last or reasoning):
            block = f"{THINK}\n{reasoning.strip(chr(10))}\n{UNTHINK}\n\n"
            return self._after_primer(block + content.lstrip("\n"))
        return "", content


class Qwen3ThinkingRenderer(Qwen3Renderer):
    """Qwen3 Thinking (2507): the generation prompt opens the think block."""

    primer: ClassVar[str] = f"{THINK}\n"


class Qwen3DisableThinkingRenderer(Qwen3Renderer):
    """Qwen3's hybrid models with thinking off: the generation prompt holds an empty think block."""

    primer: ClassVar[str] = NO_THOUGHTS


class Qwen35Renderer(_ChatML):
    """Qwen3.5 with thinking on: the generation prompt opens the think block. Whitespace around each
    text is stripped.

    Answers after the last user message have a think block, an empty one without reasoning. Earlier
    answers lose theirs, so a conversation's tokens are not a prefix of the next turn's.
    """

    primer: ClassVar[str] = f"{THINK}\n"

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Trim every turn. Raises DataError where the chat template raises: no question, or a
        system turn that is not the first."""
        return super().prompt_tokens(_trimmed(messages))

    def build_supervised_example(
        self, messages: Sequence[Message]
    ) -> tuple[list[int], list[float]]:
        """Trim every turn, and put the loss on the last one, if it is the assistant's, and on its
        end. Raises DataError as `prompt_tokens` does."""
        return super().build_supervised_example(_trimmed(messages))

    def opening_and_text(
        self, messages: Sequence[Message], index: int, last: bool
    ) -> tuple[str, str]:
        """Include the think block in every turn after the last question, and in no earlier one."""
        del last
        reasoning, content = reasoning_and_answer(messages[index])
        if index <= last_question(messages):
            return "", content
        return self._after_primer(f"{THINK}\n{reasoning.strip()}\n{UNTHINK}\n\n{content}")


class Qwen35DisableThinkingRenderer(Qwen35Renderer):
    """Qwen3.5 with thinking off: the generation prompt holds an empty think block."""

    primer: ClassVar[str] = NO_THOUGHTS


def _trimmed(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with whitespace around each content removed. Raises DataError for a
    system turn that is not the first, and for a conversation without a user's question."""
    if any(message["role"] == "system" for message in messages[1:]):
        raise DataError("Qwen3.5 takes a system turn at the beginning of a conversation only")
    trimmed: list[Message] = [{**one, "content": one["content"].strip()} for one in messages]
    if not any(map(_asks, trimmed)):
        raise DataError("Qwen3.5 takes no conversation without a question of the user's")
    return trimmed


def reasoning_and_answer(message: Message) -> tuple[str, str]:
    """Return an assistant message's reasoning and the rest. The reasoning has its own field or is a
    think block in the content; without either it is empty."""
    content = message["content"]
    if "reasoning_content" in message:
        return message["reasoning_content"], content
    if UNTHINK not in content:
        return "", content
    pieces = content.split(UNTHINK)
    return pieces[0].rstrip("\n").split(THINK)[-1].lstrip("\n"), pieces[-1].lstrip("\n")


def last_question(messages: Sequence[Message]) -> int:
    """Return the index of the last user turn that is not a tool's response, or the last index if
    there is none."""
    return next(
        (index for index in reversed(range(len(messages))) if _asks(messages[index])),
        len(messages) - 1,
    )


def _asks(message: Message) -> bool:
    """Return True for a user turn that is not a tool's response."""
    content = message["content"]
    response = content.startswith("<tool_response>") and content.endswith("</tool_response>")
    return message["role"] == "user" and not response
