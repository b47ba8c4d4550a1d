"""Servers that are killed with SIGKILL at random instants under a run over HTTP, and restarted; the run is resumed where it stopped.

    python tests/training/survival/server_suite.py cases=10 lag=0 seed=0 folder=DIR

The harness is that of `kill_suite`: run and server (`code-rl serve`) are children forked from one parent that has loaded torch. The
server's child notes every optimizer step that it applies, by model, with Adam's own count after it.

A case is right when the run comes to its end with the rollouts of the undisturbed one token for token and its metrics to five
digits (sums in another order differ in the last bits), when the weights differ by less than 1e-5, when Adam has counted
exactly the steps that had datums and no model counted one twice, and when no completion that had arrived was asked for again.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
from tests.training.survival.kill_suite import PATIENCE_S, ended, fork, preload, read_outcomes, summary, train

RUN = {
    "model_name": "tiny", "recipe": "tiny", "executor": "embedded", "sandbox_concurrency": "2", "batch_size": "8",
    "group_size": "2", "max_tokens": "48", "max_steps": "5", "save_every": "1", "eval_every": "-1", "patience": "60",
}  # fmt: skip
WEIGHTS_ATOL = 1e-5


@dataclass
class Server:
    """`code-rl serve` in a child; a restart keeps port and state."""

    folder: Path
    port: int = 0
    child: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def steps(self) -> Path:
        """What every process of this server noted of optimizer steps."""
        return self.folder / "steps"

    def start(self) -> None:
        if not self.port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
        given = {
            "port": str(self.port),
            "state_dir": str(self.folder / "state"),
            "device": "cpu",
            "threads": "1",
        }
        output = self.folder / "server.output"
        before = output.stat().st_size if output.exists() else 0
        self.child = fork(given, self.folder / "server.ledger", output, self._serve)
        until = time.monotonic() + PATIENCE_S
        while not (output.exists() and b"serving http://" in output.read_bytes()[before:]):
            if ended(self.child, time.monotonic() + 0.005) is not None or time.monotonic() > until:
                raise SystemExit(f"the server did not start: {output.read_text()[-2000:]}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.child is not None:
            os.kill(self.child, number)
            os.waitpid(self.child, 0)
            self.child = None

    def _serve(self, given: dict[str, str]) -> int:
        from code_rl.cli.serve import serve_command
        from code_rl.engine.local.learner import Learner

        handle = os.open(self.steps, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        optim_step = Learner.optim_step

        def noted(learner: Any, params: Any) -> dict[str, float]:
            metrics = optim_step(learner, params)
            os.write(handle, f"{os.getpid()} {id(learner)} {learner.adam.steps}\n".encode())
            return metrics

        Learner.optim_step = noted  # type: ignore[assignment]
        return serve_command(given)


@dataclass(frozen=True)
class Facts:
    """What a run over HTTP leaves, as far as it must repeat."""

    metrics: list[dict[str, Any]]
    sampled: list[Any]
    weights: Mapping[str, Any]
    adam_steps: int


@dataclass
class Outcome:
    seed: int
    kills: list[str] = field(default_factory=list)
    resumes: int = 0
    wrong: list[str] = field(default_factory=list)


def facts_of(log_path: Path, state: Path) -> Facts:
    from code_rl.engine.checkpoints import read_checkpoints
    from code_rl.engine.local.state import read_state
    from code_rl.engine.serve.store import StateStore
    from code_rl.training.runs.recorder import read_metrics

    store = StateStore.__new__(StateStore)  # only its paths: the folder's lock is the server's
    store.folder = state
    saved = store.find(read_checkpoints(log_path)[-1]["state_path"], "state")
    found = read_state(store.checkpoint_file(saved.run_id, saved.name, saved.kind))
    lines = [json.loads(line) for line in (log_path / "rollouts.jsonl").read_text().splitlines()]
    return Facts(
        [
            {k: round(v, 5) if isinstance(v, float) else v for k, v in record.items() if not k.startswith("time/")}
            for record in read_metrics(log_path)
        ],
        [
            (line["step"], line["group"], line["attempt"], [each["tokens"] for each in line["completions"]])
            for line in lines
        ],
        {name: tensor.numpy() for name, tensor in found.tensors.items() if name.startswith("base_model.")},
        int(found.meta["adam_steps"]),
    )


def run_to_its_end(
    server: Server, folder: Path, lag: int, outcome: Outcome, kill_at: list[tuple[float, float]], size: int
) -> None:
    """Run, kill the server at shares of the log's final size (each with its pause in seconds), resume until the run is through."""
    log_path, log = folder / "run", folder / "run" / "logs.log"
    given = {**RUN, "max_steps_off_policy": str(lag), "backend": server.url, "log_path": str(log_path)}
    kills = list(kill_at)
    for _ in range(len(kills) + 3):
        child = fork(given, folder / "ledger", folder / "output", train)
        until, code = time.monotonic() + PATIENCE_S, None
        while code is None and time.monotonic() < until:
            grown = log.stat().st_size if log.exists() else 0
            if kills and grown >= kills[0][0] * size:
                share, pause = kills.pop(0)
                code = ended(child, time.monotonic() + pause)
                server.stop(signal.SIGKILL)
                outcome.kills.append(f"log at {share:.2f} of its size + {1000 * pause:.0f} ms")
                server.start()
            else:
                code = ended(child, time.monotonic() + 0.002)
        if code == 0:
            return
        if code is None:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            outcome.wrong.append(f"the run hung: {(folder / 'output').read_text()[-600:]}")
            return
        outcome.resumes += 1
        if (log_path / "config.json").exists():
            given = {"log_path": str(log_path)}
    outcome.wrong.append(f"the run did not come to its end: {(folder / 'output').read_text()[-900:]}")


