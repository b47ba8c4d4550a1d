"""Runs killed with SIGKILL at random instants, or whose server is, resumed and held against the undisturbed run.

    python tests/training/survival/kill_suite.py cases=40 lags=0,1 seed=0 folder=DIR
    python tests/training/survival/kill_suite.py cases=10 lags=1 kill=server folder=DIR

A parent without threads loads torch and the project once and forks a child for each process of a run or of `code-rl serve`. A kill is
aimed at the run's progress, not at the clock: the parent waits until logs.log has a random share of its final size, and up to 40 ms more.
One kill in eight strikes while the run starts.

A case is right when metrics (times aside), rollouts, checkpoints and every tensor of the last state are those of the undisturbed run, and
no completion and no verdict was bought more often than in that run. Over HTTP sums in another order differ in the last bits: there tokens are
equal, metrics to five digits, weights within 1e-5, and Adam has counted each step with datums once.

Prints one JSON object for each lag. `more=interrupted,terminated,twice,damaged` adds runs that get signals, and one whose last state is
damaged. `workers=N` runs N cases side by side. With `seconds=S` no case begins later; a later call with the same folder goes on. Other words
are settings of the runs.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

RUN = {
    "model_name": "tiny", "recipe": "tiny", "backend": "embedded", "executor": "embedded", "sandbox_concurrency": "2", "batch_size": "8",
    "group_size": "2", "max_tokens": "56", "max_steps": "4", "save_every": "2", "eval_every": "0", "eval_limit": "1", "eval_samples": "1",
}  # fmt: skip
SERVED = {"max_steps": "5", "save_every": "1", "eval_every": "-1", "outage_timeout": "60"}
MODULES = (
    "code_rl.cli.train", "code_rl.loop", "code_rl.data.load", "code_rl.engine.local.service", "code_rl.grading.sandbox.local.pool", "tinker",
)  # fmt: skip
SERVING = ("code_rl.engine.remote", "code_rl.engine.serve.application")
PATIENCE_S = 600.0
ATTEMPTS = 6
WEIGHTS_ATOL = 1e-5


@dataclass
class Outcome:
    """One case: where it was struck, how often the run stopped by itself, and its faults in the end."""

    seed: int
    kills: list[str] = field(default_factory=list)
    resumes: int = 0
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Facts:
    """The facts that two runs must have in common; `tensors` where weights are compared within a tolerance."""

    metrics: list[dict[str, Any]]
    files: dict[str, str]
    checkpoints: list[tuple[str, int, int]]
    weights: str
    adam_steps: int
    tensors: Mapping[str, Any] = field(default_factory=dict, compare=False)


def facts_of(log_path: Path, state: Path | None = None) -> Facts:
    """`state` is the folder of the server that has the run's checkpoints."""
    from safetensors import safe_open
    from safetensors.numpy import load_file

    from code_rl.engine.checkpoints import read_checkpoints
    from code_rl.engine.serve import StateStore
    from code_rl.training import read_metrics

    records, file = read_checkpoints(log_path), (log_path / "rollouts.jsonl").read_bytes()
    metrics = [{k: v for k, v in record.items() if not k.startswith("time/")} for record in read_metrics(log_path)]
    found = Path(records[-1]["state_path"])
    if state is not None:
        store = StateStore.__new__(StateStore)  # only its paths: the folder's lock is the server's
        store.folder = state
        saved = store.find(records[-1]["state_path"], "state")
        found = store.checkpoint_file(saved.run_id, saved.name, saved.kind)
        lines = map(json.loads, file.splitlines())
        file = repr(
            [(line["step"], line["group"], [each["tokens"] for each in line["completions"]]) for line in lines]
        ).encode()
        metrics = [{k: round(v, 5) if isinstance(v, float) else v for k, v in record.items()} for record in metrics]
    with safe_open(found, framework="numpy") as opened:
        settings = json.loads(opened.metadata()["settings"])
    tensors, digest = dict(sorted(load_file(found).items())), hashlib.sha256()
    for name, tensor in tensors.items() if state is None else ():
        digest.update(name.encode() + tensor.tobytes())
    return Facts(
        metrics,
        {"rollouts.jsonl": hashlib.sha256(file).hexdigest()},
        [(record["name"], record["step"], record["offset"]) for record in records],
        digest.hexdigest(),
        int(settings["adam_steps"]),
        {} if state is None else {name: each for name, each in tensors.items() if name.startswith("base_model.")},
    )


