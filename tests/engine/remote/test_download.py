"""Exporting a checkpoint that lives on a server: the SDK's own way, over real HTTP."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import tinker
import torch

from code_rl.engine import place_of
from code_rl.engine.adapters import download_adapter, read_embedded, read_folder
from code_rl.util.errors import BackendError
from tests.engine.remote.remote_support import EscapingProxy, OtherServer, settings
from tests.engine.remote.test_remote_refusals import of_an_older_generation
from tests.engine.serve.serve_support import ServerThread
from tests.refusals import refused
from tests.verbs import export_command, train_command


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of one step on a server."""
    folder = tmp_path_factory.mktemp("trained")
    with ServerThread(folder / "server", token="tml-secret") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("CODE_RL_SERVER_KEY", "tml-secret")
        assert train_command(settings(server.url, folder / "run", max_steps="1")) == 0
        path = json.loads((folder / "run" / "checkpoints.jsonl").read_text().splitlines()[-1])["state_path"]
        yield server, folder / "run", path


def external(server):
    return [c for c in server.core.store.checkpoints() if c.kind == "external"]


@pytest.mark.long
def test_run_on_a_server_exports_the_adapter_of_its_checkpoint_and_leaves_nothing_there(trained, tmp_path):
    server, run, path = trained
    given = {"checkpoint": str(run), "backend": server.url, "format": "peft", "out": str(tmp_path / "out")}
    assert export_command(given) == 0
    found = read_folder(tmp_path / "out", "tiny")
    saved = server.core.store.find(path, "state")
    expected = read_embedded(server.core.store.checkpoint_file(saved.run_id, saved.name, "state"))
    assert (found.rank, found.alpha) == (expected.rank, expected.alpha)
    assert found.pairs.keys() == expected.pairs.keys()
    for name, (a, b) in expected.pairs.items():
        assert torch.equal(found.pairs[name][0], a)
        assert torch.equal(found.pairs[name][1], b)
    assert any(b.any() for _, b in expected.pairs.values())
    assert "after 1 steps" in (tmp_path / "out" / "README.md").read_text()
    assert not external(server)


@pytest.mark.long
def test_address_of_a_file_opens_that_file_without_a_key(trained):
    server, _, path = trained
    with tinker.ServiceClient(base_url=server.url, api_key="tml-secret") as service:
        client: Any = service.create_training_client_from_state(path)
        client = client.result() if hasattr(client, "result") else client
        saved = client.save_weights_external("kept", ttl_seconds=3600).result().path
        rest = tinker.RestClient(base_url=server.url, api_key="tml-secret")
        url = rest.get_external_weights_urls(saved).result().urls["adapter_model.safetensors"]
        assert httpx.get(url).status_code == 200
        rest.set_checkpoint_ttl_from_tinker_path(saved, 3600).result()
        assert httpx.get(url.replace("/download/", "/download/another")).status_code == 401
        for other in ("..", "..%2Fkept.external.json", "none.json"):
            escape = url.replace("adapter_model.safetensors", other)
            assert httpx.get(escape).status_code in (401, 404)
        with refused("weights/", kind=Exception):
            service.create_training_client_from_state(saved).result()
        rest.delete_checkpoint_from_tinker_path(saved).result()
    assert httpx.get(url).status_code == 404


def test_service_cannot_write_outside_the_folder(trained, tmp_path):
    server, _, path = trained
    with EscapingProxy(server.url, {}) as proxy:
        place = place_of(proxy.url, {"CODE_RL_SERVER_KEY": "tml-secret"})
        with pytest.raises(BackendError):
            download_adapter(place, path, tmp_path / "in")
    assert not (tmp_path / "escaped").exists()
    assert not external(server)


def test_sampler_weights_are_refused_with_what_to_give(tmp_path):
    with refused("state_path"):
        download_adapter(place_of("http://127.0.0.1:9"), "tinker://r/sampler_weights/1", tmp_path)


def test_a_server_of_an_older_generation_cannot_give_its_weights(tmp_path):
    with OtherServer(of_an_older_generation) as other, refused(other.url):
        given = {"checkpoint": "tinker://r/weights/1", "base_model": "tiny", "format": "peft"}
        export_command({**given, "backend": other.url, "out": str(tmp_path / "out")})
