"""Small tokenizers with Qwen3's splitting, special tokens and chat templates; the templates' rules are rewritten here."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# In Qwen3's vocabulary these are single tokens, yet not special ones: text that spells them becomes them.
WORDS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS = [
    "system\nYou are a helpful assistant.\n\nuser\nassistant\n\n```python\nprint(int(input()) + 1)\n```\n",
    "the model thinks\n\n\nand answers; question answer one two three  \n  def solve(a, b):\n    return a + b\n",
    "naïve café 学习 中文 Привет мир 🙂 emoji", "<|im_start|> im_end think",
] * 4  # fmt: skip

FOLDER = Path(__file__).parent / "templates"
INSTRUCT, HYBRID = ((FOLDER / f"{name}.jinja").read_text() for name in ("instruct", "hybrid"))
# Qwen3.5: texts are trimmed, every answer after the last question has a think block, and the prompt always holds one or its beginning.
LATER = (FOLDER / "later.jinja").read_text()
LATER_OPENING = (
    "('<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '<think>\n')"
)
OFF = "('<think>\n\n</think>\n\n' if enable_thinking is defined and enable_thinking is false else '')"
TEMPLATES = {
    "qwen3_instruct": INSTRUCT,
    "qwen3": HYBRID.replace("OPENING", OFF),
    "qwen3_disable_thinking": HYBRID.replace("OPENING", OFF),
    "qwen3_thinking": HYBRID.replace("OPENING", "'<think>\n'"),
    "qwen3_5": LATER.replace("OPENING", LATER_OPENING),
    "qwen3_5_disable_thinking": LATER.replace("OPENING", LATER_OPENING),
}
PUBLISHED = {
    "qwen3_instruct": "qwen3_instruct_2507",
    "qwen3": "qwen3",
    "qwen3_disable_thinking": "qwen3",
    "qwen3_5": "qwen3_5_think",
    "qwen3_5_disable_thinking": "qwen3_5_think",
}


@cache
def tokenizer(template: str | None) -> Any:
    """A byte-level BPE of a few hundred merges with Qwen3's pieces and this chat template."""
    model = Tokenizer(models.BPE())
    model.normalizer = normalizers.NFC()
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    )
    model.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    model.add_tokens([AddedToken(token, special=False, normalized=False) for token in WORDS])
    made = PreTrainedTokenizerFast(tokenizer_object=model, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    made.chat_template = template
    return made


def by_template(name: str, messages: Any, *, generate: bool = True, template: str | None = None) -> list[int]:
    """The tokens of the conversation by the chat template that belongs to the renderer called `name`."""
    options = {"enable_thinking": False} if name.endswith("disable_thinking") else {}
    found: list[int] = tokenizer(template or TEMPLATES[name]).apply_chat_template(
        messages, tokenize=True, add_generation_prompt=generate, return_dict=False, **options
    )
    return found


def published(name: str) -> str | None:
    """The text of the published template, which TRL's package carries; None where that is not installed."""
    spec = importlib.util.find_spec("trl")
    if spec is None or spec.origin is None or name not in PUBLISHED:
        return None
    file = Path(spec.origin).parent / "chat_templates" / f"{PUBLISHED[name]}.jinja"
    return file.read_text() if file.is_file() else None
