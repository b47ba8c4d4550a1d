"""One process at a time: whoever holds a lock keeps others out."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from code_rl.data.preparation import PrepareConfig
from code_rl.data.preparation.workspace import Workspace
from code_rl.engine.serve import StateStore
from code_rl.evaluation.programs import open_verdicts
from code_rl.training import new_folder, prepare, train_run
from code_rl.util.errors import InputError
from code_rl.util.files import LOCK, only_writer, read_lines, write_atomically
from tests.paths import ROOT
from tests.refusals import refused
from tests.training.pipeline_support import small, untimed
from tests.verbs import controls_command, train_command
from tinker_utils.cli import check_log_dir


def workspace(folder: Path) -> AbstractContextManager[Any]:
    return Workspace(PrepareConfig(dataset="builtin", out=str(folder)), None, "key")  # no stage runs


HOLDERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "prepare": workspace,
    "server": lambda folder: contextlib.closing(StateStore(folder)),
    "verdicts": lambda folder: open_verdicts(str(folder / "verdicts.jsonl")),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_a_second_one_is_refused_until_the_first_has_let_go(name, tmp_path):
    with (
        HOLDERS[name](tmp_path),
        pytest.raises(InputError),
        HOLDERS[name](tmp_path),
    ):
        pass
    with HOLDERS[name](tmp_path):
        pass


LEFT_BY_A_START = [
    (), (LOCK,), (LOCK, ".begun.json.x.tmp"), (LOCK, "begun.json"), (LOCK, "begun.json", "tokenizer.json"),
    (LOCK, "begun.json", "metrics.jsonl"),
]  # fmt: skip


@pytest.mark.parametrize("left", LEFT_BY_A_START)
def test_a_directory_that_is_new_or_of_a_start_that_was_killed_has_one_writer(tmp_path, left):
    for name in left:
        (tmp_path / name).touch()
    assert check_log_dir(tmp_path, "raise") == tmp_path
    with only_writer(tmp_path / LOCK, "x"), refused("log_path="):
        train_command(small(tmp_path))


def test_a_run_that_another_process_began_meanwhile_is_not_overwritten(tmp_path):
    config, log_path, resumes = prepare(small(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with refused("log_path="):
        asyncio.run(train_run(config, log_path, resumes))


def test_deleting_a_run_leaves_the_lock_that_is_held(tmp_path):
    with only_writer(tmp_path / LOCK, "x"):
        (tmp_path / "config.json").write_text("{}")
        (tmp_path / "checkpoints").mkdir()
        check_log_dir(tmp_path, "delete")
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]
        with refused("log_path="):
            train_command(small(tmp_path))


def test_a_start_that_fails_leaves_each_directory_as_it_was(tmp_path):
    new, mine, cut = tmp_path / "new", tmp_path / "mine", tmp_path / "cut"
    mine.mkdir()
    cut.mkdir()
    (cut / "begun.json").write_text('{"model_name": "tiny"}')
    for folder in (new, mine, cut):
        with refused("max_tokens_total"):
            train_command(small(folder, max_tokens_total=1))
    assert not new.exists()
    assert [path.name for path in mine.iterdir()] == [LOCK]
    assert {path.name for path in cut.iterdir()} == {LOCK, "begun.json"}
    assert (cut / "begun.json").read_text() == '{"model_name": "tiny"}'


def test_a_run_is_deleted_only_for_one_that_starts(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "000003").touch()
    (tmp_path / "config.json").write_text("{}")
    before = {*tmp_path.rglob("*")}
    again = small(tmp_path, max_steps=1, behavior_if_log_dir_exists="delete")
    with refused("max_tokens_total"):
        train_command({**again, "max_tokens_total": "1"})
    assert {*tmp_path.rglob("*")} == before | {tmp_path / LOCK}
    # As a start leaves it that is killed once it has set the earlier run aside.
    (tmp_path / ".replaced").mkdir()
    for name in ("config.json", "checkpoints"):
        (tmp_path / name).rename(tmp_path / ".replaced" / name)
    (tmp_path / "begun.json").write_text('{"model_name": "tiny"}')
    with refused("max_tokens_total"):
        train_command({**again, "max_tokens_total": "1"})
    assert {*tmp_path.rglob("*")} == before | {tmp_path / LOCK}
    assert train_command(again) == 0
    assert not {tmp_path / ".replaced", tmp_path / "checkpoints" / "000003"} & {*tmp_path.rglob("*")}


def test_default_folders_of_one_second_are_different_ones(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: new_folder("eval-"), range(16)))
    assert len({*made}) == 16
    assert {*made} == {*(tmp_path / "code-rl-logs").iterdir()}


def test_threads_that_write_one_file_get_in_no_other_s_way(tmp_path):
    texts = [str(number) * 10_000 for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda text: write_atomically(tmp_path / "a", text), texts))
    assert (tmp_path / "a").read_text() in texts
    assert len(list(tmp_path.iterdir())) == 1


def test_two_commands_of_controls_in_one_folder_are_refused_by_its_name(tmp_path):
    words = {name: value for name, value in small(tmp_path).items() if name not in ("log_path", "eval_every")}
    (tmp_path / "outcomes").mkdir()
    with only_writer(tmp_path / LOCK, "x"), refused("out="):
        controls_command({**words, "out": str(tmp_path)})


def begun(folder: Path, **changes: object) -> subprocess.Popen[str]:
    words = [f"{name}={value}" for name, value in small(folder, eval_every=-1, max_steps=2, **changes).items()]
    return subprocess.Popen(
        [sys.executable, "train.py", *words], cwd=ROOT, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.long
def test_of_two_processes_on_one_new_directory_one_trains_and_the_other_ends_with_2(tmp_path):
    both = [begun(tmp_path / "run", seed=seed) for seed in range(2)]
    said = [process.communicate(timeout=240)[1] for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], said
    assert any("log_path=" in line for line in said)
    assert [record["step"] for record in untimed(tmp_path / "run")] == [0, 1]


@pytest.mark.long
def test_a_start_that_was_killed_leaves_a_directory_that_the_next_one_takes(tmp_path):
    process = begun(tmp_path / "run")
    while not (tmp_path / "run" / LOCK).exists():
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert train_command(small(tmp_path / "run", max_steps=1)) == 0
    assert [record["step"] for record in untimed(tmp_path / "run")] == [0]


def test_after_a_deletion_that_was_killed_nothing_of_the_deleted_run_is_left(tmp_path):
    train_command(small(tmp_path / "run", max_steps=2, save_every=1))
    (tmp_path / "run" / "config.json").rename(tmp_path / "run" / "begun.json")
    assert train_command(small(tmp_path / "run", max_steps=1, save_every=1, seed=7)) == 0
    assert [record["step"] for record in untimed(tmp_path / "run")] == [0]
    assert [row["name"] for row in read_lines(tmp_path / "run" / "checkpoints.jsonl")] == ["000001"]
