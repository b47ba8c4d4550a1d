"""A real OpenAI-compatible server, `transformers serve`, with the built-in model exported: evaluated, killed and restarted in the middle.

Set CODE_RL_TRANSFORMERS_SERVE to the Python of an environment with `transformers[serving]`, torch and requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

from code_rl.cli.main import main

PYTHON = os.environ.get("CODE_RL_TRANSFORMERS_SERVE")
SAMPLES = 4
LIMIT = 2
WANTED = 3 * LIMIT * (SAMPLES + 1)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not PYTHON, reason="CODE_RL_TRANSFORMERS_SERVE names no Python with transformers[serving]"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The built-in model as a merged Hugging Face folder."""
    from code_rl.engine.local import EmbeddedService

    scratch = tmp_path_factory.mktemp("exported")
    service = EmbeddedService(device="cpu", dtype="float32", state_dir=scratch / "checkpoints")
    client = service.create_lora_training_client("tiny", rank=8, seed=0).result()
    state = client.save_state("base").result().path
    assert main(["export", f"checkpoint={state}", "format=merged", f"out={scratch / 'merged'}"]) == 0
    return scratch / "merged"


class Served:
    """`transformers serve` as a process of its own on one port; it can be killed and started again."""

    def __init__(self, folder, log):
        self._folder = folder
        self._log = log
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self):
        words = ["serve", str(self._folder), "--host", "127.0.0.1", "--port", str(self.port), "--device", "cpu"]
        self.process = subprocess.Popen(
            [PYTHON, "-m", "transformers.cli.transformers", *words], stdout=self._log, stderr=self._log
        )

    def wait(self):
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            assert self.process.poll() is None, "the server ended"
            with contextlib.suppress(OSError, urllib.error.URLError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2)
                return
            time.sleep(0.2)
        pytest.fail("the server did not come up")

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(10)


@pytest.fixture
def served(folder, tmp_path):
    with (tmp_path / "serve.log").open("w") as log:
        server = Served(folder, log)
        server.start()
        try:
            server.wait()
            yield server
        finally:
            server.kill()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def evaluation(served, folder, out):
    words = [
        f"endpoint={served.url}",
        f"model_name={folder}",
        f"n={SAMPLES}",
        "greedy=true",
        f"limit={LIMIT}",
        "max_tokens=96",
    ]
    return ["eval", "benchmark=builtin", *words, "asking=3", "outage_timeout=600", f"out={out}"]  # fmt: skip


def test_a_server_killed_and_restarted_in_the_middle_costs_no_sample(served, folder, tmp_path):
    out = tmp_path / "out"
    running = subprocess.Popen([sys.executable, "-m", "code_rl.cli", *evaluation(served, folder, out)])
    while len(lines(out / "samples.jsonl")) < WANTED // 3:
        assert running.poll() is None
        time.sleep(0.1)
    served.kill()
    at_the_cut = len(lines(out / "samples.jsonl"))
    time.sleep(2)
    served.start()
    assert running.wait(1200) == 0
    samples, verdicts = lines(out / "samples.jsonl"), lines(out / "verdicts.jsonl")
    keys = [(row["problem_id"], row["mode"], row["sample"]) for row in samples]
    assert at_the_cut < len(keys) == len(set(keys)) == WANTED
    assert set(keys) == {(row["problem_id"], row["mode"], row["sample"]) for row in verdicts}
    counts = json.loads((out / "manifest.json").read_text())["counts"]
    assert (counts["samples_wanted"], counts["samples_judged"], counts["samples_missing"]) == (WANTED, WANTED, 0)
    print(f"killed after {at_the_cut} of {WANTED} samples")
    print((out / "results.md").read_text())
