"""Exporting a checkpoint that lives on a server: the SDK's own way, over real HTTP."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "serve"))
from remote_support import ExportingProxy, settings
from serve_support import ServerThread

from code_rl.backends.adapters import read_embedded, read_folder, write_peft
from code_rl.backends.download import download_adapter
from code_rl.backends.embedded import EmbeddedService
from code_rl.backends.places import KEYLESS, Place
from code_rl.commands.export import export_command
from code_rl.commands.train import train_command
from code_rl.errors import BackendError, ConfigError

FILES = ("adapter_config.json", "adapter_model.safetensors")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of one step on a server, and some adapter as the service would hand it out."""
    folder = tmp_path_factory.mktemp("trained")
    with ServerThread(folder / "server") as server:
        assert train_command(settings(server.url, folder / "run", max_steps="1")) == 0
        service = EmbeddedService(device="cpu", state_dir=folder / "state")
        client = service.create_lora_training_client("tiny", rank=4, seed=3).result()
        handed = read_embedded(Path(client.save_state("x").result().path))
        (folder / "handed").mkdir()
        write_peft(handed, "tiny", folder / "handed")
        yield server, folder / "run", folder / "handed", handed


def test_run_on_a_server_exports_through_the_services_own_export(trained, tmp_path):
    server, run, handed_folder, handed = trained
    with ExportingProxy(server.url, handed_folder, FILES) as proxy:
        given = {"checkpoint": str(run), "backend": proxy.url, "format": "peft", "out": str(tmp_path / "out")}
        assert export_command(given) == 0
        assert len(proxy.deleted) == 1
    found = read_folder(tmp_path / "out", "tiny")
    assert found.pairs.keys() == handed.pairs.keys()
    for name, (a, b) in handed.pairs.items():
        assert torch.equal(found.pairs[name][0], a)
        assert torch.equal(found.pairs[name][1], b)
    assert "after 1 steps" in (tmp_path / "out" / "README.md").read_text()


def test_service_cannot_write_outside_the_folder(trained, tmp_path):
    server, run, handed_folder, _ = trained
    path = json.loads((run / "checkpoints.jsonl").read_text().splitlines()[-1])["state_path"]
    with ExportingProxy(server.url, handed_folder, ("../escaped",)) as proxy:
        place = Place("server", proxy.url, KEYLESS)
        with pytest.raises(BackendError, match="names a file outside the checkpoint"):
            download_adapter(place, path, tmp_path / "in")
        assert len(proxy.deleted) == 1
    assert not (tmp_path / "escaped").exists()


def test_sampler_weights_are_refused_with_what_to_give(tmp_path):
    with pytest.raises(ConfigError, match=r"give the state_path of a checkpoint \(tinker://RUN/weights/NAME\)"):
        download_adapter(Place("server", "http://127.0.0.1:9", KEYLESS), "tinker://r/sampler_weights/1", tmp_path)
