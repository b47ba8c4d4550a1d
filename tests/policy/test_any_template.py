"""The general renderer on templates of other families: harmony's channels, an answer without an end, and TRL's collection."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast

from code_rl.policy.renderers import Message, get_renderer
from code_rl.util.errors import ConfigError, DataError
from tests.policy.chat_tokenizers import tokenizer

HARMONY = """
{{- '<|start|>system<|message|>Reasoning: ' ~ (reasoning_effort if reasoning_effort is defined else 'medium') ~ '<|end|>' -}}
{%- for m in messages -%}
  {%- if m.role != 'assistant' -%}
    {{ '<|start|>' ~ m.role ~ '<|message|>' ~ m.content ~ '<|end|>' }}
  {%- else -%}
    {{ '<|start|>assistant<|channel|>final<|message|>' ~ m.content }}
    {{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant' }}{%- endif -%}
"""
# GLM: the token of the next turn is all that ends an answer.
UNENDED = """
{%- for m in messages -%}
  {{ '<|' ~ m.role ~ '|>' ~ ('<think></think>' if m.role == 'assistant' else '') ~ m.content }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}
"""
# Vision models read a list of parts, and write nothing of a plain text.
PARTS = """
{%- for m in messages -%}
  {{ '<|' ~ m.role ~ '|>' }}{%- for part in m.content -%}{{ part.text }}{%- endfor -%}
{%- endfor -%}<|assistant|>
"""
SPECIAL = re.compile(r"<[|｜][^<>'\"\s]{1,40}>|<[^<>'\"\s{}]{1,30}[|｜]>|\[/?INST\]|<(?:start|end)_of_turn>|</?s>")
USER: Message = {"role": "user", "content": "one plus one?"}


def with_template(template: str) -> Any:
    """A tokenizer in which everything that the template spells like a special token is one."""
    model = Tokenizer.from_str(tokenizer(None).backend_tokenizer.to_str())
    specials = sorted({*SPECIAL.findall(template), "<|user|>", "<|assistant|>", "<EOS>", "<BOS>"})
    model.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    made = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<EOS>", bos_token="<BOS>")
    made.chat_template = template
    return made


def collection() -> dict[str, str]:
    spec = importlib.util.find_spec("trl")
    folder = Path(spec.origin or "").parent / "chat_templates" if spec else Path("absent")
    return {file.stem: file.read_text() for file in sorted(folder.glob("*.jinja")) if "_training" not in file.stem}


def sampled(made: Any, text: str) -> list[int]:
    tokens: list[int] = made.encode(text, add_special_tokens=False)
    return tokens


def test_only_the_final_channel_is_the_answer():
    made = with_template(HARMONY)
    renderer = get_renderer("auto", made)
    assert made.convert_ids_to_tokens(renderer.get_stop_sequences()) == ["<|return|>", "<EOS>"]
    thought = "<|channel|>analysis<|message|>```python\ndraft\n```<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>```python\nprint(2)\n```"
    message, ended = renderer.parse_response(sampled(made, thought + final + "<|return|>"))
    assert ended
    assert message["content"] == "```python\nprint(2)\n```"
    assert "draft" in message["reasoning_content"]
    cut, ended = renderer.parse_response(sampled(made, thought))
    assert not ended
    assert cut["content"] == ""


def test_thought_of_an_earlier_turn_does_not_return_to_the_prompt():
    made = with_template(HARMONY)
    renderer = get_renderer("auto", made)
    said, _ = renderer.parse_response(
        sampled(made, "<|channel|>analysis<|message|>hm<|end|><|channel|>final<|message|>2<|return|>")
    )
    text = made.decode(renderer.prompt_tokens([USER, said, USER]))
    assert text.endswith(
        "<|start|>assistant<|channel|>final<|message|>2<|end|><|start|>user<|message|>one plus one?<|end|><|start|>assistant"
    )


def test_next_turn_ends_an_answer_that_the_template_leaves_open():
    made = with_template(UNENDED)
    renderer = get_renderer("auto", made)
    assert made.convert_ids_to_tokens(renderer.get_stop_sequences()) == ["<|user|>", "<EOS>"]
    message, ended = renderer.parse_response(sampled(made, "<think>hm</think>two<|user|>"))
    assert (message["content"], ended) == ("two", True)


def test_template_that_loses_the_question_is_refused():
    with pytest.raises(ConfigError, match="renderer="):
        get_renderer("auto", with_template(PARTS.replace("part.text", "part.text or ''")))


def test_options_reach_the_template_and_unknown_ones_are_refused():
    made = with_template(HARMONY)
    low = get_renderer("chat_template:reasoning_effort=low", made)
    assert "Reasoning: low" in made.decode(low.prompt_tokens([USER]))
    for name in ("chat_template:effort=low", "qwen3:reasoning_effort=low"):
        with pytest.raises(ConfigError, match=r"renderer="):
            get_renderer(name, made)


@pytest.mark.parametrize(
    "name", sorted(collection()) or [pytest.param("none", marks=pytest.mark.skip("TRL is not installed"))]
)
def test_published_template_is_followed_or_refused(name):
    made = with_template(collection()[name])
    if name in ("idefics3", "smolvlm", "llava_next"):
        with pytest.raises((ConfigError, DataError)):
            get_renderer("auto", made)
        return
    renderer = get_renderer("auto", made)
    answer: Message = {"role": "assistant", "content": "two"}
    for conversation in ([USER], [USER, answer, USER]):
        theirs = made.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        assert renderer.prompt_tokens(conversation) == theirs
    prompt = made.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    whole = made.apply_chat_template([USER, answer], tokenize=False)
    if whole.startswith(prompt):
        end = made.convert_ids_to_tokens(renderer.get_stop_sequences()[0])
        reply = whole[len(prompt) :].partition(end)[0] + end
        message, ended = renderer.parse_response(sampled(made, reply))
        assert (message["content"], ended) == ("two", True)
