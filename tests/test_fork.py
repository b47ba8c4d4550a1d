"""`train fork=DIR/CHECKPOINT`: a resume into another directory, exact where nothing differs, and named where something does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from code_rl.cli import main
from code_rl.commands.train import train_command
from code_rl.reports.overview import overview
from code_rl.reports.run import open_run
from code_rl.runs.checkpoints import read_checkpoints, write_checkpoints
from tests.pipeline_support import rollouts, small, untimed


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_path = tmp_path_factory.mktemp("fork") / "first"
    assert train_command(small(log_path, eval_every=0)) == 0
    return log_path


def forked(run: Path, to: Path, name: str = "000002", **changes: Any) -> Path:
    given = {"fork": str(run / name), "log_path": str(to)} | {key: str(value) for key, value in changes.items()}
    assert train_command(given) == 0
    return to


def test_a_fork_with_the_same_settings_goes_on_as_the_run_did_to_the_digit(run: Path, tmp_path: Path) -> None:
    fork = forked(run, tmp_path / "fork")
    assert untimed(fork) == untimed(run)
    assert rollouts(fork) == rollouts(run)
    assert [record["name"] for record in read_checkpoints(fork)] == ["000002", "000004"]


@pytest.mark.slow
def test_a_fork_of_an_overlapped_run_is_exact_too(tmp_path: Path) -> None:
    run = tmp_path / "first"
    assert train_command(small(run, max_steps_off_policy=1)) == 0
    assert untimed(forked(run, tmp_path / "fork")) == untimed(run)


def test_a_fork_with_other_data_keeps_what_was_before_and_names_what_differs(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fork = forked(run, tmp_path / "fork", max_tests=1, learning_rate=0.001)
    assert "learning_rate=0.001 (was " in capsys.readouterr().out
    before, after = ([line for line in untimed(each) if line["step"] < 2] for each in (run, fork))
    assert before == after
    assert len(untimed(fork)) == len(untimed(run))
    described = json.loads((fork / "config.json").read_text())["resolved"]["forked"]
    assert (described["checkpoint"], described["step"]) == ("000002", 2)
    assert set(described["changed"]) == {"max_tests", "learning_rate"}
    assert described["changed"]["max_tests"] == [
        None,
        1,
    ]
    facts = dict(overview(open_run(fork))["facts"])
    assert "max_tests=1 (was None)" in facts["Fork of"]


@pytest.mark.slow
def test_a_fork_is_resumed_like_any_run_and_remembers_where_it_came_from(run: Path, tmp_path: Path) -> None:
    words = {"fork": str(run / "000002"), "log_path": str(tmp_path / "fork"), "max_tests": "1", "eval_every": "-1"}
    assert train_command(words | {"max_steps": "3"}) == 0
    assert train_command(words | {"max_steps": "4"}) == 0
    assert untimed(tmp_path / "fork") == untimed(forked(run, tmp_path / "whole", max_tests=1, eval_every=-1))
    assert "forked" in json.loads((tmp_path / "fork" / "config.json").read_text())["resolved"]


@pytest.mark.slow
def test_a_fork_that_forgets_checkpoints_leaves_those_of_its_run(run: Path, tmp_path: Path) -> None:
    forked(run, tmp_path / "fork", save_every=1, max_steps=6, keep_checkpoints=2)
    assert all(Path(record["state_path"]).is_file() for record in read_checkpoints(run))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"fork": "{run}/000003"}, "has no checkpoint '000003'; there are: 000002, 000004"),
        ({"fork": "{tmp}/nowhere/000002"}, "holds no run"),
        ({"fork": "{run}"}, "is a run; name its checkpoint too"),
        ({"fork": "{run}/000004"}, "has done 4 steps and max_steps=4"),
        ({"fork": "{run}/000002", "lora_rank": "4"}, "lora_rank=4 differs from the run"),
        ({"fork": "{run}/000002", "recipe": "tiny"}, "recipe=tiny has no effect with fork="),
        ({"fork": "{run}/000002", "log_path": "{run}", "behavior_if_log_dir_exists": "delete"}, "holds the run that is forked"),
    ],
)  # fmt: skip
def test_a_fork_that_cannot_be_is_one_clear_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: dict[str, str], said: str
) -> None:
    given = {"log_path": "{tmp}/fork"} | words
    assert main(["train", *(f"{name}={value.format(run=run, tmp=tmp_path)}" for name, value in given.items())]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not (tmp_path / "fork").exists()
    assert (run / "config.json").exists()


def test_a_fork_from_a_checkpoint_whose_weights_are_gone_says_so(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    write_checkpoints(copy, [{**read_checkpoints(copy)[0], "state_path": str(copy / "checkpoints" / "gone")}])
    assert main(["train", f"fork={copy}/000002", f"log_path={tmp_path / 'fork'}"]) == 1
    assert "checkpoint 000002 cannot be used" in capsys.readouterr().err
