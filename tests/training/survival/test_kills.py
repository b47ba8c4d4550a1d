"""Runs that are killed at random instants end as the undisturbed run does. `CODE_RL_KILLS` says how many cases the slow suite has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).parent
MORE = ("interrupted", "terminated", "twice", "damaged")


def suite(script: str, folder: Path, **given: object) -> list[dict[str, Any]]:
    """What a suite reports; `folder` does not exist yet."""
    words = [f"{name}={value}" for name, value in {"folder": folder, **given}.items()]
    environment = {**os.environ, "TINKER_API_KEY": "tml-dummy"}
    done = subprocess.run(
        [sys.executable, HERE / script, *words], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_few_runs_killed_at_random_instants_end_bit_for_bit_as_the_undisturbed_one(tmp_path):
    (overlapped, _) = suite("kill_suite.py", tmp_path / "kills", cases=1, lags=1, seed=1000)
    assert overlapped["wrong"] == []
    assert overlapped["kills"] >= 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_runs_killed_at_random_instants(tmp_path):
    cases = int(os.environ.get("CODE_RL_KILLS", "200"))
    sequential, overlapped, _ = suite("kill_suite.py", tmp_path / "kills", cases=cases, lags="0,1", more=",".join(MORE))
    for found in (sequential, overlapped):
        assert found["wrong"] == []
        assert found["never_killed"] == 0
        assert found["more"] == {name: [] for name in MORE}


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("lag", [0, 1])
def test_servers_killed_under_a_run(tmp_path, lag):
    pytest.importorskip("prometheus_client")
    cases = int(os.environ.get("CODE_RL_SERVER_KILLS", "10"))
    (found,) = suite("server_suite.py", tmp_path / "servers", cases=cases, lag=lag)
    assert found["wrong"] == []
    assert found["kills"] >= cases
