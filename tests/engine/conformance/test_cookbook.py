"""Programs that are not ours, through the server: the SDK's quickstart, and the recipes of tinker-cookbook.

CODE_RL_COOKBOOK_PYTHON names the python of an environment with `pip install tinker-cookbook==0.6.1 sympy pylatexenc math-verify`.
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
import code_rl.engine.local
from tests.engine.serve.serve_support import Raw, ServeProcess

PROGRAMS = Path(__file__).parent / "cookbook_programs.py"
VARIABLE = "CODE_RL_COOKBOOK_PYTHON"
TINY = Path(code_rl.engine.local.__file__).parent / "tiny"
MODEL = "Qwen/Qwen3-8B"
RL = "groups_per_batch=4 group_size=4 max_tokens=24 eval_every=0"
SL = "batch_size=4 max_length=256"
# As docs/serve.md has them. The renderer is named where a recipe's own is that of another model.
RECIPES = {
    "sl_loop": f"sl_loop {SL} learning_rate=2e-3",
    "chat_sl": f"chat_sl.train {SL} eval_every=0",
    "rl_loop": "rl_loop batch_size=4 group_size=4 max_tokens=24 loss_fn=importance_sampling",
    "rl_loop cispo": "rl_loop batch_size=4 group_size=4 max_tokens=24 loss_fn=cispo",
    "rl_loop gspo": "rl_loop batch_size=4 group_size=4 max_tokens=24 loss_fn=gspo",
    "math_rl": f"math_rl.train {RL} env=gsm8k loss_fn=importance_sampling",
    "math_rl dro": f'math_rl.train {RL} env=math loss_fn=dro loss_fn_config={{"beta":0.05}}',
    "math_rl async": f"math_rl.train {RL} env=gsm8k max_steps_off_policy=1 loss_fn=ppo",
    "shorter": "preference.shorter.train renderer_name=qwen3 batch_size=4 group_size=4 max_tokens=24 eval_every=0",
    "on_policy": f"distillation.on_policy_distillation {RL} teacher_model={MODEL}",
    "off_policy": f"distillation.off_policy_reasoning renderer_name=qwen3 {SL} buffer_size=64 max_prompts=64 eval_every=0",
    "sdft": "sdft.train renderer_name=qwen3 groups_per_batch=4 max_tokens=24 topk=5 eval_every=0",
    "sdft reverse": "sdft.train renderer_name=qwen3 groups_per_batch=4 max_tokens=24 topk=5 eval_every=0 reverse=True",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve")
    models = folder / "models.toml"
    models.write_text(f'[models]\n"{MODEL}" = "{long_tiny(folder / "tiny")}"\n')
    with ServeProcess(folder / "state", models=models) as running:
        yield running


def long_tiny(folder: Path) -> Path:
    """The built-in model with room for the recipes' prompts, of which some are longer than its 512 tokens."""
    folder.mkdir()
    for file in TINY.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((TINY / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    return folder


@pytest.fixture
def cookbook():
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} names no environment with tinker-cookbook 0.6.1")
    return python


def done(server: ServeProcess, kind: str) -> float:
    """How many requests of a kind the server has carried out."""
    lines = Raw(server.port).send("GET", "/metrics")[1].decode().splitlines()
    name = f'code_rl_serve_promises_total{{kind="{kind}",outcome="done"}} '
    return next((float(line.removeprefix(name)) for line in lines if line.startswith(name)), 0.0)


def run(python: str, server: ServeProcess, *words: str) -> tuple[int, str]:
    environment = {**os.environ, "TINKER_BASE_URL": server.url, "TINKER_API_KEY": "tml-dummy", "TINKER_TELEMETRY": "0"}
    ended = subprocess.run(
        [python, str(PROGRAMS), str(TINY), *words],
        capture_output=True,
        text=True,
        env={**environment, "VARIED": "1"},
        timeout=300,
    )
    return ended.returncode, ended.stdout + ended.stderr


def recipe(python: str, server: ServeProcess, words: str, log: Path) -> tuple[int, str]:
    module, *settings = words.split()
    given = [f"model_name={MODEL}", "max_steps=2", f"log_path={log}", *settings]
    return run(python, server, f"tinker_cookbook.recipes.{module}", *given)


@pytest.mark.slow
def test_the_quickstart_flow_learns_its_examples(server):
    before = done(server, "optim_step")
    code, output = run(sys.executable, server, "quickstart")
    assert code == 0, output[-3000:]
    assert done(server, "optim_step") - before == 12


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_to_its_end_and_takes_its_steps(server, cookbook, tmp_path, name):
    """Two steps with a gradient that is not zero, counted on the server: a recipe whose rewards are all equal takes none."""
    log = tmp_path / "log"
    before = {kind: done(server, kind) for kind in ("forward_backward", "optim_step")}
    code, output = recipe(cookbook, server, RECIPES[name], log)
    assert code == 0, output[-3000:]
    for kind, count in before.items():
        assert done(server, kind) - count == 2
    metrics = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    norms = [value for line in metrics for key, value in line.items() if "grad_norm" in key]
    assert len(norms) == 2
    assert min(norms) > 0
    saved = [json.loads(line) for line in (log / "checkpoints.jsonl").read_text().splitlines()]
    assert saved[-1]["state_path"].startswith("tinker://")
    assert saved[-1]["sampler_path"].startswith("tinker://")


@pytest.mark.slow
def test_a_recipe_with_the_loss_that_is_not_there_ends_with_what_to_choose(server, cookbook, tmp_path):
    code, output = recipe(cookbook, server, "rl_loop batch_size=4 group_size=4 max_tokens=24", tmp_path / "log")
    assert code == 1
    assert "stable_reinforce" in output
    assert "importance_sampling, ppo, cispo or gspo" in output
