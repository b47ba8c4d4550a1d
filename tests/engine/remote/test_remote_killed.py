"""A server that is killed under a run, and a run that is killed under its server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from code_rl.cli.train import train_command
from code_rl.util.errors import BackendError
from tests.engine.remote.remote_support import FaultyProxy, records, sampled, settings
from tests.engine.serve.serve_support import ServeProcess, ServerThread
from tests.paths import ROOT
from tests.training.pipeline_support import reached

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Five steps that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    with ServerThread(folder / "server") as server:
        assert train_command(settings(server.url, folder / "run")) == 0
    return folder / "run"


def wait_for(condition, seconds=120.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def kill_at(
    server: ServeProcess, log_path: Path, event: tuple[str, int], then
) -> tuple[threading.Thread, threading.Event]:
    """Kill the server as soon as the run has decided this, then do the rest; the event says that it was done."""
    killed = threading.Event()

    def watch() -> None:
        wait_for(lambda: reached(log_path, *event))
        server.stop(signal.SIGKILL)
        then()
        killed.set()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread, killed


def ended(given: dict[str, str]) -> str | None:
    """None after a run that came to its end, else what it stopped with."""
    try:
        assert train_command(given) == 0
    except BackendError as error:
        return str(error)
    return None


@pytest.mark.parametrize("event", [("sample", 2), ("train", 1), ("logged", 2)], ids=["sampling", "training", "saving"])
def test_server_killed_and_restarted_mid_step(whole, tmp_path, event):
    server = ServeProcess(tmp_path / "server").start()
    log_path = tmp_path / "run"
    watcher, killed = kill_at(server, log_path, event, server.start)
    try:
        said = ended(settings(server.url, log_path))
        watcher.join()
        if said:
            assert f"log_path={log_path}" in said
            assert ended({"log_path": str(log_path)}) is None
    finally:
        watcher.join()
        server.stop()
    assert killed.is_set()
    assert sampled(log_path) == sampled(whole)
    assert records(log_path) == records(whole)


def test_server_that_stays_away_ends_the_run_and_a_later_one_resumes_it(whole, tmp_path):
    server = ServeProcess(tmp_path / "server").start()
    log_path = tmp_path / "run"
    watcher, killed = kill_at(server, log_path, ("train", 1), lambda: None)
    with pytest.raises(BackendError, match=r"has not answered for .*to resume: .* log_path="):
        train_command(settings(server.url, log_path, patience="4"))
    watcher.join()
    assert killed.is_set()
    server.start()
    try:
        assert train_command({"log_path": str(log_path)}) == 0
    finally:
        server.stop()
    assert sampled(log_path) == sampled(whole)
    assert records(log_path) == records(whole)


def test_run_that_is_killed_resumes_through_its_last_checkpoint_with_the_optimizer(whole, tmp_path):
    server = ServeProcess(tmp_path / "server").start()
    log_path = tmp_path / "run"
    try:
        with FaultyProxy(server.url, {}) as proxy:
            words = [f"{name}={value}" for name, value in settings(proxy.url, log_path).items()]
            run = subprocess.Popen([sys.executable, "train.py", *words], cwd=ROOT, stdout=subprocess.DEVNULL)
            saved = log_path / "checkpoints.jsonl"
            wait_for(lambda: saved.exists() and len(saved.read_text().splitlines()) >= 2)
            os.kill(run.pid, signal.SIGKILL)
            run.wait()
            before = len(records(log_path))
            assert train_command({"log_path": str(log_path)}) == 0
            assert "/api/v1/load_weights" in proxy.seen
    finally:
        server.stop()
    assert before < 5
    assert sampled(log_path) == sampled(whole)
    assert records(log_path) == records(whole)
    assert [json.loads(line)["step"] for line in saved.read_text().splitlines()] == [1, 2, 3, 4, 5]
