"""Renderers against the models' own chat templates: token for token, on generated conversations."""

from __future__ import annotations

import random
import re
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from code_rl.engine.names import source_of
from code_rl.policy.renderers import Message, Renderer, get_renderer, name_of
from code_rl.util.errors import DataError
from tests.policy.chat_tokenizers import PUBLISHED, SPECIALS, TEMPLATES, by_template, published, tokenizer
from tests.refusals import refused

NAMES = tuple(TEMPLATES)
COUNT = 120
PIECES = (
    "print(1)", "\n", "\n\n", "  ", "\t", "naïve café", "cafe\u0301", "学习中文", "Привет", "🙂", "a + b = c", "'s", "0123",
    "```python\nx = 1\n```", "<tool_call>", "<|im_", "|>", "\r\n", "def f():\n    return 1\n", "\u200b", "\x00", "</s>",
)  # fmt: skip
THOUGHTS = (
    "<think>\nhm, so\n</think>\n\n",
    "<think>\n\n</think>\n\n",
    "\n\nno opening</think>",
    "<think>x</think>y</think>",
)


def text(rng: random.Random) -> str:
    return "".join(rng.choice(PIECES) for _ in range(rng.randrange(6)))


def conversation(seed: int, *, answered: bool = False, hostile: bool = False) -> list[Message]:
    """System turn or none, one to four questions, unicode, whitespace, think blocks; the answers begin with no whitespace."""
    rng = random.Random(seed)
    words = (lambda: text(rng) + rng.choice(SPECIALS) + text(rng)) if hostile else (lambda: text(rng))
    messages: list[Message] = [{"role": "system", "content": words()}] if rng.random() < 0.5 else []
    for turn in range(turns := rng.randrange(1, 5)):
        messages.append({"role": "user", "content": words()})
        if turn + 1 < turns or answered:
            answer: Message = {"role": "assistant", "content": "ok" + words()}
            if rng.random() < 0.4:
                answer["content"] = rng.choice(THOUGHTS) + answer["content"]
            elif rng.random() < 0.3:
                answer["reasoning_content"] = "mm" + text(rng)
            messages.append(answer)
    return messages


def plain_thoughts(messages: list[Message]) -> list[Message]:
    """Without the blocks that begin with whitespace, for the renderer that says them as they stand."""
    return [{**m, "content": m["content"].lstrip() if m["role"] == "assistant" else m["content"]} for m in messages]


def renderer_of(name: str, template: str) -> tuple[Renderer, str]:
    """A renderer, with the name of its chat template: `template` for the renderer that follows any."""
    template = template if name == "chat_template" else name
    return get_renderer(name, tokenizer(TEMPLATES[template])), template


@pytest.mark.parametrize("name", [*NAMES, "chat_template"])
def test_prompts_equal_the_chat_template(name):
    renderer, template = renderer_of(name, "qwen3")
    for seed in range(COUNT):
        messages = plain_thoughts(conversation(seed))
        assert renderer.prompt_tokens(messages) == by_template(template, messages), messages


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_an_answer_parses_back_to_its_text(text):
    renderer = get_renderer("qwen3_instruct", AutoTokenizer.from_pretrained(source_of("tiny")))
    tokens, message = renderer.encode_text(text), {"role": "assistant", "content": text}
    assert renderer.parse_response([*tokens, *renderer.get_stop_sequences()[:1]]) == (message, True)
    assert renderer.parse_response(tokens) == (message, False)


def test_an_unknown_renderer_is_refused_with_those_that_exist():
    with refused("renderer=", "llama9", "qwen3_instruct"):
        get_renderer("llama9", tokenizer(None))


@pytest.mark.parametrize("name", [*NAMES, "chat_template"])
def test_supervised_examples_equal_the_chat_template(name):
    renderer, template = renderer_of(name, "qwen3_instruct")
    for seed in range(COUNT):
        messages = plain_thoughts(conversation(seed, answered=True))
        tokens, weights = renderer.build_supervised_example(messages)
        text_of = renderer.tokenizer.decode
        expected = by_template(template, messages, generate=False)
        # Where an opening ends inside a run of newlines (an empty think block) the text is the same, cut as sampling cuts it.
        if name in ("qwen3_thinking", "qwen3_5") and "<think>\n\n</think>" in text_of(expected):
            assert text_of(tokens) == text_of(expected)
        else:
            assert tokens == expected, messages
        assert len(weights) == len(tokens)


@pytest.mark.parametrize("name", PUBLISHED)
def test_rules_rewritten_here_are_those_of_the_published_templates(name):
    original = published(name)
    if original is None:
        pytest.skip("TRL, whose package carries the published templates, is not installed")
    for seed in range(COUNT):
        for messages, generate in ((conversation(seed), True), (conversation(seed, answered=True), False)):
            ours = by_template(name, messages, generate=generate)
            assert ours == by_template(name, messages, generate=generate, template=original)


