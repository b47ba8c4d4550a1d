"""Every fault at its stages: the right result, or a resumable stop with one clear line."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from code_rl.data.builtin import BuiltinTrainSet
from code_rl.grading.native import write_problems
from tests.training.faults.forge import Forge, Outcome
from tests.training.faults.strikes import FAULTS, FILLER, STAGES
from tests.training.survival.kill_suite import Facts, facts_of

ENDS = {
    "stops (1)": "disk full: logging, saving; run directory moved: logging; no descriptors left: scoring; out of memory: training; "
    "request cancelled: sampling; back end gone: sampling, training; back end hung: training; sandbox gone: scoring",
    "stops (signal 9)": "SIGKILL: sampling, training, saving",
    "stops (143)": "SIGTERM: scoring",
    "stops (130)": "Ctrl-C: evaluating",
    "goes on": "memory limit: sampling; clock forward: training; clock back: saving; sandbox away: scoring; sandbox gone: logging; "
    "sandbox killed: scoring; data file gone: evaluating",
}
CELLS = [
    (fault, stage, end)
    for end, faults in ENDS.items()
    for fault, _, stages in (each.partition(": ") for each in faults.split("; "))
    for stage in stages.split(", ")
]
LAGGED = [("disk full", "saving"), ("SIGKILL", "training"), ("sandbox gone", "scoring"), ("back end gone", "training")]
RUN = {
    "backend": "embedded", "executor": "embedded", "sandbox_concurrency": "2", "threads": "1", "batch_size": "8", "group_size": "2",
    "max_tokens": "64", "max_steps": "2", "save_every": "1", "eval_every": "1", "eval_limit": "1", "eval_samples": "1",
    "outage_timeout": "1.5",
}  # fmt: skip
PATIENT = {"sandbox away": {"outage_timeout": "60"}}


class Workshop:
    """A forge, a folder on a small disk of its own where one can be mounted, and the undisturbed run."""

    def __init__(self, forge: Forge, folder: Path, lag: int, *, small_disk: bool) -> None:
        self.forge, self.folder, self.lag, self.small_disk = forge, folder, lag, small_disk
        outcome = forge.run(self.settings("whole"))
        assert outcome.code == 0, outcome
        self.whole = facts_of(folder / "whole" / "run")

    def settings(self, name: str, **more: str) -> dict[str, str]:
        paths = {"log_path": f"{self.folder}/{name}/run", "dataset": self.problems(name), "test_dataset": self.problems("held-out")}  # fmt: skip
        return {**RUN, "max_steps_off_policy": str(self.lag), **paths, **more}

    def problems(self, name: str) -> str:
        path = self.folder / name / "problems.jsonl"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            made = BuiltinTrainSet()
            write_problems(path, [made[index] for index in range(12)])
        return str(path)

    def strike(self, fault: str, stage: str) -> str:
        """Strike one run, mend the damage, resume it if it stopped, and compare; how the struck run ended."""
        name = f"{fault}-{stage}".replace(" ", "-")
        words, folder = self.settings(name, **PATIENT.get(fault, {})), self.folder / name
        log_path, marker = Path(words["log_path"]), folder / "struck"
        more: dict[str, Any] = {
            "folder": str(folder),
            "log_path": str(log_path),
            "dataset": words["dataset"],
            "marker": str(marker),
        }
        outcome = self.forge.run(words, fault, stage, **more)
        assert marker.exists(), "the fault did not strike"
        mend(folder)
        if outcome.code:
            assert fault == "SIGKILL" or (outcome.clean and f"log_path={log_path}" in outcome.err + outcome.out), (
                outcome
            )
            resumed = self.forge.run({"log_path": str(log_path)})
            assert resumed.code == 0, resumed
        assert plain(facts_of(log_path)) == plain(self.whole)
        shutil.rmtree(folder)
        return ended(outcome)


def plain(facts: Facts) -> tuple[Any, ...]:
    metrics = [{k: v for k, v in record.items() if not k.startswith("sandbox/")} for record in facts.metrics]
    return metrics, facts.files, facts.checkpoints, facts.weights


def ended(outcome: Outcome) -> str:
    if outcome.code == 0:
        return "goes on"
    return f"stops ({outcome.code})" if outcome.code > 0 else f"stops (signal {-outcome.code})"


def mend(folder: Path) -> None:
    (folder / FILLER).unlink(missing_ok=True)
    for moved in folder.glob("*.moved"):
        target = moved.with_name(moved.name.removesuffix(".moved"))
        if target.is_dir():
            (target / "logs.log").unlink(missing_ok=True)
            target.rename(target.with_name("stray"))
        moved.rename(target)


@contextlib.contextmanager
def workshop(lag: int) -> Iterator[Workshop]:
    with tempfile.TemporaryDirectory(prefix="code-rl-faults-") as folder, Forge() as forge:
        command = ["mount", "-t", "tmpfs", "-o", f"size={24 << 20}", "tmpfs", folder]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        try:
            yield Workshop(forge, Path(folder), lag, small_disk=mounted)
        finally:
            if mounted:
                subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    with workshop(0) as made:
        yield made


@pytest.fixture(scope="module")
def lagged_shop() -> Iterator[Workshop]:
    with workshop(1) as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("fault", "stage", "end"), CELLS)
def test_a_fault_ends_as_the_table_says(shop, fault, stage, end):
    if fault == "disk full" and not shop.small_disk:
        pytest.skip("a small disk cannot be mounted here")
    assert shop.strike(fault, stage) == end


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("fault", "stage"), LAGGED)
def test_the_gravest_faults_stop_the_overlapped_schedule_resumably(lagged_shop, fault, stage):
    if fault == "disk full" and not lagged_shop.small_disk:
        pytest.skip("a small disk cannot be mounted here")
    assert lagged_shop.strike(fault, stage).startswith("stops")


def test_the_table_has_every_fault_and_every_stage():
    assert {fault for fault, *_ in CELLS} == set(FAULTS)
    assert {stage for _, stage, _ in CELLS} == set(STAGES)
