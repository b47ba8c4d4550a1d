"""A renderer of plain text for base models, whose tokenizers have no chat template."""

from __future__ import annotations

from collections.abc import Sequence

from code_rl.policy.renderers.base import Message, Renderer

END = "\n\nUser:"


class RoleColonRenderer(Renderer):
    """Turns as `User: …`, `Assistant: …`, separated by an empty line, after the tokens with which
    the tokenizer begins a text. An answer ends where the model would begin the user's next turn.

    The tokens of two turns may merge, so there is no extension property.
    """

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        turns = "".join(f"{each['role'].title()}: {each['content']}\n\n" for each in messages)
        return [*self.tokenizer.encode(""), *self.encode_text(f"{turns}Assistant:")]

    def supervised_tokens(self, messages: Sequence[Message]) -> tuple[list[int], list[float]]:
        """Put the loss on the last message, which is the answer to the others, and on its end."""
        *turns, answer = messages
        prompt = self.prompt_tokens(turns)
        spoken = self.encode_text(f" {answer['content']}{END}")
        return [*prompt, *spoken], [0.0] * len(prompt) + [1.0] * len(spoken)

    def get_stop_sequences(self) -> list[str]:
        """Return the beginning of the user's next turn."""
        return [END]

    def read_message(self, text: str) -> Message:
        """Return the text before the user's next turn and the end-of-text token as a message."""
        answer = text.partition(END)[0].removesuffix(self.tokenizer.eos_token or "")
        return super().read_message(answer.strip())
