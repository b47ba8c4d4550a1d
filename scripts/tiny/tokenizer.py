"""Train the tiny model's tokenizer: `python -m scripts.tiny.tokenizer out=DIR`.

ByteLevel BPE over the pretraining text. Digits are taken in pairs from the left, together with one leading space, so that a number
below 100 is one token in a sentence and in code alike: with digits one by one a model of this size copies them in any order
(37 for 73). The constant sentences of the prompt are single added tokens, so
that a prompt costs about 64 tokens. They are ordinary (not special) tokens: text that looks like ChatML can be kept text with
`split_special_tokens=True` while they still match.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from code_rl.policy.prompt_templates import CLOSING, OPENING, STARTER_FORMAT, STDIN_FORMAT
from scripts.tiny.corpus import CorpusRecipe, documents

VOCABULARY = 768
DOCUMENTS = 20_000
SEED = 0
PAIR_WEIGHT = 5000
"""Copies of each number below 100 in the training text, so that every one becomes a token."""
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
PHRASES = (OPENING, STARTER_FORMAT, STDIN_FORMAT, CLOSING)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(prompt: str) -> str:
    """The chat template applied to one user message, with the assistant's turn opened."""
    return f"{START}user\n{prompt}{END}\n{START}assistant\n"


def build(out: Path) -> Tokenizer:
    """Train and write tokenizer.json and tokenizer_config.json into `out`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r" ?\d{1,2}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    tokenizer.add_tokens([AddedToken(phrase, normalized=False, special=False) for phrase in PHRASES])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 512,
        "pad_token": PAD,
        "eos_token": END,
        "additional_special_tokens": [START, END],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    return tokenizer


def _texts() -> Iterator[str]:
    for pair in range(100):
        yield from [f" {pair}"] * PAIR_WEIGHT
    for document in itertools.islice(documents(CorpusRecipe(), SEED), DOCUMENTS):
        prompt = document.prompt
        for phrase in PHRASES:
            prompt = prompt.replace(phrase, "\n")
        yield prompt
        yield document.answer


if __name__ == "__main__":
    settings = dict(argument.split("=", 1) for argument in sys.argv[1:])
    target = Path(settings["out"])
    build(target)
    print(f"wrote {target}/tokenizer.json")
