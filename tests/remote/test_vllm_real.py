"""`sampler=` with vLLM itself. CODE_RL_VLLM names the Python of an environment that has it; on a CPU, docs/cluster.md says how to make one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest
from test_vllm import given

from code_rl.backends.names import source_of
from code_rl.commands.train import train_command
from code_rl.runs.recorder import read_metrics

PYTHON = os.environ.get("CODE_RL_VLLM")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(PYTHON is None, reason="CODE_RL_VLLM names no Python that has vLLM"),
]
STARTING_S = 300
CPU = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


class Server:
    """One vLLM on a port of its own, with the built-in model; it can be killed and started again."""

    def __init__(self, port: int, log: Path) -> None:
        self.port, self.url, self._log = port, f"http://127.0.0.1:{port}", log

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
        ]
        command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", source_of("tiny"), *options]
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


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = Server(port, tmp_path_factory.mktemp("vllm") / "log")
    server.start()
    server.wait()
    yield server
    server.kill()


def steps(log_path: Path) -> list[dict]:
    return [line for line in read_metrics(log_path) if line["step"] >= 0]


def test_vllm_draws_with_the_trainers_log_probabilities_at_every_step(vllm, tmp_path):
    assert train_command(given(vllm.url, tmp_path / "run", learning_rate="5e-3", max_steps="3")) == 0
    lines = steps(tmp_path / "run")
    assert sum(line["n_datums"] for line in lines) > 0
    assert max(line["sampler/gap_max"] for line in lines) < 1e-3
    assert max(line["ratio_max"] for line in lines if line["n_datums"]) < 1e-3
    assert [model["id"] for model in httpx.get(f"{vllm.url}/v1/models").json()["data"]] == [source_of("tiny")]


def test_a_run_with_overlap_waits_for_a_vllm_that_is_killed_and_goes_on_when_it_is_back(vllm, tmp_path):
    run = tmp_path / "run"

    def fail_once() -> None:
        while not steps(run) if (run / "metrics.jsonl").exists() else True:
            time.sleep(0.05)
        vllm.kill()
        vllm.start()

    killer = threading.Thread(target=fail_once)
    killer.start()
    settings = given(vllm.url, run, max_steps="4", max_steps_off_policy="1", backend_patience="300")
    assert train_command(settings) == 0
    killer.join()
    lines = steps(run)
    assert [line["step"] for line in lines] == [0, 1, 2, 3]
    assert "answers again" in (run / "logs.log").read_text()
    assert max(line["sampler/gap_max"] for line in lines if "sampler/gap_max" in line) < 1e-3
    assert lines[-1]["staleness/mean"] == 1
