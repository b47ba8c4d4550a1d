"""Our own training run against the server: the same metrics as in process, and a server that dies in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
from tests.engine.serve.serve_support import ServeProcess

SMALL = (
    "recipe=tiny",
    "executor=embedded",
    "eval_every=0",
    "eval_limit=4",
    "eval_samples=2",
    "batch_size=16",
    "group_size=4",
)
TIMES = ("time/",)


def start(log: Path, backend: str, *words: str) -> subprocess.Popen[str]:
    """A training run as a process."""
    command = [
        sys.executable,
        "-m",
        "code_rl.cli.main",
        "train",
        f"log_path={log}",
        f"backend={backend}",
        *SMALL,
        *words,
    ]
    environment = {**os.environ, "TINKER_TELEMETRY": "0"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def train(log: Path, backend: str, *words: str) -> tuple[int, str]:
    run = start(log, backend, *words)
    output, _ = run.communicate(timeout=500)
    return run.returncode, output


def metrics(log: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith(TIMES)} for line in lines]


@pytest.mark.slow
def test_a_run_over_http_gives_the_metrics_of_a_run_in_process(tmp_path):
    with ServeProcess(tmp_path / "state") as server:
        for name, backend in (("here", "embedded"), ("there", server.url)):
            code, output = train(tmp_path / name, backend, "max_steps=4")
            assert code == 0, output
    assert metrics(tmp_path / "there") == metrics(tmp_path / "here")
    assert sum(bool(line.get("optim/grad_norm")) for line in metrics(tmp_path / "here")) == 4


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_that_ends_in_the_middle_costs_no_saved_step(tmp_path, number):
    server, log = ServeProcess(tmp_path / "state"), tmp_path / "run"
    words = ("max_steps=8", "save_every=2")
    with server:
        run = start(log, server.url, *words)
        file = log / "metrics.jsonl"
        end = time.monotonic() + 300
        while not (file.exists() and '"step": 3' in file.read_text()):
            assert run.poll() is None, run.stdout and run.stdout.read()
            assert time.monotonic() < end
            time.sleep(0.1)
        server.stop(number)
        server.start()
        output, _ = run.communicate(timeout=500)
        if run.returncode != 0:
            assert "Traceback" not in output
            code, output = train(log, server.url, *words)
            assert code == 0, output
        steps = [line["step"] for line in metrics(log) if "mean_reward" in line]
        assert steps == list(range(8))
        saved = [json.loads(line) for line in (log / "checkpoints.jsonl").read_text().splitlines()]
        assert all((path := record["state_path"]).startswith("tinker://") and path for record in saved)
