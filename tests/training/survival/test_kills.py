"""Runs and servers that are killed at random instants end as the undisturbed run does. `CODE_RL_KILLS` says how many cases there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
SUITE = Path(__file__).parent / "kill_suite.py"
MORE = ("interrupted", "terminated", "twice", "damaged")
PARTS = (
    "environment=repair max_turns=2 max_tokens=128",
    "curriculum=solve_rate dynamic_sampling=1 canary=0.5",
    "loss=gspo num_substeps=2",
    "loss=mis advantage=maxrl max_tokens_schedule=0:32,2:64",
)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]


def suite(folder: Path, *words: str, **given: object) -> list[dict[str, Any]]:
    given_words = [f"{name}={value}" for name, value in {"folder": folder, **given}.items()]
    done = subprocess.run([sys.executable, SUITE, *given_words, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for each in found:
        assert each["wrong"] == []
        assert each["never_killed"] == 0
        assert not any(each["more"].values()), each["more"]
    return found


def test_many_runs_killed_at_random_instants_end_bit_for_bit_as_the_undisturbed_one(tmp_path):
    suite(tmp_path / "kills", cases=os.environ.get("CODE_RL_KILLS", "200"), more=",".join(MORE))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("lag", [0, 1])
def test_whatever_a_run_is_made_of(tmp_path, part, lag):
    suite(tmp_path / "kills", *part.split(), cases=2, lags=lag)


def test_servers_killed_under_a_run(tmp_path):
    pytest.importorskip("prometheus_client")
    suite(tmp_path / "servers", cases=os.environ.get("CODE_RL_SERVER_KILLS", "10"), kill="server")
