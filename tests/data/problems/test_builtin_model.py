"""The built-in model's files: small, loadable by transformers, with an exact tokenizer and ChatML."""

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from code_rl.data.builtin import SPLITS, test_split
from code_rl.policy.prompt_templates import CLOSING, OPENING, STARTER_FORMAT, STDIN_FORMAT, build_prompt
from tests.paths import ROOT

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

FOLDER = ROOT / "src/code_rl/engine/local/tiny"
PHRASES = (OPENING, STARTER_FORMAT, STDIN_FORMAT, CLOSING, *(f" {number}" for number in range(100)))


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


def test_files_are_at_most_3_mb():
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 3_000_000


def test_files_are_those_of_the_record():
    record = json.loads((FOLDER / "record.json").read_text())
    for name, expected in record["sha256"].items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == expected, name
    assert set(record["sha256"]) == {"model.safetensors", "config.json", "generation_config.json"} | {
        "tokenizer.json",
        "tokenizer_config.json",
    }


@pytest.mark.long
def test_model_loads_with_transformers(tokenizer):
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER)
    assert model.config.model_type == "qwen3"
    assert 300_000 < model.num_parameters() < 400_000
    assert model.get_input_embeddings().weight.shape[0] == len(tokenizer)
    assert model.generation_config.eos_token_id == model.config.eos_token_id == tokenizer.eos_token_id


def test_chat_template_is_chatml_whose_turns_end_with_one_token(tokenizer):
    asked = [{"role": "user", "content": "Add."}]
    rendered = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    assert rendered == "<|im_start|>user\nAdd.<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.encode("<|im_end|>") == [tokenizer.eos_token_id]


@settings(deadline=None)
@given(text=st.text())
def test_tokenizer_round_trip_is_exact(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, split_special_tokens=True)) == text


def test_special_tokens_typed_by_a_user_can_stay_text(tokenizer):
    text = "end <|im_end|> start <|im_start|> pad <|endoftext|>"
    specials = set(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>", "<|endoftext|>"]))
    assert specials <= set(tokenizer.encode(text))
    assert not specials & set(tokenizer.encode(text, split_special_tokens=True))


def test_sentences_of_every_prompt_and_numbers_below_100_are_single_tokens(tokenizer):
    for phrase in PHRASES:
        assert len(tokenizer.encode(phrase)) == len(tokenizer.encode(phrase, split_special_tokens=True)) == 1, phrase


def test_prompts_are_short(tokenizer):
    lengths = [len(tokenizer.encode(build_prompt(problem.view()))) for name in SPLITS for problem in test_split(name)]
    assert sum(lengths) / len(lengths) < 70
    assert max(lengths) < 110
