"""Imports go down the wings, whatever kind they are: at the top, within a function, for type checkers alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UPWARD = {
    "at the top": "import code_rl.training.config\n",
    "within a function": "def f():\n    from code_rl.training.config import Config\n    return Config\n",
    "for type checkers": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from code_rl.training.config import Config\n",
}


def lint(tree: Path) -> int:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    return subprocess.run(command, cwd=tree, env={"PYTHONPATH": "src"}, capture_output=True, check=False).returncode


@pytest.fixture
def tree(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__", "tiny", "corpus", "assets")
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=ignored)
    return tmp_path


def test_imports_go_down_the_wings(tree):
    assert lint(tree) == 0


@pytest.mark.parametrize("kind", UPWARD)
def test_an_import_upwards_is_refused(tree, kind):
    (tree / "src" / "code_rl" / "grading" / "planted.py").write_text(UPWARD[kind])
    assert lint(tree) == 1


def test_a_new_room_at_the_top_needs_a_place_in_the_order(tree):
    (tree / "src" / "code_rl" / "planted.py").write_text("")
    assert lint(tree) == 1


def test_the_front_imports_its_version_alone_until_it_is_asked():
    script = "import sys, code_rl; print([name for name in sys.modules if name.startswith('code_rl.')])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "['code_rl.util', 'code_rl.util.door', 'code_rl.util.version']"
