"""Runs that are killed with SIGKILL at random instants, resumed, perhaps killed again, and held against the undisturbed run.

    python tests/training/survival/kill_suite.py cases=40 lags=0,1 seed=0 folder=DIR

The harness loads torch, the project and the held-out problems once, in a parent that has no other thread, and forks a child for each
process of a run, which spares each of them some seconds of imports. A child is an ordinary run otherwise: `train_command` in a
process of its own, with the embedded engine, the embedded sandbox, files and fsync; only the page at its end is left out. A kill is aimed at the run's progress, not at the clock, so that
instants spread over the whole run on a busy machine too: the parent watches logs.log grow to a random share of its final
size, waits up to 40 ms more, and kills. One kill in eight strikes while the run starts.

After the last process a case is right when metrics (times aside), rollouts, the trainer's answers, checkpoints and every tensor of
the last state are those of the undisturbed run, and when no completion that was sampled and no program that was judged was ever
bought again. Prints one JSON object for each lag. `more=interrupted,terminated,twice,damaged`
adds runs that get SIGINT, SIGTERM, or one and then the other, and one whose last state is damaged. `workers=N` runs N cases side by side. With `seconds=S` no case is begun after so long, and a later call with the same folder goes on.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

RUN = {
    "backend": "embedded", "executor": "embedded", "sandbox_concurrency": "2", "threads": "1", "batch_size": "8",
    "group_size": "2", "max_tokens": "56", "max_steps": "4", "save_every": "2", "eval_every": "0", "eval_limit": "1",
    "eval_samples": "1",
}  # fmt: skip
MODULES = (
    "code_rl.cli.train",
    "code_rl.loop",
    "code_rl.data.load",
    "code_rl.engine.local.service",
    "code_rl.grading.sandbox.local.pool",
    "tinker",
)
PATIENCE_S = 600.0
HUNG = 99
ATTEMPTS = 6


@dataclass
class Outcome:
    """One case: how its processes were killed, and what is wrong in the end."""

    seed: int
    kills: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Facts:
    """What two runs must have in common."""

    metrics: list[dict[str, Any]]
    files: dict[str, str]
    checkpoints: list[tuple[str, int, int]]
    weights: str


def settings(folder: Path, lag: int) -> dict[str, str]:
    return {**RUN, "max_steps_off_policy": str(lag), "log_path": str(folder)}


def facts_of(log_path: Path) -> Facts:
    from code_rl.engine.checkpoints import read_checkpoints
    from code_rl.engine.local.state import read_state
    from code_rl.training.runs.recorder import read_metrics

    records = read_checkpoints(log_path)
    digest = hashlib.sha256()
    for name, tensor in sorted(read_state(Path(records[-1]["state_path"])).tensors.items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return Facts(
        [{k: v for k, v in record.items() if not k.startswith("time/")} for record in read_metrics(log_path)],
        {name: hashlib.sha256((log_path / name).read_bytes()).hexdigest() for name in ("rollouts.jsonl",)},
        [(record["name"], record["step"], record["offset"]) for record in records],
        digest.hexdigest(),
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
    load_model("tiny", torch.device("cpu"), torch.float32).tokenizer()  # what that imports; children load their own
    threads = os.listdir("/proc/self/task")
    if len(threads) != 1:
        raise SystemExit(f"the parent has {len(threads)} threads; it could not be forked safely")


def fork(given: dict[str, str], ledger: Path, output: Path, use: Callable[[dict[str, str]], int]) -> int:
    """One process of a run, in a child; returns its id. The child ends with the run's exit code."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        with output.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        keep_ledger(ledger)
        code = use(given)
    except BaseException:  # noqa: BLE001 - shown, and the child ends with a code of its own
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def keep_ledger(path: Path) -> None:
    """Note every completion and every verdict once the run has kept it."""
    from code_rl.policy import completion_log as inflight

    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    keep = inflight.GroupLog._put

    def put(self: Any, kind: str, what: Any, row: Any) -> None:
        keep(self, kind, what, row)
        if self._log is not None:
            os.write(handle, f"{self._log.path.parent.name}/{self._log.path.stem} {self._key(kind, what)}\n".encode())

    inflight.GroupLog._put = put  # type: ignore[method-assign]


def train(given: dict[str, str]) -> int:
    import code_rl.cli.train
    import code_rl.training.trainer
    from code_rl.util.errors import CodeRLError

    code_rl.training.trainer._report = lambda *_: None
    try:
        return code_rl.cli.train.train_command(given)
    except CodeRLError as error:
        print(f"error: {error}")
        return error.exit_code


def ended(child: int, until: float) -> int | None:
    """The exit code of a child that ended by then, else None."""
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.0005)
    return None


