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


EACH = """
import sys
from code_rl.cli.main import main
for model in sys.argv[2:]:
    code = main(["train", "backend=embedded", f"model_name={model}", "max_steps=1", f"log_path={sys.argv[1]}"])
    print(code, end="\\0", file=sys.stderr)
"""


def train(models: list[str], path, **environment: str) -> list[tuple[str, str]]:
    """Train each model, in one process; returns its output and its exit code."""
    done = subprocess.run(
        [sys.executable, "-c", EACH, str(path / "run"), *models],
        env=os.environ | {"HF_HOME": str(path / "hub")} | environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert not (path / "run" / "metrics.jsonl").exists()
    ends = done.stderr.split("\0")[:-1]
    return [(said.strip(), code) for said, _, code in (end.rpartition("\n") for end in ends)]


REMEDIES = {
    "org/gated": "HF_TOKEN",
    "org/absent": "check the name",
    "org/nowhere": "check the name",
    "org/bare": "transformers model",
    "org/down": "hf download org/down",
    "org/name@v1": "org/name@v1",
    "FOLDER": "config.json",
}


@pytest.mark.long
def test_model_that_cannot_be_had_is_one_line_with_a_remedy(tmp_path):
    (tmp_path / "folder").mkdir()
    models = [model.replace("FOLDER", str(tmp_path / "folder")) for model in REMEDIES]
    with HubServer({}, MODELS) as hub:
        ends = train(models, tmp_path, HF_ENDPOINT=hub.url)
    for remedy, (said, code) in zip(REMEDIES.values(), ends, strict=True):
        assert code == "2"
        assert said.startswith("error: model ")
        assert remedy in said
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"HF_ENDPOINT": "http://127.0.0.1:9"}, marks=pytest.mark.long),
        pytest.param({"HF_HUB_OFFLINE": "1"}, marks=pytest.mark.slow),
    ],
)
def test_hub_out_of_reach_is_said_at_once(environment, tmp_path):
    [(said, code)] = train(["org/name"], tmp_path, **environment)
    assert (code, len(said.splitlines())) == ("2", 1)
    assert "hf download org/name" in said
