"""The same cases through the server with an older SDK, in its own environment, and one RL step that is the same everywhere.

CODE_RL_SDK024_PYTHON names the python of an environment with `pip install tinker==0.24.1 pytest pytest-timeout numpy`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("prometheus_client")
from tests.serve.serve_support import ServeProcess

CASES = Path(__file__).parent / "cases"
VARIABLE = "CODE_RL_SDK024_PYTHON"


def run_cases(python: str, out: Path | None = None, url: str | None = None, *words: str) -> str:
    """The cases in an interpreter of their own; returns pytest's output, which must tell of no failure."""
    environment = {**os.environ, "TINKER_TELEMETRY": "0", "TINKER_API_KEY": "tml-dummy"}
    if url is not None:
        environment["CODE_RL_CONFORMANCE_URL"] = url
    if out is not None:
        environment["CODE_RL_CONFORMANCE_OUT"] = str(out)
    command = [python, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(CASES), "--confcutdir", str(CASES)]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "--timeout=200", *words, str(CASES)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=CASES,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServeProcess(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def old_python():
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"{VARIABLE} names no environment with tinker 0.24.1")
    version = "import tinker; from importlib.metadata import version; print(version('tinker'))"
    assert subprocess.run([python, "-c", version], capture_output=True, text=True).stdout.strip() == "0.24.1"
    return python


@pytest.mark.slow
def test_all_cases_hold_with_sdk_0_24(server, old_python):
    output = run_cases(old_python, None, server.url)
    passed = re.search(r"(\d+) passed", output)
    assert passed is not None
    assert int(passed[1]) >= 40


@pytest.mark.slow
def test_one_seeded_step_is_the_same_in_process_over_http_and_with_the_older_sdk(server, tmp_path):
    """To the last bit: tokens, log-probabilities, loss, gradient norm, and log-probabilities after the step."""
    out = tmp_path / "steps"
    environment = os.environ.get(VARIABLE)
    run_cases(sys.executable, out, None, "-k", "test_one_seeded_rl_step")
    run_cases(sys.executable, out, server.url, "-k", "test_one_seeded_rl_step")
    if environment:
        run_cases(environment, out, server.url, "-k", "test_one_seeded_rl_step")
    steps = [ast.literal_eval(line) for line in out.read_text().splitlines()]
    assert len(steps) == (4 if environment else 3)
    assert all(step == steps[0] for step in steps)