def preload(more: Sequence[str] = ()) -> None:
    """Load everything that a run needs. The parent has no thread but its first, so that its children can be forked from it."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"  # pools of threads would not survive a fork
    import torch

    for module in (*MODULES, *more):
        importlib.import_module(module)
    from code_rl.data.builtin import SPLITS, test_split
    from code_rl.engine.local.models import load_model

    for split in SPLITS:
        test_split(split)
    torch.set_num_threads(1)
    _ = load_model("tiny", torch.device("cpu"), torch.float32).tokenizer  # what that imports; children load their own
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise SystemExit(f"the parent has {len(threads)} threads; it could not be forked safely")


def fork(output: Path, work: Callable[[], int]) -> int:
    """A child that ends with the exit code of its work; returns its id."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        with output.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = work()
    except BaseException:  # noqa: BLE001 - shown, and the child ends with a code of its own
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def ended(child: int, until: float) -> int | None:
    """The exit code of a child that ended by then, else None."""
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    return None


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def train(given: dict[str, str], ledger: Path) -> int:
    """An ordinary run; each completion and each verdict is noted once the run has kept it."""
    from code_rl.cli.main import VERBS
    from code_rl.policy import completion_log
    from code_rl.util.errors import CodeRLError

    handle = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    keep = completion_log.GroupLog._put

    def put(self: Any, kind: str, what: Any, row: Any) -> None:
        keep(self, kind, what, row)
        if self._log is not None:
            os.write(handle, f"{self._log.path.parent.name}/{self._log.path.stem} {self._key(kind, what)}\n".encode())

    completion_log.GroupLog._put = put  # type: ignore[method-assign]
    try:
        return VERBS["train"].run(given)
    except CodeRLError as error:
        print(f"error: {error}")
        return error.exit_code


class Server:
    """`code-rl serve` in a child; a restart keeps port and state."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self) -> None:
        output = self.folder / "server.output"
        before = output.stat().st_size if output.exists() else 0
        self.child = fork(output, self._serve)
        until = time.monotonic() + PATIENCE_S
        while not (output.exists() and b"serving http://" in output.read_bytes()[before:]):
            if ended(self.child, time.monotonic() + 0.005) is not None or time.monotonic() > until:
                raise SystemExit(f"the server did not start: {output.read_text()[-2000:]}")

    def _serve(self) -> int:
        from code_rl.cli.main import VERBS

        given = {"port": str(self.port), "state_dir": str(self.folder / "state"), "device": "cpu", "threads": "1"}
        return VERBS["serve"].run(given)


class Scene:
    """One run in a folder of its own, with its server where it has one."""

    def __init__(self, folder: Path, lag: int, words: Mapping[str, str], served: bool) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder, self.log_path, self.ledger, self.output = (folder / n for n in ("", "run", "ledger", "output"))
        self.server = Server(folder) if served else None
        more = {**SERVED, "backend": f"http://127.0.0.1:{self.server.port}"} if self.server else {}
        self._given = {**RUN, **more, **words, "max_steps_off_policy": str(lag), "log_path": str(self.log_path)}

    def __enter__(self) -> Self:
        if self.server:
            self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.server:
            kill(self.server.child)

    def start(self) -> int:
        """Begin the run, or resume it once it has settings."""
        resumes = (self.log_path / "config.json").exists()
        return fork(
            self.output, partial(train, {"log_path": str(self.log_path)} if resumes else self._given, self.ledger)
        )

    def finish(self) -> int | None:
        return ended(self.start(), time.monotonic() + PATIENCE_S)

    def log_size(self) -> int:
        log = self.log_path / "logs.log"
        return log.stat().st_size if log.exists() else 0

    def said(self) -> str:
        return self.output.read_text()[-600:]

    def facts(self) -> Facts:
        return facts_of(self.log_path, self.folder / "state" if self.server else None)

    def bought(self) -> Counter[str]:
        return Counter(self.ledger.read_text().splitlines())

    def differences(self, whole: Whole) -> list[str]:
        found, wrong = self.facts(), []
        for name in ("metrics", "files", "checkpoints", "weights", "adam_steps"):
            if getattr(found, name) != getattr(whole.facts, name):
                wrong.append(f"{name} differ")
        wrong += [f"bought again: {what}" for what in [*(self.bought() - whole.bought)][:3]]
        return wrong + (self._miscounted(found, whole.facts) if self.server else [])

    def _miscounted(self, found: Facts, whole: Facts) -> list[str]:
        import numpy as np

        wrong = []
        if found.adam_steps != sum(record["n_datums"] > 0 for record in found.metrics):
            wrong.append(f"{found.adam_steps} optimizer steps are not those that had datums")
        if not all(np.allclose(found.tensors[name], each, atol=WEIGHTS_ATOL) for name, each in whole.tensors.items()):
            wrong.append("weights differ")
        return wrong


@dataclass(frozen=True)
class Whole:
    """The undisturbed run: its facts, how often it bought each completion and verdict, its log's size, and seconds from a start to its first line."""

    facts: Facts
    bought: Counter[str]
    log_size: int
    start_s: float


