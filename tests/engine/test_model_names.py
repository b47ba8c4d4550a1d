"""A model that cannot be had: one line with its name and the remedy, exit code 2, before a step is taken."""

from __future__ import annotations

import pytest

from code_rl.cli.main import main
from tests.data.loading.hub_server import HubServer
from tests.engine.hub import take_for_the_hub

MODELS = {
    "org/gated": (403, "GatedRepo"),
    "org/absent": (401, "RepoNotFound"),
    "org/bare": (404, "EntryNotFound"),
    "org/down": (503, ""),
}
REMEDIES = {
    "org/gated": "HF_TOKEN",
    "org/absent": "check the name",
    "org/nowhere": "check the name",
    "org/bare": "transformers model",
    "org/down": "hf download org/down",
    "org/name@v1": "org/name@v1",
    "FOLDER": "config.json",
}


@pytest.fixture
def refusal(tmp_path, monkeypatch, capfd):
    """Trains a model that this hub does not give; returns the line on stderr."""

    def run(model: str, hub: str, *, offline: bool = False) -> str:
        take_for_the_hub(hub, monkeypatch, tmp_path / "hub", offline=offline)
        capfd.readouterr()
        words = ["backend=embedded", f"model_name={model}", "max_steps=1", f"log_path={tmp_path / 'run'}"]
        assert main(["train", *words]) == 2
        assert not (tmp_path / "run" / "metrics.jsonl").exists()
        (line,) = capfd.readouterr().err.splitlines()
        return line

    return run


@pytest.mark.parametrize("model", REMEDIES)
def test_model_that_cannot_be_had_is_one_line_with_a_remedy(refusal, tmp_path, model):
    (tmp_path / "folder").mkdir()
    with HubServer({}, MODELS) as hub:
        said = refusal(model.replace("FOLDER", str(tmp_path / "folder")), hub.url)
    assert said.startswith("error: model ")
    assert REMEDIES[model] in said


@pytest.mark.parametrize("offline", [False, True])
def test_hub_out_of_reach_is_said_at_once(refusal, offline):
    assert "hf download org/name" in refusal("org/name", "http://127.0.0.1:9", offline=offline)
