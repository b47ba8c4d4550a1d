"""A model that cannot be had: one line with its name and the remedy, exit code 2, before a step is taken."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.data.loading.hub_server import HubServer

MODELS = {
    "org/gated": (403, "GatedRepo"),
    "org/absent": (401, "RepoNotFound"),
    "org/bare": (404, "EntryNotFound"),
    "org/down": (503, ""),
}


def train(model: str, tmp_path, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "code_rl.cli", "train", "backend=embedded", f"model_name={model}", "max_steps=1",
         f"log_path={tmp_path / 'run'}"],
        env=os.environ | {"HF_HOME": str(tmp_path / "hub")} | environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    return done.returncode, done.stderr.strip()


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        ("org/gated", "HF_TOKEN"),
        ("org/absent", "check the name"),
        ("org/nowhere", "check the name"),
        ("org/bare", "transformers model"),
        ("org/down", "hf download org/down"),
        ("org/name@v1", "org/name@v1"),
        ("FOLDER", "config.json"),
    ],
)
def test_model_that_cannot_be_had_is_one_line_with_a_remedy(model, remedy, tmp_path):
    (tmp_path / "folder").mkdir()
    with HubServer({}, MODELS) as hub:
        code, said = train(model.replace("FOLDER", str(tmp_path / "folder")), tmp_path, HF_ENDPOINT=hub.url)
    assert code == 2
    assert said.startswith("error: model ")
    assert remedy in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("environment", [{"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}])
def test_hub_out_of_reach_is_said_at_once(environment, tmp_path):
    code, said = train("org/name", tmp_path, **environment)
    assert (code, len(said.splitlines())) == (2, 1)
    assert "hf download org/name" in said
