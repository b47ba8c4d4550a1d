"""Exports: peft and transformers load them and compute the same as our engine."""

from __future__ import annotations

import json
import os
import stat
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import numpy as np  # noqa: E402
from tinker import types  # noqa: E402

from code_rl.cli.main import main  # noqa: E402
from code_rl.engine.adapters import read_folder  # noqa: E402
from code_rl.engine.local import EmbeddedService  # noqa: E402
from code_rl.engine.names import source_of  # noqa: E402
from code_rl.util.errors import CheckpointError, ConfigError  # noqa: E402
from tests.engine.hub import Hub, take_for_the_hub  # noqa: E402
from tests.engine.local.embedded_models import text, trained  # noqa: E402
from tests.refusals import refused  # noqa: E402
from tests.verbs import export_command  # noqa: E402

TOKENS = np.random.default_rng(0).integers(4, 700, (3, 40)).tolist()


@pytest.fixture(scope="module", params=[True, False], ids=["unembedding adapted", "unembedding left"])
def exported(request, tmp_path_factory):
    """A trained adapter on the built-in model, its checkpoint file, and our log-probabilities of TOKENS."""
    folder = tmp_path_factory.mktemp("export")
    service = EmbeddedService(device="cpu", dtype="float32", state_dir=folder / "checkpoints")
    client = service.create_lora_training_client("tiny", rank=8, seed=1, train_unembed=request.param).result()
    trained(client)
    path = client.save_state("trained").result().path
    sampler = client.save_weights_and_get_sampling_client().result()
    ours = [sampler.compute_logprobs(text(tokens)).result()[1:] for tokens in TOKENS]
    for form in ("peft", "merged"):
        assert export_command({"checkpoint": path, "format": form, "out": str(folder / form)}) == 0
    return folder, ours, sampler


def test_files_are_handed_over_with_the_mode_that_any_new_file_gets(exported):
    umask = os.umask(0o077)
    os.umask(umask)
    for path in exported[0].glob("[pm]e*/**/*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask, path


def logprobs(model):
    with torch.no_grad():
        found = model(torch.tensor(TOKENS)).logits[:, :-1].float().log_softmax(-1)
    return found.gather(2, torch.tensor(TOKENS)[:, 1:, None])[..., 0]


def test_adapter_in_peft_computes_what_the_engine_computes(exported):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder, ours, _ = exported
    reference = json.loads((folder / "peft" / "adapter_config.json").read_text())["base_model_name_or_path"]
    base = AutoModelForCausalLM.from_pretrained(reference, dtype=torch.float32)
    before = logprobs(base)
    model = PeftModel.from_pretrained(base, folder / "peft")
    adapted = {
        name.split(".lora_A")[0].split("base_model.model.")[1]
        for name, _ in model.named_parameters()
        if "lora_A" in name
    }
    assert adapted == set(read_folder(folder / "peft", "tiny").pairs)
    assert torch.allclose(logprobs(model), torch.tensor(ours), atol=1e-4)
    assert not torch.allclose(before, torch.tensor(ours), atol=1e-2)


def test_merged_folder_in_transformers_computes_and_says_what_the_engine_does(exported):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, ours, sampler = exported
    model: Any = AutoModelForCausalLM.from_pretrained(folder / "merged", dtype=torch.float32)
    assert torch.allclose(logprobs(model), torch.tensor(ours), atol=1e-4)
    question = [{"role": "user", "content": "Print the sum of two integers."}]
    tokenizer = AutoTokenizer.from_pretrained(folder / "merged")
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False)
    theirs = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=40, temperature=None)
    said = sampler.sample(text(prompt), 1, types.SamplingParams(max_tokens=40, temperature=0.0)).result()
    assert theirs[0, len(prompt) :].tolist() == said.sequences[0].tokens


@pytest.mark.parametrize("form", ["peft", "merged"])
def test_export_carries_tokenizer_template_and_card(exported, form):
    folder, _, _ = exported
    from transformers import AutoTokenizer

    assert "<|im_start|>" in AutoTokenizer.from_pretrained(folder / form).chat_template
    card = (folder / form / "README.md").read_text()
    assert "base_model: tiny" in card
    assert "rank 8, alpha 32" in card


def test_export_of_a_run_shows_its_evaluation_and_settings(tmp_path):
    service = EmbeddedService(device="cpu", state_dir=tmp_path / "run" / "checkpoints")
    client = service.create_lora_training_client("tiny", rank=4, seed=1).result()
    state = client.save_state("000002").result().path
    write = lambda name, *rows: (tmp_path / "run" / name).write_text("".join(json.dumps(row) + "\n" for row in rows))  # noqa: E731
    write(
        "config.json",
        {"model_name": "tiny", "backend": "embedded", "learning_rate": 0.002, "log_path": "/secret/place"},
    )
    write("metrics.jsonl", {"step": -1, "eval/pass@1": 0.25}, {"step": 0}, {"step": 1, "eval/pass@1": 0.5})
    write("checkpoints.jsonl", {"name": "000002", "step": 2, "offset": 4, "state_path": state})
    assert export_command({"checkpoint": str(tmp_path / "run"), "format": "peft", "out": str(tmp_path / "out")}) == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| before training | – | 25.0% |" in card
    assert "| 1 | – | 50.0% |" in card
    assert "| learning_rate | 0.002 |" in card
    assert "after 2 steps" in card
    assert "/secret/place" not in card


