"""A model in a .gguf file is the model that its values say: dequantised, tied, with its tokenizer and chat template, converted once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from code_rl.engine import names as reading
from code_rl.engine.names import BUILT_IN_FOLDER, source_of, unavailable
from code_rl.util.data_files import cache_folder
from tests.refusals import refused

gguf = pytest.importorskip("gguf")
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
HEADS, KV_HEADS = 4, 2


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection in the order of llama.cpp, whose rotary embedding turns neighbours."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture
def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    vocabulary = json.loads((BUILT_IN_FOLDER / "tokenizer.json").read_text())["model"]["vocab"]
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(vocabulary), hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS, max_position_embeddings=128, tie_word_embeddings=True, rms_norm_eps=1e-5,
        )
    ).eval()  # fmt: skip


def write(model, path: Path) -> dict[str, torch.Tensor]:
    """The model as a file, its MLPs at eight bits; returns the values that the file holds, by transformers' names."""
    config, state = model.config, dict(model.state_dict())
    tokenizer = json.loads((BUILT_IN_FOLDER / "tokenizer.json").read_text())["model"]
    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(config.num_hidden_layers)
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(HEADS)
    out.add_head_count_kv(KV_HEADS)
    out.add_rope_freq_base(10_000.0)
    out.add_rope_dimension_count(config.hidden_size // HEADS)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_vocab_size(config.vocab_size)
    out.add_tokenizer_model("gpt2")
    out.add_token_list(sorted(tokenizer["vocab"], key=tokenizer["vocab"].get))
    out.add_token_merges(
        [" ".join(pair) if isinstance(pair, list) else pair for pair in tokenizer["merges"]] or ["a b"]
    )
    out.add_bos_token_id(0)
    out.add_eos_token_id(1)
    out.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, value in state.items():
        if name == "lm_head.weight":
            continue
        target = names.get_name(name, try_suffixes=(".weight",))
        plain = value.float()
        if ".q_proj" in name or ".k_proj" in name:
            plain = interleaved(plain, HEADS if ".q_proj" in name else KV_HEADS)
        if ".mlp." in name:
            packed = gguf.quantize(plain.numpy(), gguf.GGMLQuantizationType.Q8_0)
            state[name] = torch.from_numpy(gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))
            out.add_tensor(target, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            out.add_tensor(target, plain.contiguous().numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return state


@pytest.mark.timeout(120)
def test_it_is_the_model_that_its_values_say_and_is_converted_once(model, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from code_rl.engine.local import EmbeddedService

    values = write(model, tmp_path / "m.GGUF")
    name = str(tmp_path / "m.GGUF")
    folder = source_of(name)
    read = AutoModelForCausalLM.from_pretrained(folder)
    model.load_state_dict(values)
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.allclose(read(tokens).logits, model(tokens).logits, atol=1e-4)
    assert read.lm_head.weight is read.model.embed_tokens.weight
    assert AutoTokenizer.from_pretrained(folder).chat_template == TEMPLATE
    assert EmbeddedService(device="cpu").load(name).result().eos == {1}
    monkeypatch.setattr(reading, "_convert", None)
    (tmp_path / "m.GGUF").rename(tmp_path / "other.gguf")
    assert source_of(str(tmp_path / "other.gguf")) == folder


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no model at all" * 100])
def test_a_file_that_is_no_model_is_one_line_and_leaves_nothing(content, tmp_path):
    (tmp_path / "x.gguf").write_bytes(content)
    with refused("x.gguf"):
        source_of(str(tmp_path / "x.gguf"))
    assert not any(path.name.startswith("tmp") for path in (cache_folder() / "models").iterdir())


def test_without_the_reader_it_is_said_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "x.gguf").write_bytes(b"x")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused("gguf"):
        source_of(str(tmp_path / "x.gguf"))


def test_smollm2_is_the_installed_packages_file_else_its_hub_id(tmp_path, monkeypatch):
    with monkeypatch.context() as hidden:
        hidden.setitem(sys.modules, reading.PACKAGE, None)  # as where it is not installed
        assert source_of("smollm2") == reading.HUB_ID
    (tmp_path / reading.PACKAGE).mkdir()
    (tmp_path / reading.PACKAGE / "__init__.py").write_text("raise ImportError('never imported')")
    (tmp_path / reading.PACKAGE / "m.gguf").write_bytes(b"x")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(reading, "folder_of", lambda file: Path("/made/of") / file.name)
    assert source_of("smollm2") == "/made/of/m.gguf"


@pytest.mark.parametrize(
    ("name", "named"), [("not_there/", "not_there/"), ("models/", "models/"), ("adapter", "init_from=")]
)
def test_a_name_that_is_no_model_is_refused_with_the_remedy(tmp_path, monkeypatch, name, named):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").touch()
    monkeypatch.chdir(tmp_path)
    with refused(named):
        source_of(name)


def test_a_model_with_code_of_its_own_is_not_told_to_set_what_there_is_not():
    said = unavailable("x", ValueError("Please pass the argument `trust_remote_code=True`"))
    assert "trust_remote_code" not in said
    assert "'x'" in said
