"""Torn and altered files of a run: see `torn_suite.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def suite(**given: object) -> dict[str, Any]:
    words = [f"{name}={value}" for name, value in given.items()]
    done = subprocess.run(
        [sys.executable, str(HERE / "torn_suite.py"), *words], capture_output=True, text=True, check=False
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["wrong"] == [], "\n".join(found["wrong"])
    assert done.returncode == 0, done.stderr
    return found


@pytest.mark.slow
def test_some_torn_files_are_refused_by_name_or_change_nothing():
    assert suite(cases=30, ends=0)["cases"] == 30


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("lag", [0, 1])
def test_every_file_cut_at_every_boundary_and_flipped_everywhere(lag):
    found = suite(lag=lag, ends=12)
    assert found["cases"] == found["of"] >= 2_000
    assert found["outcomes"]["run to the end, alike"] == 12
