"""A run that is killed in the middle of a second turn, and resumed, is the run that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from code_rl.util.files import read_lines
from tests.paths import ROOT
from tests.training.pipeline_support import rollouts, small, untimed

pytestmark = pytest.mark.slow
REPAIR = {"environment": "repair", "max_turns": "2", "max_tokens": "128", "max_steps": "3", "save_every": "1"}


def start(log_path: Path, **changes: str) -> subprocess.Popen[bytes]:
    words = [f"{name}={value}" for name, value in small(log_path, **REPAIR, **changes).items()]
    return subprocess.Popen([sys.executable, "train.py", *words], cwd=ROOT, stdout=subprocess.DEVNULL)


def second_turns(log_path: Path, step: int) -> int:
    """Answers of a step beyond the first of each group."""
    path = log_path / "inflight" / f"{step:06d}.jsonl"
    drawn = Counter(row["key"].split()[1] for row in read_lines(path) if row["key"].startswith("drawn"))
    return sum(drawn.values()) - len(drawn)


@pytest.mark.parametrize("lag", ["0", pytest.param("1", marks=pytest.mark.slow)])
def test_a_run_killed_in_a_second_turn_goes_on_to_the_same_end(tmp_path, lag):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert start(whole, max_steps_off_policy=lag).wait() == 0
    process = start(cut, max_steps_off_policy=lag)
    while not second_turns(cut, 1):  # the second step has begun second turns
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert start(cut, max_steps_off_policy=lag).wait() == 0
    assert untimed(cut) == untimed(whole)
    assert rollouts(cut) == rollouts(whole)
    assert any("turns" in row for group in rollouts(whole) for row in group["completions"])