Make = Callable[[str], Scene]
"""A fresh scene in a folder of this name."""


def undisturbed(make: Make) -> Whole:
    """Run it twice (on a server once). Both must be alike, and must train."""
    found: list[Whole] = []
    for name in ("whole", "again"):
        with make(name) as scene:
            began = time.monotonic()
            child = scene.start()
            while not scene.log_size() and time.monotonic() < began + PATIENCE_S:
                time.sleep(0.002)
            start_s = time.monotonic() - began
            if ended(child, began + PATIENCE_S) != 0:
                raise SystemExit(f"the undisturbed run failed: {scene.said()}")
            found.append(Whole(scene.facts(), scene.bought(), scene.log_size(), start_s))
        if scene.server:
            break
    if found[0].facts != found[-1].facts:
        raise SystemExit("two undisturbed runs differ: this machine's engine does not repeat itself")
    if sum(record.get("n_datums", 0) > 0 for record in found[0].facts.metrics) < int(RUN["max_steps"]) // 2:
        raise SystemExit("the undisturbed run hardly trains: it would show nothing")
    return found[0]


def case(seed: int, make: Make, whole: Whole) -> Outcome:
    """Strike a run, or its server, once to three times, and resume it until it is through."""
    chooser = random.Random(seed)
    for _ in range(ATTEMPTS):
        outcome = Outcome(seed)
        shares = sorted(
            chooser.random() * (chooser.random() > 0.125) for _ in range(chooser.choices((1, 2, 3), (6, 3, 1))[0])
        )
        with make(str(seed)) as scene:
            strike(
                scene,
                [(share, chooser.random() * (0.04 if share else whole.start_s)) for share in shares],
                whole,
                outcome,
            )
            if not outcome.wrong:
                outcome.wrong = scene.differences(whole)
        if outcome.kills or outcome.wrong:  # else it was faster than the blow: another run, another instant
            break
    return outcome


def strike(scene: Scene, blows: list[tuple[float, float]], whole: Whole, outcome: Outcome) -> None:
    """Bring a run to its end through blows, each at a share of the log's final size and some seconds after."""
    for _ in range(ATTEMPTS + len(blows)):
        child, code, until = scene.start(), None, time.monotonic() + PATIENCE_S
        while code is None and time.monotonic() < until:
            if not blows or scene.log_size() < blows[0][0] * whole.log_size:
                code = ended(child, time.monotonic() + 0.002)
                continue
            share, pause = blows.pop(0)
            code = ended(child, time.monotonic() + pause)
            if code is None:
                outcome.kills.append(f"log at {share:.2f} of its size + {1000 * pause:.0f} ms")
                if scene.server:
                    kill(scene.server.child)
                    scene.server.start()
                else:
                    kill(child)
                    code = -signal.SIGKILL
        if code == 0:
            return
        if code is None or (code != -signal.SIGKILL and not scene.server):
            if code is None:
                kill(child)
            outcome.wrong.append(f"a process ended with {code}: {scene.said()}")
            return
        outcome.resumes += 1
    outcome.wrong.append(f"the run did not come to its end: {scene.said()}")


def signalled(scene: Scene, whole: Whole, numbers: Sequence[signal.Signals]) -> list[str]:
    """A run that gets these signals while it trains, then goes on: its faults."""
    child, code, until = scene.start(), None, time.monotonic() + PATIENCE_S
    log = scene.log_path / "logs.log"
    while (
        code is None
        and time.monotonic() < until
        and not (log.exists() and log.read_bytes().count(b"answered optim_step") >= 3)
    ):
        code = ended(child, time.monotonic() + 0.002)
    os.kill(child, numbers[0])
    for number in numbers[1:]:
        while b"once more to stop at once" not in scene.output.read_bytes() and time.monotonic() < until:
            time.sleep(0.001)
        os.kill(child, number)
    code = ended(child, until) if code is None else code
    expected = 128 + numbers[0] if len(numbers) == 1 else -numbers[-1]
    wrong = [f"ended with {code}, not with {expected}: {scene.said()}"] if code != expected else []
    if len(numbers) == 1 and not re.search(rf"to resume: \S+ \S+ log_path={scene.log_path}", scene.said()):
        wrong.append(f"did not say how to go on: {scene.said()}")
    if scene.finish() != 0:
        return [*wrong, f"could not go on: {scene.said()}"]
    return wrong + [each for each in scene.differences(whole) if not each.startswith("checkpoints")]


