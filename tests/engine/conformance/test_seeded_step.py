"""One seeded step of reinforcement learning is the same in process and over HTTP."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from code_rl.engine.losses import POLICY_LOSSES
from tests.paths import ROOT

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
CASES = Path(__file__).parent / "cases"


@pytest.mark.slow
def test_one_seeded_step_is_the_same_in_process_and_over_http(tmp_path):
    """To the last bit, under each loss: tokens, loss, gradient norm, log-probabilities before and after the step."""
    out = tmp_path / "steps"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "test_one_seeded_rl_step", str(CASES)],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "CODE_RL_CONFORMANCE_OUT": str(out),
            "CODE_RL_CONFORMANCE_LOSSES": ",".join(POLICY_LOSSES),
        },
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    steps = [ast.literal_eval(line) for line in out.read_text().splitlines()]
    assert len(steps) == 2 * len(POLICY_LOSSES)
    for loss in POLICY_LOSSES:
        here, there = (step for step in steps if step["of"] == loss)
        assert here == there, loss