def differences(found: Facts, whole: Facts, server: Server, ledger: Path) -> list[str]:
    import numpy as np

    wrong = [
        f"{name} differ"
        for name in ("metrics", "sampled", "adam_steps")
        if getattr(found, name) != getattr(whole, name)
    ]
    trained = sum(record["n_datums"] > 0 for record in found.metrics)
    if found.adam_steps != trained:
        wrong.append(f"{found.adam_steps} optimizer steps behind the last state, {trained} steps had datums")
    counts: dict[str, list[int]] = defaultdict(list)
    for line in server.steps.read_text().splitlines():
        process, model, steps = line.split()
        counts[f"{process} {model}"].append(int(steps))
    if any(later != earlier + 1 for steps in counts.values() for earlier, later in itertools.pairwise(steps)):
        wrong.append(f"a model counted its steps {dict(counts)}")
    if any(not np.allclose(found.weights[name], each, atol=WEIGHTS_ATOL) for name, each in whole.weights.items()):
        wrong.append("weights differ")
    bought = [what for what, times in Counter(ledger.read_text().splitlines()).items() if times > 1]
    return wrong + [f"bought again: {what}" for what in bought[:3]]


def case(seed: int, lag: int, folder: Path, whole: Facts, size: int) -> Outcome:
    chooser, outcome = random.Random(f"server/{seed}/{lag}"), Outcome(seed)
    shares = sorted(chooser.random() for _ in range(chooser.choice((1, 1, 2))))
    folder.mkdir(parents=True)
    server = Server(folder)
    server.start()
    try:
        run_to_its_end(server, folder, lag, outcome, [(share, 0.05 * chooser.random()) for share in shares], size)
    finally:
        server.stop(signal.SIGKILL)
    if not outcome.wrong:
        found = facts_of(folder / "run", folder / "state")
        outcome.wrong = differences(found, whole, server, folder / "ledger")
    return outcome


def undisturbed(folder: Path, lag: int) -> tuple[Facts, int]:
    """What a run leaves whose server lives, and the size of its log; an earlier call with this folder is taken up."""
    if not (folder / "done").exists():
        folder.mkdir(parents=True)
        server, outcome = Server(folder), Outcome(-1)
        server.start()
        run_to_its_end(server, folder, lag, outcome, [], 1)
        server.stop(signal.SIGKILL)
        if outcome.wrong or outcome.resumes:
            raise SystemExit(f"the undisturbed run failed: {outcome}")
        (folder / "done").touch()
    return facts_of(folder / "run", folder / "state"), (folder / "run" / "logs.log").stat().st_size


def main(words: list[str]) -> int:
    given = dict(word.split("=", 1) for word in words)
    cases, lag, first = int(given.get("cases", "2")), int(given.get("lag", "0")), int(given.get("seed", "0"))
    folder = Path(given["folder"]).absolute()
    until = time.monotonic() + float(given.get("seconds", "inf"))
    preload(("tinker", "code_rl.engine.remote", "code_rl.engine.serve.application", "code_rl.engine.serve.engine"))
    whole, size = undisturbed(folder / "whole", lag)
    for seed in range(first, first + cases):
        if seed in {each["seed"] for each in read_outcomes(folder)} or time.monotonic() > until:
            continue
        shutil.rmtree(folder / str(seed), ignore_errors=True)
        outcome = case(seed, lag, folder / str(seed), whole, size)
        with (folder / "outcomes.jsonl").open("a") as file:
            file.write(json.dumps({"lag": lag, **vars(outcome)}) + "\n")
    resumes = sum(each["resumes"] for each in read_outcomes(folder))
    print(json.dumps({**summary(folder, lag), "stopped_and_resumed": resumes, "cpu_s": round(sum(os.times()[:4]), 1)}))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TINKER_API_KEY", "tml-dummy")
    sys.exit(main(sys.argv[1:]))
