"""A renderer that follows any tokenizer's own chat template, and one of plain text for base models,
whose tokenizers have none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from code_rl.policy.renderers.base import Message, Renderer
from code_rl.util.errors import ConfigError, DataError
from code_rl.util.thinking import THINK

_PROBE: tuple[Message, ...] = (
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": "answer"},
)
_PRIVATE = range(0xE000, 0xF8FF)
END = "\n\nUser:"


class ChatTemplateRenderer(Renderer):
    """Renders with the tokenizer's `chat_template`, token for token.

    Text that looks like a special token stays text. It passes through the template as characters of
    Unicode's private use area, and the text between real special tokens is encoded piece by piece.
    Templates may rewrite earlier turns, so the extension property is not promised. `options` are
    the template's own variables, such as `reasoning_effort`.

    If the template puts special tokens between the generation prompt and the answer (gpt-oss:
    `<|channel|>final<|message|>`), only text after them is the answer.

    Raises ConfigError if the tokenizer has no chat template, or if the template lacks an option of
    `options`, never ends an assistant's turn, or drops a question or an answer.
    """

    def __init__(self, tokenizer: Any, options: Mapping[str, Any] | None = None) -> None:
        """Render two probes to find the turn's end, the generation prompt and the text before an
        answer. `options` None: no options. Raises ConfigError as the class says, and DataError if
        the template refuses a probe."""
        super().__init__(tokenizer)
        template = getattr(tokenizer, "chat_template", None)
        if not template:
            raise ConfigError(
                "the tokenizer has no chat template; give renderer=role_colon, or put a "
                "chat_template.jinja into the model's folder"
            )
        self._options = dict(options or {})
        for option in self._options:
            if not re.search(rf"\b{re.escape(option)}\b", str(template)):
                raise ConfigError(f"renderer=: the chat template has no option {option!r}")
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
        prompt = self._text(_PROBE[:1], opening=True)
        opening = prompt.rpartition(_PROBE[0]["content"])[2]
        self.opens_thinking = self.leaves_thinking_open(opening)
        text = self._text(_PROBE, opening=True)
        self._pieces_agree = self._encode(text, {}) == self._encode(text)
        whole = self._text(_PROBE, opening=False)
        reply = whole[len(prompt) :] if whole.startswith(prompt) else ""
        lead = reply.partition("answer")[0]
        marked = THINK not in lead and any(piece in self._specials for piece in self._cut(lead))
        self._lead = lead if marked else ""
        read, _ = self.parse_response(self._encode(reply[: self._turn_length(reply)]))
        answer = read["content"] if reply else whole
        if "question" not in prompt or "answer" not in answer:
            raise ConfigError(
                "the chat template does not write text messages, or its answers are not read back; "
                "give renderer= by name"
            )

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the tokens of the template's generation prompt for the conversation. Raises
        DataError if the template refuses it, or if text that looks like a special token cannot be
        kept as text."""
        disguised, disguises = self._disguise(messages)
        return self._encode(self._text(disguised, opening=True), disguises)

    def build_supervised_example(
        self, messages: Sequence[Message]
    ) -> tuple[list[int], list[float]]:
        """Put the loss on assistant turns, with the token that ends them, that the template renders
        the same inside the conversation as at its end. Other assistant turns get no loss.

        Raises DataError if the last turn is not one of these, or is not the assistant's, and as
        `prompt_tokens` does.
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
        """Return the ids of the special token that ends an assistant's turn in the template, and of
        the tokenizer's end-of-text token."""
        return list(self._stops)

    def read_message(self, text: str) -> Message:
        """Split a completion into reasoning and answer. If the template puts special tokens before
        the answer, they are dropped, the text before them is the reasoning, and without them there
        is no answer."""
        if not self._lead:
            return super().read_message(text)
        thoughts, found, answer = text.rpartition(self._lead)
        if not found:
            thoughts, answer = answer, ""
        return {"role": "assistant", "content": answer, "reasoning_content": thoughts}

    def _text(self, messages: Sequence[Message], *, opening: bool) -> str:
        """Render the chat template as one text, with the generation prompt at its end if `opening`.
        Raises DataError if it refuses the conversation."""
        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=opening, **self._options
            )
        except Exception as error:  # templates raise any exception, jinja's own included
            raise DataError(
                f"the chat template refuses this conversation: {' '.join(str(error).split())}"
            ) from error
        return cast(str, text)

    def _find_stops(self) -> tuple[int, ...]:
        """Return the ids of the special token that ends an assistant's turn, found by rendering two
        probes, and of the end-of-text token. Raises ConfigError if there is neither."""
        # GLM has no end token: only the next turn's first token ends an answer.
        for conversation in (_PROBE, (*_PROBE, _PROBE[0])):
            after = self._text(conversation, opening=False).rpartition("answer")[2]
            ends = [self._specials[cut] for cut in self._cut(after) if cut in self._specials][:1]
            if ends:
                break
        eos = self.tokenizer.eos_token_id
        stops = tuple(dict.fromkeys([*ends, *([] if eos is None else [int(eos)])]))
        if not stops:
            raise ConfigError(
                "the chat template ends the assistant's turn with no special token, and there is "
                "no eos"
            )
        return stops

    def _turn_length(self, text: str) -> int:
        """Return the length of the assistant's turn at the beginning of `text`, including the
        special token that ends it."""
        at = 0
        for piece in self._cut(text):
            at += len(piece)
            if self._specials.get(piece) in self._stops:
                return at
        return len(text)

    def _cut(self, text: str) -> list[str]:
        """Split a text at its special tokens, which are pieces of their own; no piece is empty."""
        return [piece for piece in self._split.split(text) if piece] if self._split else [text]

    def _disguise(self, messages: Sequence[Message]) -> tuple[list[Message], dict[str, str] | None]:
        """Replace special-token text in the messages by unused private characters; return both and
        the mapping from character to token (None if there is no such text). Raises DataError if
        this tokenizer cannot encode such text as text."""
        everything = "".join(
            value for message in messages for value in message.values() if isinstance(value, str)
        )
        used = set(everything)
        free = (chr(code) for code in _PRIVATE if chr(code) not in used)
        disguises = {next(free): token for token in self._specials if token in everything}
        if not disguises:
            return list(messages), None
        if not self._pieces_agree:
            raise DataError(
                "a message holds the text of a special token, which this tokenizer cannot encode "
                "as text"
            )

        def hide(value: str) -> str:
            """Return a text with each special token's text replaced by its private character."""
            for mask, token in disguises.items():
                value = value.replace(token, mask)
            return value

        return [
            cast(Message, {key: hide(cast(str, value)) for key, value in m.items()})
            for m in messages
        ], disguises

    def _encode(self, text: str, disguises: Mapping[str, str] | None = None) -> list[int]:
        """Return the tokens of a text: with `disguises` None, of the whole, special tokens
        included; else of the pieces between special tokens one by one, in which private characters
        become the text that they stand for."""
        tokens: list[int] = []
        if disguises is None:
            tokens += self.tokenizer.encode(text, add_special_tokens=False)
            return tokens
        for piece in self._cut(text):
            if piece in self._specials:
                tokens.append(self._specials[piece])
                continue
            for mask, token in disguises.items():
                piece = piece.replace(mask, token)
            tokens += self.encode_text(piece)
        return tokens


