"""`sampler=vllm`: a server that the run starts, keeps up and ends. A process that speaks vLLM's protocol stands for vLLM."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from code_rl.cli.train import train_command
from code_rl.training import read_metrics
from tests.engine.remote.test_vllm import given
from tests.paths import ROOT
from tests.refusals import refused
from tests.waiting import until

COMMAND = f"{sys.executable} -m tests.engine.remote.fake_vllm"


def settings_of(run: Path, **changes: str) -> dict[str, str]:
    return {**given("vllm", run, vllm_command=COMMAND, outage_timeout="60"), **changes}


def servers(run: Path, word: bytes = b"tests.engine.remote.fake_vllm") -> list[int]:
    """The processes of this run's server and its guard: those with the run in their environment and `word` in their command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            mine = str(run).encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        if mine and word in command:
            found.append(int(folder.name))
    return found


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run's folder; its servers have its name in their environment, and the tests' modules on their path."""
    folder = tmp_path / "run"
    monkeypatch.setenv("SERVER_OF", str(folder))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return folder


@pytest.mark.long
def test_a_run_starts_its_server_samples_from_it_and_ends_it(run):
    assert train_command(settings_of(run, temperature="0.7")) == 0
    lines = [line for line in read_metrics(run) if line["step"] >= 0]
    assert [line["step"] for line in lines] == [0, 1]
    assert all(line["sampler/gap_max"] < 1e-4 for line in lines)
    assert "model loaded" in (run / "vllm.log").read_text()
    assert servers(run) == []


@pytest.mark.long
def test_a_server_that_dies_is_started_again_and_the_run_goes_on(run):
    def kill_once() -> None:
        until(lambda: (run / "metrics.jsonl").exists())
        for process in servers(run):
            if Path(f"/proc/{process}/cmdline").read_bytes().count(b"guard.py") == 0:
                os.kill(process, signal.SIGKILL)

    killing = threading.Thread(target=kill_once)
    killing.start()
    assert train_command(settings_of(run, max_steps="6")) == 0
    killing.join()
    assert len([line for line in read_metrics(run) if line["step"] >= 0]) == 6
    assert (run / "vllm.log").read_text().count("model loaded") == 2
    assert servers(run) == []


@pytest.mark.long
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_is_ended_leaves_no_server_and_resumes(run, ending):
    words = [f"{name}={value}" for name, value in settings_of(run, max_steps="50").items()]
    started = subprocess.Popen([sys.executable, str(ROOT / "train.py"), *words], stdout=subprocess.DEVNULL)
    until(lambda: (run / "metrics.jsonl").exists() or started.poll() is not None)
    assert servers(run)
    started.send_signal(ending)
    started.wait(60)
    until(lambda: not servers(run))
    steps = len([line for line in read_metrics(run) if line["step"] >= 0])
    assert train_command(settings_of(run, max_steps=str(steps + 1))) == 0
    assert servers(run) == []


@pytest.mark.long
def test_a_server_that_does_not_come_up_is_refused_with_the_end_of_its_log(run):
    command = f"{sys.executable} -c 'import sys; print(1234567); sys.exit(1)'"
    with refused("sampler=vllm", "1234567"):
        train_command(settings_of(run, vllm_command=command))
    assert servers(run) == []


def test_settings_of_a_server_without_one_and_a_missing_vllm_are_refused(run):
    with refused("vllm_command="):
        train_command(settings_of(run, sampler="http://127.0.0.1:9"))
    without = {name: value for name, value in settings_of(run).items() if name != "vllm_command"}
    with refused("vllm_command="):
        train_command(without)
