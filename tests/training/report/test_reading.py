"""Reading a run directory: whole, torn, damaged or rewritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from code_rl.cli.main import main
from code_rl.training.config import make_config
from code_rl.training.report import open_run, write_report
from code_rl.util.errors import DataError
from code_rl.util.files import LOCK, only_writer
from tests.refusals import refused
from tests.training.report.run_folders import overview, rewind, write_run
from tinker_utils.log import setup_logging


def render(readers):
    path = readers[0].log_path / "report.html"
    write_report(readers, path)
    return path.read_text()


def edit(path: Path, *changes) -> None:
    lines = path.read_text().splitlines(keepends=True)
    for change in changes:
        change(lines)
    path.write_text("".join(lines))


def test_a_torn_last_line_is_left_for_later_and_read_when_it_is_whole(tmp_path):
    run = write_run(tmp_path / "run", steps=4)
    metrics = run / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole[:-20])
    reader = open_run(run)
    assert sorted(reader.metrics) == [-1, 0, 1, 2]
    with metrics.open("a") as file:
        file.write(whole[-20:])
    reader.refresh()
    assert sorted(reader.metrics) == [-1, 0, 1, 2, 3]


@pytest.mark.parametrize("name", ["metrics.jsonl", "rollouts.jsonl"])
@pytest.mark.parametrize("line", ['{"step": 1, "mean_rew', "[]", "\x00" * 9, '{"step": null}'])
def test_a_damaged_line_is_left_out_and_the_file_is_named(tmp_path, name, line):
    run = write_run(tmp_path / "run", steps=4)
    steps = open_run(run).metrics
    edit(run / name, lambda lines: lines.insert(2, line + "\n"))
    reader = open_run(run)
    assert reader.metrics == steps
    (notice,) = (notice for notice in reader.damage() if name in notice)
    assert notice in render([reader])


def test_a_damaged_tokenizer_is_refused_by_name(tmp_path):
    run = write_run(tmp_path / "run", steps=2)
    (run / "tokenizer.json").write_text("{}")
    with refused("tokenizer.json", kind=DataError):
        open_run(run)


@pytest.mark.parametrize("field", ["completions", "step", "public_tests", "logprobs", "verdict"])
def test_a_group_that_lacks_a_field_is_left_out_and_the_file_is_named(tmp_path, field):
    run = write_run(tmp_path / "run", steps=4)
    edit(run / "rollouts.jsonl", lambda lines: lines.insert(2, lines[2].replace(f'"{field}"', f'"_{field[1:]}"')))
    reader = open_run(run)
    assert "rollouts.jsonl" in render([reader])
    assert any("rollouts.jsonl" in notice for notice in reader.damage())


def test_a_run_that_no_process_works_on_is_said_to_be_left_until_it_is_done(tmp_path):
    run, other = write_run(tmp_path / "run", steps=4), write_run(tmp_path / "done", steps=4)
    rewind(run, 2)
    with only_writer(run / LOCK, "x"), only_writer(other / LOCK, "x"):
        readers = [open_run(run), open_run(other)]
        before = [reader.damage() for reader in readers]
    (notice,) = {*readers[0].damage()} - {*before[0]}
    assert f"log_path={run}" in notice
    assert notice in render([readers[0]])
    assert readers[1].damage() == before[1]
    with only_writer(run / LOCK, "x"):
        assert readers[0].damage() == before[0]


@pytest.mark.parametrize("missing", ["config.json", "metrics.jsonl", "rollouts.jsonl", "tokenizer.json"])
def test_whatever_file_is_missing_the_rest_is_shown_with_a_notice(tmp_path, missing):
    run = write_run(tmp_path / "run", steps=3, config={"model_name": "elsewhere"})
    (run / missing).unlink()
    reader = open_run(run)
    assert reader.damage()
    assert "</html>" in render([reader])


def test_a_directory_without_a_run_is_refused_by_name(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with refused(str(folder), kind=DataError):
            open_run(folder)


def test_not_a_number_in_the_metrics_is_a_gap_and_a_finding(tmp_path):
    run = write_run(tmp_path / "run", steps=6)
    edit(
        run / "metrics.jsonl",
        lambda lines: lines.__setitem__(
            4, json.dumps({**json.loads(lines[4]), "loss": float("nan"), "tokens/completion": None}) + "\n"
        ),
    )
    view = overview(run)
    assert view["steps"]["columns"]["loss"][3] is None
    assert view["findings"][0]["name"] == "loss-not-finite"


def test_fields_of_tomorrow_are_charted_and_secrets_are_not_shown(tmp_path):
    run = write_run(tmp_path / "run", steps=3, config={"api_key": "tml-123", "max_tokens": 77})
    view = overview(run)
    assert view["steps"]["columns"]["a_metric_of_tomorrow"] == [0.5, 0.5, 0.5]
    assert ["api_key", "***"] in view["settings"]
    assert ["max_tokens", "77"] in view["settings"]
    assert "tml-123" not in render([open_run(run)])


@pytest.mark.parametrize("steps", [(None, None, None), (1, 2, 3), (10, 20, 30)])
def test_the_report_of_ones_own_loop_counts_the_steps_that_it_logged(tmp_path, steps):
    log = setup_logging(tmp_path, config={"learning_rate": 1e-4, "max_steps": None})
    for step in steps:
        log.log_metrics({"mean_reward": 0.1}, step)
    log.close()
    assert overview(tmp_path)["progress"]["done"] == 3


def test_records_of_one_step_are_joined_and_settings_may_be_an_object(tmp_path):
    log = setup_logging(tmp_path, config=make_config({"learning_rate": 1e-4}))
    log.log_metrics({"mean_reward": 0.1}, 0)
    log.log_metrics({"eval/mean_correct": 0.2}, 0)
    log.close()
    reader = open_run(tmp_path)
    assert (reader.metrics[0]["mean_reward"], reader.metrics[0]["eval/mean_correct"]) == (0.1, 0.2)
    assert reader.config["learning_rate"] == 1e-4


def test_a_loop_that_logs_a_few_metrics_or_no_step_has_a_report(tmp_path):
    log = setup_logging(tmp_path, config={"learning_rate": 1e-4})
    log.log_metrics({"time/total": 3.0})
    for step in range(4):
        log.log_metrics({"mean_reward": 0.1, "eval/test/mean_correct": 0.2}, step)
    log.close()
    assert "</html>" in render([open_run(tmp_path)])


def test_the_runs_of_a_directory_are_listed_with_their_states(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    runs = tmp_path / "code-rl-logs"
    for name, most in (("a", 12), ("b", 60), ("c", 60)):
        write_run(runs / name, config={"recipe": "tiny", "max_steps": most})
    (runs / "notes").mkdir()
    write_run(runs / "broken")
    (runs / "broken" / "config.json").write_text("xx")
    with only_writer(runs / "c" / LOCK, "log_path"):
        assert main(["report"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:4] for row in rows[1:]] == [
        ["a", "finished", "tiny", "12/12"],
        ["b", "stopped", "tiny", "12/60"],
        ["broken", "damaged", "-", "-"],
        ["c", "running", "tiny", "12/60"],
    ]
    assert main(["report", "compare=a"]) == 2
