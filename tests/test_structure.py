"""Imports go down the wings and through their doors, whatever kind they are: at the top, within a function, for type checkers alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from code_rl.util.door import names
from tests.paths import ROOT, copy_source

WINGS = ("grading", "data", "engine", "policy", "evaluation", "training")
DOORS = sorted(
    ".".join(path.relative_to(ROOT / "src").parent.parts)
    for path in (ROOT / "src").rglob("__init__.py")
    if "__getattr__ = door(" in path.read_text()
)
PLANTED = {
    "at_the_top": "import {0}\n",
    "within_a_function": "def f():\n    import {0}\n    return {0}\n",
    "for_type_checkers": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import {0}\n",
}
UPWARD, PAST_A_DOOR = "code_rl.training.config", "code_rl.grading.judging"


def lint(tree: Path) -> tuple[int, str]:
    """The exit code of the linter, and its output."""
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"]
    done = subprocess.run(command, cwd=tree, env={"PYTHONPATH": "src"}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.fixture
def tree(tmp_path):
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    copy_source(tmp_path)
    return tmp_path


def test_imports_go_down_the_wings(tree):
    assert lint(tree)[0] == 0


@pytest.mark.long
@pytest.mark.parametrize(("wing", "module"), [("grading", UPWARD), ("policy", PAST_A_DOOR)])
def test_an_import_upwards_or_past_a_door_is_refused_wherever_it_stands(tree, wing, module):
    for kind, text in PLANTED.items():
        (tree / "src" / "code_rl" / wing / f"{kind}.py").write_text(text.format(module))
    code, said = lint(tree)
    assert code == 1
    assert [kind for kind in PLANTED if f"code_rl.{wing}.{kind} -> {module}" not in said] == []


def test_each_wing_has_a_door_of_at_most_a_dozen_names_that_can_be_had():
    assert {f"code_rl.{wing}" for wing in WINGS} < {*DOORS}
    for package in DOORS[1:]:
        door, listed = import_module(package), names(package)
        assert len(listed) <= 12
        for name, where in listed.items():
            module, _, known = where.partition(":")
            assert getattr(door, name) is getattr(import_module(module), known)


def test_no_file_has_the_name_of_what_the_door_beside_it_gives():
    for package in DOORS:
        folder = Path(str(import_module(package).__file__)).parent
        assert not {path.stem for path in folder.iterdir()} & names(package).keys()


def test_a_new_room_at_the_top_needs_a_place_in_the_order(tree):
    (tree / "src" / "code_rl" / "planted.py").write_text("")
    assert lint(tree)[0] == 1