def strike(child: int, log_path: Path, chooser: random.Random, whole: int, start_s: float) -> tuple[int | None, str]:
    """Kill a child at a random instant of its run. Returns its exit code if it had ended before, and where it was struck."""
    early = chooser.random() < 0.125
    pause = chooser.random() * (start_s if early else 0.04)
    log = log_path / "logs.log"
    begun = log.stat().st_size if log.exists() else 0
    target = 0 if early else chooser.randint(1, max(whole - begun, whole // 4))
    deadline = time.monotonic() + PATIENCE_S
    while (log.stat().st_size if log.exists() else 0) < begun + target:
        code = ended(child, time.monotonic() + 0.0005)
        if code is not None:
            return code, "ended"
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return HUNG, "ended"
    code = ended(child, time.monotonic() + pause)
    if code is not None:
        return code, "ended"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return (
        None,
        "starting" if early else f"log at {(begun + target) / whole:.2f} of its size + {1000 * pause:.0f} ms",
    )


def case(seed: int, lag: int, folder: Path, whole: Whole) -> Outcome:
    chooser, outcome = random.Random(f"{seed}/{lag}"), Outcome(seed)
    log_path, ledger, output = folder / "run", folder / "ledger", folder / "output"
    folder.mkdir(parents=True)
    wanted = chooser.choices((1, 2, 3), (6, 3, 1))[0]
    for _ in range(ATTEMPTS):
        if len(outcome.kills) == wanted:
            break
        child = fork(given_for(log_path, lag), ledger, output, train)
        code, where = strike(child, log_path, chooser, whole.log_size, whole.start_s)
        if code is None and where != "ended":
            outcome.kills.append(where)
        elif code != 0:
            outcome.wrong.append(f"a process ended with {code}: {output.read_text()[-600:]}")
            return outcome
        elif outcome.kills:
            break
        else:  # it was faster than the blow: another run, another instant
            shutil.rmtree(log_path)
            ledger.unlink()
    code = ended(fork(given_for(log_path, lag), ledger, output, train), time.monotonic() + PATIENCE_S)
    if code != 0:
        outcome.wrong.append(f"the last process ended with {code}: {output.read_text()[-600:]}")
    else:
        outcome.wrong += differences(log_path, ledger, whole.facts)
    return outcome


def given_for(log_path: Path, lag: int) -> dict[str, str]:
    """The command that starts a run, or that resumes it once it has settings."""
    return {"log_path": str(log_path)} if (log_path / "config.json").exists() else settings(log_path, lag)


def differences(log_path: Path, ledger: Path, whole: Facts) -> list[str]:
    found, wrong = facts_of(log_path), []
    for name in ("metrics", "files", "checkpoints", "weights"):
        if getattr(found, name) != getattr(whole, name):
            wrong.append(f"{name} differ")
    bought = [what for what, times in Counter(ledger.read_text().splitlines()).items() if times > 1]
    wrong += [f"bought again: {what}" for what in bought[:3]]
    return wrong


@dataclass(frozen=True)
class Whole:
    """The run that nothing disturbs: its facts, the size of its log, and seconds from a start to its first line."""

    facts: Facts
    log_size: int
    start_s: float


@cache
def undisturbed(folder: Path, lag: int) -> Whole:
    """Run it twice, or read what an earlier call with this folder left of it. Both must be alike, and must train."""
    both, start = [], folder / "start_s"
    for name in ("whole", "again"):
        log_path = folder / name
        if not start.exists():
            began = time.monotonic()
            child = fork(settings(log_path, lag), folder / f"{name}.ledger", folder / f"{name}.output", train)
            while not (log_path / "logs.log").exists() and time.monotonic() < began + PATIENCE_S:
                time.sleep(0.002)
            start_s = time.monotonic() - began
            code = ended(child, time.monotonic() + PATIENCE_S)
            if code != 0:
                said = (folder / f"{name}.output").read_text()[-2000:]
                raise SystemExit(f"the undisturbed run ended with {code}: {said}")
        both.append(facts_of(log_path))
    if both[0] != both[1]:
        raise SystemExit("two undisturbed runs differ: this machine's engine does not repeat itself")
    if sum(record.get("n_datums", 0) > 0 for record in both[0].metrics) < int(RUN["max_steps"]) // 2:
        raise SystemExit("the undisturbed run hardly trains: it would show nothing")
    if not start.exists():
        start.write_text(str(start_s))
    return Whole(both[0], (folder / "whole" / "logs.log").stat().st_size, float(start.read_text()))


def signalled(lag: int, folder: Path, whole: Facts, numbers: Sequence[signal.Signals]) -> list[str]:
    """A run that gets these signals while it trains, then goes on: what is wrong with it."""
    folder.mkdir(parents=True)
    log_path, ledger, output = folder / "run", folder / "ledger", folder / "output"
    child = fork(settings(log_path, lag), ledger, output, train)
    code, until = None, time.monotonic() + PATIENCE_S
    while code is None and time.monotonic() < until and optimizer_steps(log_path) < 3:
        code = ended(child, time.monotonic() + 0.002)
    os.kill(child, numbers[0])
    for number in numbers[1:]:
        while b"once more to stop at once" not in output.read_bytes() and time.monotonic() < until:
            time.sleep(0.001)
        os.kill(child, number)
    code = ended(child, time.monotonic() + PATIENCE_S) if code is None else code
    said = output.read_text()
    expected = 128 + numbers[0] if len(numbers) == 1 else -numbers[-1]
    wrong = [f"ended with {code}, not with {expected}: {said[-600:]}"] if code != expected else []
    if len(numbers) == 1 and not re.search(rf"to resume: \S+ \S+ log_path={log_path}", said):
        wrong.append(f"did not say how to go on: {said[-600:]}")
    if ended(fork({"log_path": str(log_path)}, ledger, output, train), time.monotonic() + PATIENCE_S) != 0:
        return [*wrong, f"could not go on: {output.read_text()[-600:]}"]
    return wrong + [each for each in differences(log_path, ledger, whole) if not each.startswith("checkpoints")]


def damaged(lag: int, folder: Path, whole: Facts) -> list[str]:
    """A finished run whose last state is damaged, taken up again: it goes back to the checkpoint before, buying no completion."""
    folder.mkdir(parents=True)
    log_path, ledger, output = folder / "run", folder / "ledger", folder / "output"
    codes = [ended(fork(settings(log_path, lag), ledger, output, train), time.monotonic() + PATIENCE_S)]
    last = max((log_path / "checkpoints").glob("*.state.safetensors"))
    data = bytearray(last.read_bytes())
    data[-100] ^= 1
    last.write_bytes(data)
    codes.append(ended(fork({"log_path": str(log_path)}, ledger, output, train), time.monotonic() + PATIENCE_S))
    said = output.read_text()
    wrong = [f"ended with {codes}: {said[-600:]}"] if codes != [0, 0] else differences(log_path, ledger, whole)
    return wrong if f"checkpoint {last.name[:6]} cannot be used" in said else [*wrong, f"did not say so: {said[-600:]}"]


MORE: dict[str, Callable[[int, Path, Facts], list[str]]] = {
    "interrupted": partial(signalled, numbers=(signal.SIGINT,)),
    "terminated": partial(signalled, numbers=(signal.SIGTERM,)),
    "twice": partial(signalled, numbers=(signal.SIGTERM, signal.SIGINT)),
    "damaged": damaged,
}


def optimizer_steps(log_path: Path) -> int:
    log = log_path / "logs.log"
    return log.read_bytes().count(b"the back end answered optim_step") if log.exists() else 0


def run_cases(folder: Path, lags: Sequence[int], cases: range, until: float, workers: int) -> None:
    """Run the cases that `outcomes.jsonl` does not have yet, as far as the time allows, in so many processes side by side."""
    children = []
    for worker in range(workers):
        child = os.fork()
        if not child:
            code = 70
            try:
                run_share(folder, lags, cases[worker::workers], until)
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise SystemExit(f"the harness itself failed: {codes}")


def run_share(folder: Path, lags: Sequence[int], cases: range, until: float) -> None:
    outcomes = folder / "outcomes.jsonl"
    for seed in cases:
        for lag in lags:
            done = {(each["lag"], each["seed"]) for each in read_outcomes(folder)}
            if (lag, seed) in done or time.monotonic() > until:
                continue
            place = folder / f"lag-{lag}" / str(seed)
            shutil.rmtree(place, ignore_errors=True)
            outcome = case(seed, lag, place, undisturbed(folder / f"lag-{lag}", lag))
            with outcomes.open("a") as file:
                file.write(json.dumps({"lag": lag, **vars(outcome)}) + "\n")
            if not outcome.wrong:
                shutil.rmtree(place)


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
        "wrong": [each for each in outcomes if each["wrong"]],
    }


def main(words: list[str]) -> int:
    given = dict(word.split("=", 1) for word in words)
    folder, lags = Path(given["folder"]).absolute(), [int(lag) for lag in given.get("lags", "0,1").split(",")]
    first = int(given.get("seed", "0"))
    until = time.monotonic() + float(given.get("seconds", "inf"))
    preload()
    for lag in lags:
        (folder / f"lag-{lag}").mkdir(parents=True, exist_ok=True)
        undisturbed(folder / f"lag-{lag}", lag)
    run_cases(folder, lags, range(first, first + int(given.get("cases", "3"))), until, int(given.get("workers", "1")))
    for lag in lags:
        found = summary(folder, lag)
        found["more"] = {
            name: MORE[name](lag, folder / f"lag-{lag}" / name, undisturbed(folder / f"lag-{lag}", lag).facts)
            for name in filter(None, given.get("more", "").split(","))
        }
        print(json.dumps(found), flush=True)
    print(json.dumps({"cpu_s": round(sum(os.times()[:4]), 1)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
