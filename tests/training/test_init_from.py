"""`train init_from=RUN/CHECKPOINT`: a new run from the weights and the optimizer of another."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open

from code_rl.cli.main import main
from code_rl.engine.checkpoints import read_checkpoints
from tests.training.pipeline_support import rollouts, small, untimed
from tests.verbs import train_command


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_path = tmp_path_factory.mktemp("init") / "first"
    assert train_command(small(log_path, eval_every=0, max_steps=2)) == 0
    return log_path


def adam_steps(log_path: Path) -> int:
    with safe_open(read_checkpoints(log_path)[-1]["state_path"], framework="pt") as state:
        return int(json.loads(state.metadata()["settings"])["adam_steps"])


@pytest.mark.long
def test_the_weights_and_the_optimizer_are_those_of_the_checkpoint_and_everything_else_is_new(run, tmp_path):
    new = tmp_path / "new"
    assert train_command(small(new, init_from=run / "000002", max_steps=1, seed=1, eval_every=0)) == 0
    before, after = untimed(run)[-1], untimed(new)[0]
    assert after["step"] == -1
    assert after["eval/mean_correct"] == before["eval/mean_correct"]
    assert adam_steps(new) == adam_steps(run) + 1
    assert [group["problem_id"] for group in rollouts(new)] != [group["problem_id"] for group in rollouts(run)][:4]


@pytest.mark.long
def test_a_run_from_a_checkpoint_is_resumed_like_any(run, tmp_path):
    assert train_command(small(tmp_path / "cut", init_from=run / "000002", eval_every=-1, max_steps=1)) == 0
    assert train_command({"log_path": str(tmp_path / "cut"), "max_steps": "2"}) == 0
    assert train_command(small(tmp_path / "whole", init_from=run / "000002", eval_every=-1, max_steps=2)) == 0
    assert untimed(tmp_path / "cut") == untimed(tmp_path / "whole")


@pytest.mark.parametrize(
    ("words", "setting"),
    [
        ({"init_from": "{run}/000003"}, "init_from="),
        ({"init_from": "{tmp}/nowhere/000002"}, "init_from="),
        ({"init_from": "{run}"}, "init_from="),
        ({"init_from": "{run}/000002", "lora_rank": "4"}, "lora_rank=4"),
    ],
)
def test_a_checkpoint_that_cannot_be_is_refused_before_anything_is_written(run, tmp_path, capsys, words, setting):
    given = small(tmp_path / "new") | {name: value.format(run=run, tmp=tmp_path) for name, value in words.items()}
    assert main(["train", *(f"{name}={value}" for name, value in given.items())]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert setting in line
    assert not (tmp_path / "new").exists()


def test_a_run_that_would_replace_its_own_beginning_is_refused_before_anything_is_deleted(run, tmp_path, capsys):
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    given = small(copy, init_from=copy / "000002", behavior_if_log_dir_exists="delete")
    assert main(["train", *(f"{name}={value}" for name, value in given.items())]) == 2
    assert "init_from=" in capsys.readouterr().err
    assert (copy / "checkpoints.jsonl").is_file()


def test_a_state_that_is_not_the_one_saved_is_refused_by_its_name(run, tmp_path, capsys):
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    (copy / "checkpoints" / "000002.state.safetensors").write_bytes(b"other")
    given = small(tmp_path / "new", init_from=copy / "000002")
    assert main(["train", *(f"{name}={value}" for name, value in given.items())]) == 1
    assert "000002.state.safetensors" in capsys.readouterr().err


@pytest.mark.long
def test_a_run_that_is_asked_about_and_deleted_begins_anew(run, tmp_path, monkeypatch):
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "d")
    assert train_command(small(copy, eval_every=0, max_steps=1, behavior_if_log_dir_exists="ask")) == 0
    assert [record["step"] for record in untimed(copy)] == [-1, 0]