@pytest.mark.long
@pytest.mark.parametrize("name", [*NAMES, "chat_template"])
def test_special_token_text_in_messages_stays_text(name):
    renderer, template = renderer_of(name, "qwen3_instruct")
    masks = {token: chr(0xF000 + index) for index, token in enumerate(SPECIALS)}
    for seed in range(COUNT):
        messages = plain_thoughts(conversation(seed, hostile=True))
        expected = escaped(renderer.tokenizer, template, messages, masks)
        assert renderer.prompt_tokens(messages) == expected


def escaped(made, template, messages, masks):
    """The template over masked messages, cut at its real special tokens; the masks come off inside each piece."""
    options = {"enable_thinking": False} if template.endswith("disable_thinking") else {}
    masked = []
    for message in messages:
        hidden = dict(message)
        for token, mask in masks.items():
            hidden = {key: value.replace(token, mask) for key, value in hidden.items()}
        masked.append(hidden)
    written = made.apply_chat_template(masked, tokenize=False, add_generation_prompt=True, **options)
    tokens = []
    for piece in re.split("(" + "|".join(map(re.escape, SPECIALS)) + ")", written):
        if piece in SPECIALS:
            tokens.append(made.convert_tokens_to_ids(piece))
            continue
        for token, mask in masks.items():
            piece = piece.replace(mask, token)
        tokens += made.encode(piece, add_special_tokens=False, split_special_tokens=True)
    return tokens


@pytest.mark.parametrize("name", ["qwen3_instruct", "qwen3", "qwen3_thinking", "qwen3_5"])
def test_auto_finds_the_renderer_that_the_template_describes(name):
    assert type(get_renderer("auto", tokenizer(TEMPLATES[name]))) is type(
        get_renderer(name, tokenizer(TEMPLATES[name]))
    )


def test_qwen3_5_writes_what_the_published_template_writes():
    """Prompts and an answered conversation, as the template of Qwen/Qwen3.5-4B renders them, letter for letter."""
    earlier: list[Message] = [
        {"role": "system", "content": " Be brief. \n"},
        {"role": "user", "content": "\n1 + 1? "},
        {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n2"},
        {"role": "user", "content": "Sure?"},
    ]
    opened = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1 + 1?<|im_end|>\n"
        "<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n<think>\n"
    )
    made = tokenizer(TEMPLATES["qwen3_5"])
    thinking, plain = get_renderer("qwen3_5", made), get_renderer("qwen3_5_disable_thinking", made)
    assert made.decode(thinking.prompt_tokens(earlier)) == opened
    assert made.decode(plain.prompt_tokens(earlier)) == opened + "\n</think>\n\n"
    for answer, thought in (({"content": "Yes."}, ""), ({"content": "Yes.", "reasoning_content": " I am. "}, "I am.")):
        tokens, weights = thinking.build_supervised_example([*earlier, cast(Message, {"role": "assistant", **answer})])
        assert made.decode(tokens) == f"{opened}{thought}\n</think>\n\nYes.<|im_end|>\n"
        said = made.decode([token for token, weight in zip(tokens, weights, strict=True) if weight])
        assert said == f"{thought}\n</think>\n\nYes.<|im_end|>"
    assert thinking.opens_thinking
    assert not plain.opens_thinking


@pytest.mark.parametrize("name", ["qwen3_5", "chat_template"])
def test_what_the_template_of_qwen3_5_refuses_is_refused(name):
    renderer = get_renderer(name, tokenizer(TEMPLATES["qwen3_5"]))
    for roles in (("system",), ("user", "system"), ("assistant",)):
        with pytest.raises(DataError):
            renderer.prompt_tokens([{"role": role, "content": "x"} for role in roles])


def test_auto_follows_a_template_that_no_named_renderer_writes():
    other = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content ~ eos_token }}{% endfor %}"
    assert type(get_renderer("auto", tokenizer(other))) is type(get_renderer("chat_template", tokenizer(other)))


def test_tokenizer_without_a_template_gets_plain_turns_and_says_so(caplog):
    renderer = get_renderer("auto", tokenizer(None))
    assert name_of(renderer) == "role_colon"
    assert "role_colon" in caplog.text
    messages: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "one"}]
    prompt = renderer.prompt_tokens(messages)
    assert renderer.tokenizer.decode(prompt) == "System: Be brief.\n\nUser: one\n\nAssistant:"
    tokens, weights = renderer.build_supervised_example([*messages, {"role": "assistant", "content": "two"}])
    assert tokens[: len(prompt)] == prompt
    assert weights == [0.0] * len(prompt) + [1.0] * (len(tokens) - len(prompt))
    assert renderer.parse_response(tokens[len(prompt) :]) == ({"role": "assistant", "content": "two"}, True)