class RoleColonRenderer(Renderer):
    """Turns as `User: …`, `Assistant: …`, separated by an empty line, after the tokens with which
    the tokenizer begins a text. An answer ends where the model would begin the user's next turn.

    The tokens of two turns may merge, so there is no extension property.
    """

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the conversation as plain text, encoded in one piece, up to `Assistant:`."""
        turns = "".join(f"{each['role'].title()}: {each['content']}\n\n" for each in messages)
        return [*self.tokenizer.encode(""), *self.encode_text(f"{turns}Assistant:")]

    def build_supervised_example(
        self, messages: Sequence[Message]
    ) -> tuple[list[int], list[float]]:
        """Put the loss on the last message, which is the answer to the others, and on its end.
        Raises ValueError without messages."""
        *turns, answer = messages
        prompt = self.prompt_tokens(turns)
        spoken = self.encode_text(f" {answer['content']}{END}")
        return [*prompt, *spoken], [0.0] * len(prompt) + [1.0] * len(spoken)

    def get_stop_sequences(self) -> list[str]:
        """Return the text with which the user's next turn begins. The sampler must support text as
        a stop sequence."""
        return [END]

    def read_message(self, text: str) -> Message:
        """Return the text before the user's next turn and the end-of-text token as a message."""
        answer = text.partition(END)[0].removesuffix(self.tokenizer.eos_token or "")
        return super().read_message(answer.strip())
