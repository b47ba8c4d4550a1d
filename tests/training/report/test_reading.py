"""Reading a run directory: whole, torn, damaged, rewritten, of another version, or hostile."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from code_rl.training.report.overview import overview
from code_rl.training.report.page import embedded_rollouts, pack_rollouts, render
from code_rl.training.report.run import RunReader, open_run
from code_rl.training.report.text import summary
from code_rl.util.errors import DataError
from tests.refusals import refused
from tests.training.report.run_folders import write_run


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
    assert reader.refresh()
    assert sorted(reader.metrics) == [-1, 0, 1, 2, 3]
    assert not reader.refresh()


def test_damaged_lines_are_left_out_counted_and_named(tmp_path):
    run = write_run(tmp_path / "run", steps=4)
    edit(
        run / "metrics.jsonl",
        lambda lines: lines.insert(2, '{"step": 1, "mean_rew\n'),
        lambda lines: lines.append("[1, 2]\n"),
    )
    edit(
        run / "rollouts.jsonl",
        lambda lines: lines.insert(0, "\x00\x01 not json\n"),
        lambda lines: lines.append('{"group": 1}\n'),
    )
    reader = open_run(run)
    notices = " ".join(reader.damage())
    assert sorted(reader.metrics) == [-1, 0, 1, 2, 3]
    assert re.findall(r"(\w+\.jsonl): (\d)", notices) == [("metrics.jsonl", "2"), ("rollouts.jsonl", "1")]
    assert all(notice in render([reader]).replace("&#39;", "'") for notice in reader.damage())


def test_a_rewritten_log_is_read_again_from_its_beginning(tmp_path):
    run = write_run(tmp_path / "run", steps=6)
    reader = open_run(run)
    for name in ("metrics.jsonl", "rollouts.jsonl"):  # as when a cut run is resumed
        kept = [line for line in (run / name).read_text().splitlines(keepends=True) if json.loads(line)["step"] < 3]
        (run / "new").write_text("".join(kept))
        (run / "new").replace(run / name)
    assert reader.refresh()
    assert max(reader.metrics) == 2
    assert len(reader.rollouts.index) == 9
    assert max(step for step, _ in pack_rollouts(reader).groups) == 2


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
        lambda lines: lines.__setitem__(4, json.dumps({**json.loads(lines[4]), "loss": float("nan")}) + "\n"),
    )
    view = overview(open_run(run))
    assert view["steps"]["columns"]["loss"][3] is None
    assert view["findings"][0]["name"] == "loss-not-finite"


def test_fields_of_tomorrow_are_charted_and_secrets_are_not_shown(tmp_path):
    run = write_run(tmp_path / "run", steps=3, config={"api_key": "tml-123", "max_tokens": 77})
    view = overview(open_run(run))
    assert view["steps"]["columns"]["a_metric_of_tomorrow"] == [0.5, 0.5, 0.5]
    assert ["api_key", "(not shown)"] in view["settings"]
    assert ["max_tokens", "77"] in view["settings"]
    assert "tml-123" not in render([open_run(run)])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
sample = st.dictionaries(
    st.sampled_from(
        ["text", "reward", "advantage", "verdict", "passed", "total", "failure", "tokens", "logprobs", "truncated"]
    ),
    anything,
)
group = st.fixed_dictionaries(
    {"step": st.integers(0, 5) | anything},
    optional={
        "group": anything,
        "problem_id": anything,
        "statement": anything,
        "prompt_tokens": anything,
        "public_tests": anything | st.lists(st.fixed_dictionaries({"test": anything, "input": anything}), max_size=3),
        "completions": anything | st.lists(sample | anything, max_size=4),
    },
)
names = st.sampled_from(["mean_reward", "mean_correct", "loss", "verdicts/passed", "time/step", "eval/x/pass@1", "eval/x/pass@1_low", "eval//mean_correct", "eval/x/pass@9"])  # fmt: skip
metric = st.fixed_dictionaries({"step": st.integers(-1, 9) | anything}).flatmap(
    lambda step: st.dictionaries(names | st.text(max_size=10), anything, max_size=8).map(lambda rest: {**rest, **step})
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    metrics=st.lists(metric, max_size=8),
    groups=st.lists(group, max_size=5),
    config=anything,
    raw=st.binary(max_size=40),
)
def test_no_content_of_the_files_makes_a_report_fail(tmp_path, metrics, groups, config, raw):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "metrics.jsonl").write_bytes(
        b"".join(json.dumps(each).encode() + b"\n" for each in metrics) + raw + b"\n"
    )
    (tmp_path / "rollouts.jsonl").write_bytes(
        raw + b"\n" + b"".join(json.dumps(each).encode() + b"\n" for each in groups)
    )
    reader = RunReader(tmp_path)
    reader.refresh()
    summary(overview(reader))
    embedded_rollouts(pack_rollouts(reader))
    assert "</html>" in render([reader])