def test_nothing_half_written_stays_behind(tmp_path):
    service = EmbeddedService(device="cpu", state_dir=tmp_path)
    path = service.create_lora_training_client("tiny", rank=4, seed=1).result().save_state("x").result().path
    with refused("nowhere"):
        export_command({"checkpoint": path, "out": str(tmp_path / "out"), "base_model": "nowhere"})
    assert not (tmp_path / "out").exists()
    assert not [entry for entry in tmp_path.iterdir() if entry.name.startswith(".out")]


def test_an_adapter_that_peft_would_load_in_part_is_refused(tmp_path):
    pytest.importorskip("peft")
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    shape: dict[str, Any] = {
        "vocab_size": 800, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16, "q_lora_rank": 8,
        "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1,
    }  # fmt: skip
    base = str(tmp_path / "base")
    AutoModelForCausalLM.from_config(AutoConfig.for_model("deepseek_v3", **shape)).save_pretrained(base)
    AutoTokenizer.from_pretrained(source_of("tiny")).save_pretrained(base)
    service = EmbeddedService(device="cpu", dtype="float32", state_dir=tmp_path / "states")
    client = service.create_lora_training_client(base, rank=4, seed=1).result()
    path = client.save_state("x").result().path
    with refused("12 of the adapter's 34", "format=merged"):
        export_command({"checkpoint": path, "format": "peft", "out": str(tmp_path / "out")})
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["base", "states"]
    assert export_command({"checkpoint": path, "format": "merged", "out": str(tmp_path / "out")}) == 0


def test_folder_that_is_not_empty_is_not_touched(tmp_path):
    (tmp_path / "kept").write_text("x")
    with pytest.raises(ConfigError):
        export_command({"checkpoint": str(tmp_path), "out": str(tmp_path)})


@pytest.mark.parametrize("checkpoint", ["/nowhere", "tinker://run/weights/1"])
def test_checkpoint_that_cannot_be_found_is_refused(tmp_path, checkpoint):
    with refused(checkpoint):
        export_command({"checkpoint": checkpoint, "backend": "embedded", "out": str(tmp_path / "out")})


def test_adapter_without_its_other_half_is_refused(exported, tmp_path):
    from safetensors.torch import load_file, save_file

    folder, _, _ = exported
    tensors = load_file(folder / "peft" / "adapter_model.safetensors")
    tensors.pop(next(name for name in tensors if "lora_B" in name))
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text('{"r": 8, "lora_alpha": 32}')
    with pytest.raises(CheckpointError):
        read_folder(tmp_path, "tiny")


@pytest.fixture
def upload(exported, tmp_path, monkeypatch, capsys):
    """Exports the checkpoint to a hub; returns the exit code and the last line on stderr."""
    checkpoint = next((exported[0] / "checkpoints").rglob("*trained*"))

    def run(hub: Hub, name: str, token: str | None = "hf_of_this_test") -> tuple[int, str]:
        take_for_the_hub(hub.url, monkeypatch, tmp_path / "hub")
        if token is not None:
            monkeypatch.setenv("HF_TOKEN", token)
        words = [f"checkpoint={checkpoint}", "format=peft", f"out={tmp_path / 'out'}", f"push_to_hub={name}"]
        code = main(["export", *words])
        return code, capsys.readouterr().err.splitlines()[-1]

    return run


@pytest.mark.parametrize("exported", [True], indirect=True, ids=["unembedding adapted"])
def test_an_export_is_uploaded_whole_into_a_private_repository(upload, tmp_path):
    code, said = upload(hub := Hub(), "model")
    assert code == 0, said
    assert hub.url in said
    written = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert hub.files == {"me/model": written}
    assert (hub.private, hub.tokens) == ([True], {"Bearer hf_of_this_test"})


@pytest.mark.parametrize(
    ("name", "token", "code"),
    [("model", None, 2), ("a/b/c", "hf_x", 2), ("model", "hf_x", 1)],
    ids=["no token", "no name", "refused"],
)
@pytest.mark.parametrize("exported", [True], indirect=True, ids=["unembedding adapted"])
def test_an_upload_that_cannot_be_is_one_line_and_loses_nothing(upload, tmp_path, name, token, code):
    found, said = upload(Hub(refuses=True), name, token)
    assert found == code, said
    assert "push_to_hub" in said
    assert (tmp_path / "out").exists() == (code == 1)
