"""The run directory: torn lines, rows found again, the fate of an earlier run."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.engine.checkpoints import get_last_checkpoint, save_checkpoint
from code_rl.engine.local import EmbeddedService
from code_rl.training.report import open_run
from code_rl.util.errors import ConfigError, DataError
from code_rl.util.files import JsonLines, KeyedLog, read_lines
from tests.refusals import refused
from tests.training.pipeline_support import rollouts, small
from tests.verbs import train_command
from tinker_utils.cli import check_log_dir
from tinker_utils.log import setup_logging


@given(cut=st.integers(0, 200))
def test_lines_cut_at_any_byte_give_a_prefix_of_whole_records(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    records = [{"step": step, "text": "ünï\n" * step} for step in range(4)]
    lines = JsonLines(path)
    for record in records:
        lines.append(record)
    lines.close()
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    kept = list(read_lines(path))
    assert kept == records[: len(kept)]
    assert len(kept) == data[:cut].count(b"\n")


def name_of(row: Mapping[str, Any]) -> str:
    return str(row["name"])


@given(cut=st.integers(0, 200))
def test_a_keyed_log_cut_at_any_byte_has_its_whole_rows_and_takes_more(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("log") / "a.jsonl"
    rows = [{"name": name, "text": "ünï\n"} for name in "abca"]
    log = KeyedLog(path, name_of)
    for row in rows:
        log.put(row)
    log.close()
    data = path.read_bytes()
    path.write_bytes(data[:cut])
    again = KeyedLog(path, name_of)
    kept = rows[: data[:cut].count(b"\n")]
    assert {key: again.get(key) for key in again} == {name_of(row): row for row in kept}
    again.put({"name": "d"})
    assert KeyedLog(path, name_of).get("d") == {"name": "d"}
    assert KeyedLog(path, name_of).get("e") is None


def test_the_last_row_of_a_key_counts_and_a_rewritten_log_has_the_wanted_ones_in_their_order(tmp_path):
    log = KeyedLog(tmp_path / "a.jsonl", name_of)
    for number, name in enumerate("abac"):
        log.put({"name": name, "number": number})
    log.rewrite("cab")
    assert list(read_lines(tmp_path / "a.jsonl")) == [
        {"name": "c", "number": 3}, {"name": "a", "number": 2}, {"name": "b", "number": 1},
    ]  # fmt: skip
    log.put({"name": "a", "number": 4})
    assert log.get("a") == {"name": "a", "number": 4}


@pytest.mark.parametrize("line", ["[]", "{", '{"other": 1}', "\x00"])
def test_a_line_that_is_no_row_is_refused_by_the_file_s_name(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(f'{{"name": "a"}}\n{line}\n')
    with refused("a.jsonl", kind=DataError):
        KeyedLog(tmp_path / "a.jsonl", name_of)


def test_last_checkpoint_is_the_last_with_the_key(tmp_path):
    lines = JsonLines(tmp_path / "checkpoints.jsonl")
    lines.append({"name": "a", "step": 1, "state_path": "x"})
    lines.append({"name": "b", "step": 2, "sampler_path": "y"})
    lines.close()
    assert (get_last_checkpoint(tmp_path) or {})["name"] == "a"
    assert (get_last_checkpoint(tmp_path, "sampler_path") or {})["name"] == "b"
    assert get_last_checkpoint(tmp_path, "other") is None
    assert get_last_checkpoint(tmp_path / "nowhere") is None
    assert not (tmp_path / "nowhere").exists()


def test_a_checkpoint_is_saved_from_a_script_and_from_within_a_running_loop(tmp_path):
    service = EmbeddedService(state_dir=tmp_path / "state")
    trainer: Any = service.create_lora_training_client("tiny", rank=4, seed=0).result()

    async def within() -> dict[str, str]:
        return save_checkpoint(trainer, "b", tmp_path, {"step": 2})

    try:
        paths = [save_checkpoint(trainer, "a", tmp_path, {"step": 1}), asyncio.run(within())]
    finally:
        service.close()
    assert [set(each) for each in paths] == [{"state_path", "sampler_path"}] * 2
    assert (get_last_checkpoint(tmp_path) or {})["step"] == 2


@pytest.mark.parametrize("behavior", ["raise", "ask"])
def test_earlier_run_is_not_touched_without_leave(tmp_path, behavior, monkeypatch):
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    with pytest.raises(ConfigError):
        check_log_dir(tmp_path, behavior)
    assert (tmp_path / "config.json").exists()


def test_delete_removes_a_run_but_nothing_else(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    for directory in (run, other):
        directory.mkdir()
        (directory / "file").touch()
    (run / "config.json").write_text("{}")
    assert list(check_log_dir(run, "delete").iterdir()) == []
    with pytest.raises(ConfigError):
        check_log_dir(other, "delete")
    assert (other / "file").exists()


@pytest.mark.parametrize("behavior", ["resume", "delete"])
def test_a_models_folder_is_no_run_and_stays(tmp_path, behavior):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with refused("log_path="):
        check_log_dir(tmp_path, behavior)
    with refused("log_path=", kind=DataError):
        open_run(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Groups as they were logged, and logs.log, of a run that masks cut completions and takes something off for length."""
    run = tmp_path_factory.mktemp("logged") / "run"
    settings = {"max_steps": 2, "save_every": 0, "overlong": "mask", "length_coef": 0.3, "max_tokens": 48}
    assert train_command(small(run, **settings)) == 0
    return rollouts(run), (run / "logs.log").read_text()


def test_logs_log_has_the_rewards_of_each_group_and_says_why_a_completion_is_masked_or_a_group_skipped(logged):
    groups, text = logged
    for group in groups:
        name = f"step {group['step']} group {group['group']}"
        rewards = ", ".join(f"{each['reward']:g}" for each in group["completions"])
        assert f" INFO {name}, problem {group['problem_id']}: rewards {rewards}\n" in text.replace(
            " (masked: overlong)", ""
        )
        warned = f" WARNING {name} is degenerate and skipped: " in text
        assert warned == group["skipped"] == (group["skip_reason"] is not None)
    alike = [group for group in groups if group["skip_reason"] == "rewards_alike"]
    assert any(each["advantage"] for group in alike for each in group["completions"])
    masked = [each["masked"] for group in groups for each in group["completions"]]
    assert 0 < masked.count("overlong") == text.count(" (masked: overlong)") < len(masked)


def test_logs_log_has_the_back_ends_answers(logged):
    groups, text = logged
    trained = {group["step"] for group in groups if not group["skipped"]}
    assert text.count("the back end answered optim_step: ") == len(trained)
    assert "the back end answered forward_backward of " in text


def test_logging_keeps_settings_metrics_and_text_and_shows_a_step_on_the_console(tmp_path, capsys):
    logger = setup_logging(tmp_path, config={"seed": 1})
    assert json.loads((tmp_path / "config.json").read_text()) == {"seed": 1}
    logger.log_hparams({"learning_rate": 4e-5})
    logger.log_metrics({"mean_reward": 0.25}, step=3)
    logging.getLogger("code_rl").warning("look here")
    logger.close()
    shown = capsys.readouterr().out
    assert "4e-05" in shown
    assert "step 3" in shown
    assert "0.25" in shown
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == {"step": 3, "mean_reward": 0.25}
    assert "look here" in (tmp_path / "logs.log").read_text()
