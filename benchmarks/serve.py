"""Load on `code-rl serve`: clients that sample and clients that train, all at once, through the real SDK.

    python benchmarks/serve.py [seconds=300] [samplers=16] [trainers=4] [threads=1]

Every client is a ServiceClient of its own. A sampling client asks again and again for 4 completions of 32 tokens of the built-in
model; a training client runs passes over 8 datums, steps, and now and then a snapshot, from which it samples. One more client
is a process that is killed in the middle: its models must be freed. Printed are errors, futures without an answer, progress
per client (fewest, median, most), tokens per second, and the server's memory over time. Exit code 1 when anything was lost.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import chz

from code_rl.cli.main import run_script

os.environ["TINKER_TELEMETRY"] = "0"
KEY = "tml-dummy"
GHOST = """
import sys, tinker
from tinker import types
service = tinker.ServiceClient(base_url=sys.argv[1], api_key="tml-dummy")
trainer = service.create_lora_training_client("tiny", rank=8).result()
sampler = trainer.save_weights_and_get_sampling_client().result()
futures = [sampler.sample(types.ModelInput.from_ints([30] * 20), 64, types.SamplingParams(max_tokens=200)) for _ in range(20)]
print(trainer.model_id, flush=True)
sys.stdin.read()
"""


@chz.chz
class LoadConfig:
    """Settings of the load test."""

    seconds: float = chz.field(default=300.0, doc="How long the clients go on.")
    samplers: int = chz.field(default=16, doc="Clients that sample.")
    trainers: int = chz.field(default=4, doc="Clients that train.")
    threads: int = chz.field(default=1, doc="torch's threads in the server.")


class Clients:
    """Counts of all clients, and the errors that they saw."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.end = 0.0
        self.done: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.open: Counter[str] = Counter()
        self.errors: list[str] = []

    def run(self, name: str, work: Callable[[str, Any], None]) -> None:
        """One client, until the time is over."""
        import tinker

        try:
            service = tinker.ServiceClient(base_url=self.url, api_key=KEY)
            work(name, service)
            service.close("success").result(timeout=60)
        except Exception as error:  # noqa: BLE001 - counted and shown
            self.errors.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")

    def wait(self, name: str, future: Any) -> Any:
        """A future's result, counted."""
        self.open[name] += 1
        result = future.result(timeout=120)
        self.open[name] -= 1
        return result

    def sample(self, name: str, service: Any) -> None:
        """Sample until the time is over."""
        from tinker import types

        sampler = self.wait(name, service.create_sampling_client(base_model="tiny"))
        prompt = types.ModelInput.from_ints([20 + len(name), *range(30, 60)])
        while time.monotonic() < self.end:
            params = types.SamplingParams(max_tokens=32, stop=[], seed=self.done[name])
            sequences = self.wait(name, sampler.sample(prompt, 4, params)).sequences
            assert [len(s.tokens) for s in sequences] == [32] * 4
            self.tokens[name] += 128
            self.done[name] += 1

    def train(self, name: str, service: Any) -> None:
        """Train until the time is over."""
        import numpy as np
        from tinker import types

        trainer = self.wait(name, service.create_lora_training_client("tiny", rank=8, seed=len(name)))
        tokens = np.random.default_rng(0).integers(20, 600, 65)
        inputs: Any = {"target_tokens": tokens[1:], "weights": np.ones(64, dtype=np.float32)}
        data = [types.Datum(types.ModelInput.from_ints(tokens[:-1].tolist()), inputs)] * 8
        while time.monotonic() < self.end:
            passed = trainer.forward_backward(data, "cross_entropy")
            stepped = trainer.optim_step(types.AdamParams(learning_rate=1e-4))
            assert self.wait(name, passed).metrics["loss:sum"] > 0
            self.wait(name, stepped)
            self.tokens[name] += 8 * 64
            self.done[name] += 1
            if self.done[name] % 10 == 0:
                sampler = self.wait(name, trainer.save_weights_and_get_sampling_client())
                self.wait(name, sampler.sample(data[0].model_input, 2, types.SamplingParams(max_tokens=8)))


def main(config: LoadConfig) -> int:
    """Run the load; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        words = [f"state_dir={folder}/state", "port=0", "device=cpu", f"threads={config.threads}", "preload=tiny"]
        command = [sys.executable, "-m", "code_rl.cli", "serve", *words, "session_timeout_s=60"]
        with (Path(folder) / "stderr").open("w") as stderr:
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[1]
            lost = _load(config, url, server.pid)
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(120)
        trouble = (Path(folder) / "stderr").read_text()
        print(f"the server ended with {code}{', and printed a traceback' if 'Traceback' in trouble else ''}")
        return 1 if lost or code or "Traceback" in trouble else 0


def _load(config: LoadConfig, url: str, pid: int) -> bool:
    clients = Clients(url)
    importlib.import_module("tinker")
    names = {f"sampler-{i}": clients.sample for i in range(config.samplers)}
    names |= {f"trainer-{i}": clients.train for i in range(config.trainers)}
    threads = [threading.Thread(target=clients.run, args=item) for item in names.items()]
    ghost = subprocess.Popen(
        [sys.executable, "-c", GHOST, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert ghost.stdout is not None
    ghost.stdout.readline()
    # From here on everybody has the SDK loaded.
    start = time.monotonic()
    clients.end = start + config.seconds
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    ghost.kill()
    memory = [(0.0, _resident_mb(pid))]
    every = config.seconds / 10
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(max(0.0, min(every, memory[-1][0] + every - (time.monotonic() - start))))
        memory.append((time.monotonic() - start, _resident_mb(pid)))
    wall = time.monotonic() - start
    _report(clients, names, memory, wall)
    held = _metric(url, 'code_rl_serve_in_memory{kind="training"}')
    print(f"models in memory after all clients have gone, one of them killed: {held:.0f}")
    ended = held == 0 or config.seconds < 90
    return bool(clients.errors) or sum(clients.open.values()) > 0 or not ended


def _report(clients: Clients, names: dict[str, Any], memory: list[tuple[float, float]], wall: float) -> None:
    print(f"{wall:.0f} s, errors {len(clients.errors)}, futures without an answer {sum(clients.open.values())}")
    for error in clients.errors[:10]:
        print(f"  {error}")
    for kind, unit in (("sampler", "requests"), ("trainer", "steps")):
        counts = [clients.done[name] for name in names if name.startswith(kind)]
        tokens = sum(clients.tokens[name] for name in names if name.startswith(kind))
        if counts:
            print(
                f"{len(counts)} {kind}s: {sum(counts)} {unit}, per client {min(counts)} / {median(counts):.0f} / {max(counts)} "
                f"(fewest, median, most), {tokens / wall:,.0f} tokens/s"
            )
    print("server memory, MB:", ", ".join(f"{mb:.0f} at {at:.0f} s" for at, mb in memory))


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def _metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(name)).rpartition(" ")[2])


if __name__ == "__main__":
    run_script(LoadConfig, main, __doc__ or "")
