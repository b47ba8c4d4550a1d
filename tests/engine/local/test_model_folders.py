"""Folders that are not the model that they say: refused by name, never read as other weights."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from code_rl.engine.local import EmbeddedService
from code_rl.engine.names import source_of
from tests.refusals import refused

EMBED, GATE = "model.embed_tokens.weight", "model.layers.0.mlp.gate_proj.weight"


def load(folder, tensors=None, config=None, **files):
    """Load a copy of the built-in model with some of its tensors, settings or files changed; a tensor that is None is dropped."""
    source = Path(source_of("tiny"))
    shutil.copytree(source, folder)
    state = {k: v for k, v in {**load_file(source / "model.safetensors"), **(tensors or {})}.items() if v is not None}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((source / "config.json").read_text()) | (config or {})
    (folder / "config.json").write_text(json.dumps(settings))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(content)
    EmbeddedService(device="cpu", dtype="float32").load(str(folder)).result()


def test_the_folder_as_it_is_loads(tmp_path):
    load(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
        ({"config": {"quantization_config": {"quant_method": "awq"}}}, "awq"),
        ({"config": {"model_type": "t5"}}, "t5"),
        ({"tensors": {GATE: torch.zeros(256, 96, dtype=torch.int8)}}, GATE),
        ({"tensors": {GATE + "_scale": torch.ones(1)}}, GATE + "_scale"),
        ({"tensors": {GATE: None}}, GATE),
        ({"tensors": {EMBED: torch.zeros(300, 96)}}, "embed_tokens.weight"),
        ({"config": {"num_key_value_heads": 3}}, "k_proj.weight"),
        ({"config": {"num_hidden_layers": 2}}, "num_hidden_layers"),
        ({"config": {"tie_word_embeddings": False}}, "lm_head.weight"),
        ({"generation_config": "[1]"}, "generation_config.json"),
    ],
)
def test_what_contradicts_its_configuration_is_refused_by_name(tmp_path, change, named):
    with refused(named):
        load(tmp_path / "m", **change)
