"""`sampler=vllm`: a server that the run starts, keeps up and ends. A process that speaks vLLM's protocol stands for vLLM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from code_rl.cli.main import main
from code_rl.training import read_metrics
from tests.engine.remote.test_vllm import given
from tests.paths import ROOT
from tests.refusals import refused
from tests.verbs import train_command
from tests.waiting import until

GUARD = str(ROOT / "src" / "code_rl" / "engine" / "guard.py")
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


def options_of(run: Path) -> dict[str, Any]:
    """The options that the run's server was started with, as its log has them."""
    (found, *_) = (line for line in (run / "vllm.log").read_text().splitlines() if line.startswith("{"))
    return json.loads(found)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run's folder; its servers have its name in their environment, and the tests' modules on their path."""
    folder = tmp_path / "run"
    monkeypatch.setenv("SERVER_OF", str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}{os.pathsep}{ROOT}")
    return folder


@pytest.mark.long
def test_a_run_starts_its_server_with_its_lengths_and_options_samples_from_it_and_ends_it(run, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody's, and never asked for one's own server
    assert train_command(settings_of(run, temperature="0.7", vllm_command=f"{COMMAND} --max-loras=3")) == 0
    lines = [line for line in read_metrics(run) if line["step"] >= 0]
    assert [line["step"] for line in lines] == [0, 1]
    assert all(line["sampler/gap_max"] < 1e-4 for line in lines)
    assert "model loaded" in (run / "vllm.log").read_text()
    options = options_of(run)
    assert options["max_loras"] == 3
    assert 80 < options["max_model_len"] < 512  # more than max_tokens, less than the model's context
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


@pytest.mark.parametrize(
    "ending",
    [pytest.param(signal.SIGTERM, marks=pytest.mark.long), pytest.param(signal.SIGKILL, marks=pytest.mark.slow)],
)
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


@pytest.mark.parametrize(
    "ending",
    [pytest.param(signal.SIGKILL, marks=pytest.mark.long), pytest.param(signal.SIGTERM, marks=pytest.mark.slow)],
)
def test_a_server_ends_with_its_guard(run, capsys, ending):
    def end_guard() -> None:
        until(lambda: (run / "metrics.jsonl").exists())
        (guard,) = servers(run, b"guard.py")
        os.kill(guard, ending)

    killing = threading.Thread(target=end_guard)
    killing.start()
    # Nobody waits for a server that nobody starts again.
    words = [f"{name}={value}" for name, value in settings_of(run, max_steps="50", outage_timeout="600").items()]
    assert main(["train", *words]) == 1
    assert str(run / "vllm.log") in capsys.readouterr().err.splitlines()[-1]
    killing.join()
    until(lambda: not servers(run))


@pytest.mark.parametrize("speed", [700, 20000])
def test_a_server_that_keeps_ending_is_started_three_times_an_hour(tmp_path, speed):
    starts = tmp_path / "starts"
    starts.write_text("")
    # A start takes at least a tenth of a second, which the guard's fast clock counts as a minute or as half an hour.
    fast = f"import runpy, sys, time; real = time.monotonic; time.monotonic = lambda: real() * {speed}"
    guard = [sys.executable, "-c", f"{fast}; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"]
    command = [*guard, GUARD, "sh", "-c", f"echo started >> {starts}; sleep 0.1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as started:
        until(lambda: started.poll() is not None or starts.read_text().count("started") == 6)
    assert started.returncode == (speed == 700)
    assert starts.read_text().count("started") == (3 if speed == 700 else 6)


def test_processes_that_leave_the_servers_session_end_with_it(tmp_path):
    pids = tmp_path / "pids"
    command = [sys.executable, GUARD, "sh", "-c", f"setsid sh -c 'echo $$ >> {pids}; exec sleep 1000' & sleep 0.3"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as started:
        assert started.wait(60) == 1
    strays = pids.read_text().split()
    assert len(strays) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in strays)


@pytest.mark.long
def test_a_server_that_does_not_come_up_is_refused_with_its_errors_and_keeps_its_log(run):
    raising = "try: raise ValueError(1234567)\nfinally: print(89)"
    command = f"{sys.executable} -c '{raising}'"
    for _ in range(2):  # the log is in nobody's way
        with refused("sampler=vllm", "ValueError: 1234567", str(run / "vllm.log")):
            train_command(settings_of(run, vllm_command=command))
        assert "1234567" in (run / "vllm.log").read_text()
        assert not (run / "begun.json").exists()
    with refused("sampler=vllm", "status 7", str(run / "vllm.log")) as silent:
        train_command(settings_of(run, vllm_command="sh -c 'exit 7'"))
    assert "1234567" not in str(silent.value)
    assert servers(run) == []


@pytest.mark.parametrize(
    ("command", "named"),
    [("'abc", "abc"), ("", "vllm_command="), ("vllm --port=1", "--port"), ("vllm --api_key x", "--api-key")],
)
def test_a_command_that_cannot_be_used_is_refused_by_name(run, command, named):
    with refused("vllm_command=", named):
        train_command(settings_of(run, vllm_command=command))
    assert not run.exists()


def test_settings_of_a_server_without_one_and_a_missing_vllm_are_refused(run):
    with refused("vllm_command="):
        train_command(settings_of(run, sampler="http://127.0.0.1:9"))
    without = {name: value for name, value in settings_of(run).items() if name != "vllm_command"}
    with refused("vllm_command="):
        train_command(without)