def damaged(scene: Scene, whole: Whole) -> list[str]:
    """A finished run whose last state is damaged, taken up again: it goes back to the checkpoint before, buying no completion."""
    codes = [scene.finish()]
    last = max((scene.log_path / "checkpoints").glob("*.state.safetensors"))
    data = bytearray(last.read_bytes())
    data[-100] ^= 1
    last.write_bytes(data)
    codes.append(scene.finish())
    wrong = [f"ended with {codes}: {scene.said()}"] if codes != [0, 0] else scene.differences(whole)
    return wrong if last.name[:6] in scene.output.read_text() else [*wrong, f"did not say so: {scene.said()}"]


MORE: dict[str, Callable[[Scene, Whole], list[str]]] = {
    "interrupted": partial(signalled, numbers=(signal.SIGINT,)),
    "terminated": partial(signalled, numbers=(signal.SIGTERM,)),
    "twice": partial(signalled, numbers=(signal.SIGTERM, signal.SIGINT)),
    "damaged": damaged,
}


def run_share(
    folder: Path, lags: Sequence[int], cases: range, until: float, of: Callable[[int], tuple[Make, Whole]]
) -> int:
    """Run the cases that `outcomes.jsonl` does not have yet, as far as the time allows."""
    for seed, lag in itertools.product(cases, lags):
        if (lag, seed) in {(each["lag"], each["seed"]) for each in read_outcomes(folder)} or time.monotonic() > until:
            continue
        make, whole = of(lag)
        outcome = case(seed, make, whole)
        with (folder / "outcomes.jsonl").open("a") as file:
            file.write(json.dumps({"lag": lag, **vars(outcome)}) + "\n")
        if not outcome.wrong:
            shutil.rmtree(folder / f"lag-{lag}" / str(seed))
    return 0


def read_outcomes(folder: Path) -> list[dict[str, Any]]:
    path = folder / "outcomes.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def summary(folder: Path, lag: int) -> dict[str, Any]:
    outcomes = [each for each in read_outcomes(folder) if each["lag"] == lag]
    return {
        "lag": lag,
        "cases": len(outcomes),
        "identical": sum(not each["wrong"] for each in outcomes),
        "kills": sum(len(each["kills"]) for each in outcomes),
        "never_killed": sum(not each["kills"] for each in outcomes),
        "stopped_and_resumed": sum(each["resumes"] for each in outcomes),
        "wrong": [each for each in outcomes if each["wrong"]],
    }


def main(words: list[str]) -> int:
    given = {"lags": "0,1", "seed": "0", "cases": "3", "workers": "1", "seconds": "inf", "more": "", "kill": "run"}
    given |= dict(word.split("=", 1) for word in words)
    folder, lags, first = (
        Path(given.pop("folder", "") or tempfile.mkdtemp(prefix="kill-suite-")).absolute(),
        list(map(int, given.pop("lags").split(","))),
        int(given.pop("seed")),
    )
    served, workers, until = (
        given.pop("kill") == "server",
        int(given.pop("workers")),
        time.monotonic() + float(given.pop("seconds")),
    )
    cases, more = range(first, first + int(given.pop("cases"))), [*filter(None, given.pop("more").split(","))]
    folder.mkdir(parents=True, exist_ok=True)
    preload(SERVING if served else ())

    @cache
    def of(lag: int) -> tuple[Make, Whole]:
        def make(name: str) -> Scene:
            return Scene(folder / f"lag-{lag}" / name, lag, given, served)

        return make, undisturbed(make)

    for lag in lags:
        of(lag)
    shares = [cases[worker::workers] for worker in range(workers)]
    children = [fork(folder / "harness.output", partial(run_share, folder, lags, share, until, of)) for share in shares]
    if any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children):
        raise SystemExit(f"the harness itself failed: {(folder / 'harness.output').read_text()[-3000:]}")
    for lag in lags:
        found, (make, whole) = summary(folder, lag), of(lag)
        found["more"] = {}
        for name in more:
            with make(name) as scene:
                found["more"][name] = MORE[name](scene, whole)
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TINKER_API_KEY", "tml-dummy")
    sys.exit(main(sys.argv[1:]))
