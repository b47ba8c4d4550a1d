"""Programs that are not ours, through the server: the SDK's quickstart, and tinker-cookbook's recipes and trainer.

CODE_RL_COOKBOOK_PYTHON names the python of an environment with `pip install tinker-cookbook==0.5.8 sympy pylatexenc math-verify`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
sys.path.insert(0, str(Path(__file__).parents[1] / "serve"))
from serve_support import Raw, ServeProcess

import code_rl.backends.embedded

PROGRAMS = Path(__file__).parent / "cookbook_programs.py"
VARIABLE = "CODE_RL_COOKBOOK_PYTHON"
TINY = Path(code_rl.backends.embedded.__file__).parent / "tiny"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    models = folder / "models.toml"
    models.write_text('[models]\n"Qwen/Qwen3-8B" = "tiny"\n')
    with ServeProcess(folder / "state", models=models) as running:
        yield running


# Fewer would mean that a program went through its batches and trained nothing.
STEPS = {"quickstart": 12, "sl_loop": 5, "rl_loop": 2, "rl_train": 3}


def done(server: ServeProcess, kind: str) -> float:
    """How many requests of a kind the server has carried out."""
    lines = Raw(server.port).send("GET", "/metrics")[1].decode().splitlines()
    name = f'code_rl_serve_promises_total{{kind="{kind}",outcome="done"}} '
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0.0)


def run(python: str, program: str, server: ServeProcess, log: Path) -> str:
    environment = {**os.environ, "TINKER_BASE_URL": server.url, "TINKER_API_KEY": "tml-dummy", "TINKER_TELEMETRY": "0"}
    before = {kind: done(server, kind) for kind in ("forward_backward", "optim_step")}
    ended = subprocess.run(
        [python, str(PROGRAMS), program, str(log), str(TINY)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert f"completed {program}" in ended.stdout
    for kind, count in before.items():
        assert done(server, kind) - count >= STEPS[program]
    return ended.stdout + ended.stderr


@pytest.mark.slow
def test_the_quickstart_flow_learns_its_examples(server, tmp_path):
    print(run(sys.executable, "quickstart", server, tmp_path / "log").splitlines()[-2:])


@pytest.mark.slow
@pytest.mark.parametrize("program", ["sl_loop", "rl_loop", "rl_train"])
def test_a_program_of_the_cookbook_runs_to_its_end(server, tmp_path, program):
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} names no environment with tinker-cookbook 0.5.8")
    log = tmp_path / "log"
    run(python, program, server, log)
    metrics = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    checkpoints = [json.loads(line) for line in (log / "checkpoints.jsonl").read_text().splitlines()]
    assert checkpoints[-1]["state_path"].startswith("tinker://")
    assert checkpoints[-1]["sampler_path"].startswith("tinker://")
    if program == "sl_loop":
        losses = [m["train_mean_nll"] for m in metrics if "train_mean_nll" in m]
        assert losses[-1] < losses[0]
    print(program, metrics[-1])
