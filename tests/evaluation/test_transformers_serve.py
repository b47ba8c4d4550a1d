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
import time
import urllib.error
import urllib.request

import pytest

from code_rl.cli.main import main

PYTHON = os.environ.get("CODE_RL_TRANSFORMERS_SERVE")
LIMIT = 2
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


def test_greedy_completions_are_those_of_our_own_engine(served, folder, tmp_path):
    words = ["benchmark=builtin", "temperature=0", f"limit={LIMIT}", "max_tokens=96"]
    assert main(["eval", *words, f"endpoint={served.url}", f"model={folder}", "asking=2", f"out={tmp_path / 'a'}"]) == 0
    assert main(["eval", *words, "model=tiny", f"out={tmp_path / 'b'}"]) == 0
    texts = [
        {row["problem_id"]: row["completion"] for row in lines(tmp_path / name / "samples.jsonl")} for name in "ab"
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 3 * LIMIT
