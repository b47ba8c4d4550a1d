"""A merged export behind `transformers serve`: Chat Completions answers with the sampler's own greedy text."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
for needed in ("fastapi", "uvicorn", "openai", "requests", "multipart"):
    if find_spec(needed) is None:  # imported by the server alone
        pytest.skip(f"transformers serve needs {needed}", allow_module_level=True)
from tinker import types  # noqa: E402

from code_rl.cli.export import export_command  # noqa: E402
from code_rl.engine.local import EmbeddedService  # noqa: E402
from code_rl.policy.renderers import Message, get_renderer  # noqa: E402
from tests.engine.local.embedded_models import text, trained  # noqa: E402

pytestmark = pytest.mark.slow
QUESTIONS = ("Print the sum of two integers.", "Read a list of integers and print the sum of the even ones.")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ask(url: str, body: dict) -> str:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    deadline = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["choices"][0]["message"]["content"]
        except (urllib.error.URLError, ConnectionError) as error:
            if isinstance(error, urllib.error.HTTPError) or time.monotonic() > deadline:
                raise
            time.sleep(0.3)


def test_transformers_serve_answers_with_the_samplers_greedy_text(tmp_path):
    service = EmbeddedService(device="cpu", dtype="float32", state_dir=tmp_path)
    client = service.create_lora_training_client("tiny", rank=8, seed=1).result()
    trained(client, scale=0.02)
    state = client.save_state("trained").result().path
    folder = tmp_path / "merged"
    assert export_command({"checkpoint": state, "format": "merged", "out": str(folder)}) == 0
    sampler = client.save_weights_and_get_sampling_client().result()
    renderer = get_renderer("auto", client.get_tokenizer())
    port = free_port()
    command = [str(Path(sys.executable).parent / "transformers"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    served = subprocess.Popen([*command, "--device", "cpu", "--dtype", "float32"], stdout=subprocess.DEVNULL)
    try:
        for question in QUESTIONS:
            messages: list[Message] = [{"role": "user", "content": question}]
            parameters = types.SamplingParams(max_tokens=40, temperature=0.0, stop=renderer.get_stop_sequences())
            sequence = sampler.sample(text(renderer.prompt_tokens(messages)), 1, parameters).result().sequences[0]
            ours = renderer.parse_response(sequence.tokens)[0]["content"]
            body = {"model": str(folder), "messages": messages, "temperature": 0.0, "max_tokens": 40, "stream": False}
            theirs = ask(f"http://127.0.0.1:{port}/v1/chat/completions", body)
            assert theirs.strip() == ours.strip()
            assert ours.strip()
    finally:
        served.terminate()
        served.wait(30)
