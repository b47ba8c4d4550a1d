"""The notebooks of examples/: committed without outputs, and each runs from its first cell to its last."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

nbformat = pytest.importorskip("nbformat")
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
# Lines added to the cell tagged `parameters`: the same cells with less to do.
SMALLER = {
    "train": "settings = {'max_steps': 2, 'batch_size': 16, 'eval_every': 1, 'eval_limit': 4, 'eval_samples': 2}",
    "own_parts": "settings = {'max_steps': 2, 'eval_samples': 2, 'max_tokens': 64}",
}


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def tagged(notebook: Any, tag: str) -> Any:
    (cell,) = [cell for cell in notebook.cells if tag in cell.metadata.get("tags", ())]
    return cell


def executed(path: Path, folder: Path) -> Any:
    """The notebook with its outputs. Nothing is installed: the test has the packages already."""
    client = pytest.importorskip("nbclient")
    for package in ("ipykernel", "matplotlib", "pandas", "torch"):
        pytest.importorskip(package)
    notebook = read(path)
    notebook.cells.remove(tagged(notebook, "install"))
    if path.stem in SMALLER:
        tagged(notebook, "parameters").source += f"\n{SMALLER[path.stem]}"
    for cell in notebook.cells:  # an own grader waits so long for each program that hangs
        cell.source = cell.source.replace("timeout=3)", "timeout=0.5)")
    client.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def printed(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.get("text", "") for output in outputs)


def pictures(notebook: Any) -> int:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory. Notebooks read no settings of the user, and keep theirs here."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("MPLBACKEND", raising=False)
    return tmp_path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_valid_has_one_line_to_install_and_no_outputs(path):
    notebook = read(path)
    nbformat.validate(notebook)
    (install,) = tagged(notebook, "install").source.splitlines()
    assert install.startswith("%pip install ")
    for cell in notebook.cells:
        assert cell.cell_type == "markdown" or (cell.outputs == [] and cell.execution_count is None)


@pytest.mark.long
def test_a_model_is_trained_and_its_metrics_are_plotted(folder):
    notebook = executed(ROOT / "examples" / "train.ipynb", folder)
    assert [row["step"] for row in map(json.loads, (folder / "run" / "metrics.jsonl").open())] == [-1, 0, 1]
    assert pictures(notebook) == 3
    assert (folder / "run" / "report.html").is_file()


@pytest.mark.slow
def test_own_problems_reward_and_loss_are_used(folder):
    notebook = executed(ROOT / "examples" / "own_parts.ipynb", folder)
    configs = {name: json.loads((folder / name / "config.json").read_text()) for name in ("built-in", "own", "tools")}
    assert configs["own"]["reward"] != configs["built-in"]["reward"]
    assert configs["own"]["loss"] != configs["built-in"]["loss"]
    groups = [json.loads(line) for line in (folder / "own" / "rollouts.jsonl").open()]
    assert all(group["problem_id"].startswith("own/") for group in groups)
    assert {c["reward"] > 1 for group in groups for c in group["completions"] if c["verdict"] == "passed"} == {True}
    assert "passed\nwrong_answer\n" in printed(notebook)
    answers = [json.loads(line)["completions"] for line in (folder / "tools" / "rollouts.jsonl").open()]
    outputs = [row["turns"][0]["messages"][0]["content"] for rows in answers for row in rows if "turns" in row]
    assert any("exit code 0" in output for output in outputs)
    assert (folder / "compared.html").is_file()


@pytest.mark.slow
def test_programs_are_judged_an_audit_finds_the_holes_of_a_grader_and_a_card_those_of_a_set(folder):
    notebook = executed(ROOT / "examples" / "judge_and_audit.ipynb", folder)
    assert "0.0 wrong_answer\n1e-05 passed\n" in printed(notebook)
    assert "print(2) None\n" in printed(notebook)
    assert json.loads((folder / "card" / "audit.json").read_text())["quality"]["fpr"]["passed"] > 0
    card = json.loads((folder / "prepared" / "card.json").read_text())
    assert [weak["id"] for weak in card["weak_tests"]] == ["weak"]
    assert [wrong["id"] for wrong in card["wrong_tests"]] == ["wrong"]
