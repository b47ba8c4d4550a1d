"""The index of slow tests, from the XML files of pytest: the newest run of each test, and by name what was not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.write_slow_index import page, read

PATH = "tests/test_slow_index.py"
STARTS = """
import os, pytest

@pytest.mark.parametrize("number", [1, 2])
def test_a(number):
    assert str(number) in os.environ["RIGHT"]

def test_b():
    pytest.skip("lacks a machine")

def test_c():
    if "stop" in os.environ["RIGHT"]:
        raise KeyboardInterrupt

def test_d():
    pass
"""
NAMES = {PATH: ["test_a[1]", "test_a[2]", "test_b", "test_c", "test_d"]}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / PATH).write_text(STARTS)
    (tmp_path / "pytest.ini").touch()

    def write(name: str, right: str, *words: str) -> Path:
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={name}", "-p", "no:cacheprovider", PATH, *words]
        subprocess.run(command, cwd=tmp_path, env={**os.environ, "RIGHT": right}, capture_output=True, check=False)
        return tmp_path / name

    return write


def row(text: str) -> list[str]:
    """Passed, failed, skipped, not run."""
    (line,) = (line for line in text.splitlines() if line.startswith(f"| `{PATH}`"))
    return [cell.strip() for cell in line.split("|")[3:7]]


def test_an_interrupted_test_and_those_after_it_are_not_run(run):
    text = page(NAMES, read([run("cut.xml", "1 stop")]))
    assert row(text) == ["1", "1", "1", "2"]
    assert f"- `{PATH}`: `test_c`, `test_d`\n" in text


def test_parts_make_a_whole_and_the_newest_run_of_a_test_counts_in_whatever_order_they_are_given(run):
    parts = [run("cut.xml", "1 stop"), run("rest.xml", "", "-k", "test_c or test_d"), run("mended.xml", "2", "-k", "2")]
    for files in (parts, parts[::-1]):
        text = page(NAMES, read(files))
        assert row(text) == ["4", "0", "1", "0"]
        assert "Not run" not in text


def test_a_file_that_no_run_holds_stands_there(run):
    text = page({**NAMES, "tests/test_order.py": ["test_x"], "tests/test_cli.py": []}, read([run("cut.xml", "12")]))
    assert "| 0 | 0 | 0 | 1 |  |  |" in text
    assert "- `tests/test_order.py`: `test_x`\n" in text
    assert next(line for line in text.splitlines() if "test_cli.py" in line).endswith("| 0 | 0 | 0 | 1 |  |  |")