@pytest.mark.parametrize(
    ("said", "content", "ended"),
    [
        (" two", "two", False),
        (" two\n\nUser: and three?", "two", True),
        (" two<end>", "two", False),
        ("<think>\nhm\n</think>\n\ntwo\n\nUser:", "two", True),
    ],
)
def test_a_plain_answer_is_the_text_before_the_next_turn(said, content, ended):
    own = tokenizer(None)
    message, stopped = get_renderer("role_colon", own).parse_response(own.encode(said.replace("<end>", own.eos_token)))
    assert (message["content"], stopped) == (content, ended)


def test_the_remedy_of_a_template_that_is_asked_for_and_missing_is_named():
    with refused("renderer=", "role_colon", "chat_template.jinja"):
        get_renderer("chat_template", tokenizer(None))


def test_template_that_refuses_a_conversation_is_a_typed_error():
    strict = INSTRUCT_WITHOUT_SYSTEM
    renderer = get_renderer("chat_template", tokenizer(strict))
    with refused("no system turns", kind=DataError):
        renderer.prompt_tokens([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}])


INSTRUCT_WITHOUT_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system turns') }}{% endif %}"
    + TEMPLATES["qwen3_instruct"]
)


@pytest.mark.parametrize("name", [*NAMES, "chat_template"])
def test_extension_property_holds_exactly_where_it_is_stated(name):
    renderer, _ = renderer_of(name, "qwen3")
    answers = ["fine", "\n\nfine", "<think>\nhm\n</think>\n\nfine"]
    held = []
    for seed in range(60):
        messages = conversation(seed)
        prompt = renderer.prompt_tokens(messages)
        for answer in answers:
            completion = [*renderer.encode_text(answer), *renderer.get_stop_sequences()]
            said: Message = {"role": "assistant", "content": answer}
            longer = renderer.prompt_tokens([*messages, said, {"role": "user", "content": "more"}])
            held.append(longer[: len(prompt) + len(completion)] == prompt + completion)
    assert all(held) == type(renderer).extends


@pytest.mark.parametrize("template", NAMES)
@pytest.mark.parametrize("general", [False, True])
def test_reasoning_is_no_part_of_the_answer(template, general):
    renderer = get_renderer("chat_template" if general else template, tokenizer(TEMPLATES[template]))
    end = renderer.get_stop_sequences()[:1]
    opened = "" if template == "qwen3_thinking" else "<think>\n"
    whole = renderer.encode_text(opened + "```python\ndraft\n```\n</think>\n\n```python\nfinal\n```")
    message, ended = renderer.parse_response([*whole, *end])
    assert ended
    assert message == {
        "role": "assistant",
        "content": "```python\nfinal\n```",
        "reasoning_content": "```python\ndraft\n```",
    }
    cut, ended = renderer.parse_response(renderer.encode_text(opened + "```python\ndraft\n```"))
    assert not ended
    assert cut["content"] == ""
    again, _ = renderer.parse_response(renderer.encode_text(opened + "a</think>\n<think>\n```python\ndraft\n```"))
    assert again["content"] == ""


@pytest.mark.parametrize("name", ["qwen3_instruct", "qwen3", "qwen3_disable_thinking", "chat_template"])
@pytest.mark.parametrize("answer", ["```python\nprint('<think>')\n```", "```python\nprint('</think>')\n```"])
def test_an_answer_may_speak_of_think_blocks(name, answer):
    renderer, _ = renderer_of(name, "qwen3")
    assert renderer.read_message(answer) == {"role": "assistant", "content": answer}


@pytest.mark.parametrize("name", [*NAMES, "chat_template"])
def test_loss_falls_on_the_last_answer_and_its_end(name):
    renderer, _ = renderer_of(name, "qwen3_thinking")
    messages: list[Message] = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "first"},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "second", "reasoning_content": "why"},
    ]
    tokens, weights = renderer.build_supervised_example(messages)
    said = renderer.tokenizer.decode([token for token, weight in zip(tokens, weights, strict=True) if weight])
    expected = {
        "qwen3_instruct": "first<|im_end|>second<|im_end|>",
        "qwen3": "<think>\nwhy\n</think>\n\nsecond<|im_end|>",
        "qwen3_disable_thinking": "<think>\nwhy\n</think>\n\nsecond<|im_end|>",
        "qwen3_thinking": "why\n</think>\n\nsecond<|im_end|>",
        "qwen3_5": "why\n</think>\n\nsecond<|im_end|>",
        "qwen3_5_disable_thinking": "<think>\nwhy\n</think>\n\nsecond<|im_end|>",
        "chat_template": "why\n</think>\n\nsecond<|im_end|>",
    }
    assert said == expected[name]


def test_general_renderer_refuses_a_conversation_that_ends_with_a_question():
    renderer = get_renderer("chat_template", tokenizer(TEMPLATES["qwen3_instruct"]))
    with pytest.raises(DataError):
        renderer.build_supervised_example([{"role": "user", "content": "one"}])
