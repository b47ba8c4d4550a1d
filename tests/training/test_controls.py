"""`code-rl controls`: arms that differ in their source of learning alone, one table, and a kill that changes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from code_rl.data import load_problems
from code_rl.evaluation.pass_at_k import crossed_difference
from code_rl.grading.native import format_problem
from tests.refusals import refused
from tests.training.pipeline_support import SMALL, rollouts
from tests.verbs import controls_command, train_command

SHORT = {"max_steps": "1", "eval_limit": "4", "save_every": "1"}
GIVEN = {name: value for name, value in SMALL.items() if name != "eval_every"} | SHORT


def given(out: Path, **changes: Any) -> dict[str, str]:
    return {**GIVEN, "out": str(out), "seeds": "0", "base_temperatures": "0.5", **changes}


def table(out: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((out / "controls.json").read_text())["rows"]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("controls") / "whole"
    assert controls_command(given(out)) == 0
    return out


@pytest.mark.long
def test_the_arm_rl_is_the_run_that_train_makes(whole, tmp_path):
    assert train_command({**GIVEN, "log_path": str(tmp_path), "seed": "0", "eval_every": "-1"}) == 0
    assert rollouts(whole / "rl-0") == rollouts(tmp_path)


@pytest.mark.long
def test_every_arm_begins_with_the_same_problems(whole):
    met = [[group["problem_id"] for group in rollouts(whole / f"{arm}-0")] for arm in ("rl", "random", "format", "own")]
    assert met[0] == met[1] == met[2] == met[3]


@pytest.mark.long
def test_no_control_learns_from_a_verdict(whole):
    members = {
        arm: [row for group in rollouts(whole / f"{arm}-0") for row in group["completions"]]
        for arm in ("random", "format", "own")
    }
    passed = [row["reward"] for row in members["random"] if row["verdict"] == "passed"]
    assert set(passed) == {0.0, 1.0}
    assert all(row["reward"] == (row["verdict"] != "no_code") for row in members["format"])
    assert {row["advantage"] for row in members["own"]} == {1.0}
    assert {group["policy_step"] for group in rollouts(whole / "own-0")} == {0}


@pytest.mark.long
def test_the_table_compares_every_arm_with_the_base_and_rl_with_each(whole):
    rows = {row["arm"]: row for row in table(whole) if row["split"] == "all"}
    assert list(rows) == ["base, T=0.5", "base, T=1", "rl", "random", "format", "own"]
    base, rl = rows["base, T=1"], rows["rl"]
    assert base["minus_base"]["Pass@1"] is None
    for row in (rows["random"], rows["own"]):
        found = row["rl_minus"]["Pass@1"]
        assert found["value"] == pytest.approx(rl["mean"]["Pass@1"] - row["mean"]["Pass@1"])
        assert found["low"] < found["value"] < found["high"]


@pytest.mark.long
def test_a_command_that_was_cut_goes_on_to_the_same_table_and_repeats_no_run(whole, tmp_path):
    out = Path(shutil.copytree(whole, tmp_path / "cut"))
    (out / "controls.json").unlink()
    for left in (out / "own-0", *out.glob("outcomes/own-0*")):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    finished = (out / "rl-0" / "rollouts.jsonl").stat().st_mtime_ns
    assert controls_command(given(out)) == 0
    assert (out / "rl-0" / "rollouts.jsonl").stat().st_mtime_ns == finished
    assert table(out) == table(whole)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", "1"),
        ("log_path", "x"),
        ("eval_every", "1"),
        ("arms", "rl,lucky"),
        ("seeds", "0,0"),
        ("max_steps", "-1"),
        ("base_temperatures", "nan"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(tmp_path, name, value):
    with refused(name):
        controls_command(given(tmp_path, **{name: value}))
    assert not any(tmp_path.iterdir())


@pytest.mark.long
def test_outcomes_of_other_settings_are_refused(whole):
    with refused("max_tokens"):
        controls_command(given(whole, max_tokens="32"))


@pytest.mark.slow
def test_answers_kept_under_other_settings_are_not_used(whole, tmp_path):
    out = Path(shutil.copytree(whole, tmp_path / "cut"))
    for kept in out.glob("outcomes/*.json"):
        kept.unlink()
    shutil.rmtree(out / "rl-0")
    for each in (out, tmp_path / "fresh"):
        assert controls_command(given(each, arms="rl", top_p="0.5")) == 0
    assert table(out) == table(tmp_path / "fresh")


@pytest.mark.long
def test_held_out_problems_that_changed_are_refused(tmp_path):
    held_out, problems = tmp_path / "held-out.jsonl", load_problems("builtin")
    settings = given(tmp_path / "out", arms="rl", test_dataset=str(held_out))
    held_out.write_text("".join(f"{format_problem(each)}\n" for each in problems[:2]))
    assert controls_command(settings) == 0
    held_out.write_text("".join(f"{format_problem(each)}\n" for each in problems[2:4]))
    with refused("held-out problems"):
        controls_command(settings)


@pytest.mark.long
def test_a_run_that_a_cap_ended_early_is_not_compared_until_it_goes_on(tmp_path):
    capped = given(tmp_path, arms="rl", max_steps="3")
    with refused("max_steps"):
        controls_command(capped | {"max_tokens_total": "8000"})
    assert controls_command(capped | {"max_tokens_total": "90000"}) == 0


@pytest.mark.parametrize("settings", [{"loss": "ppo", "clip_high": "0.3"}, {"recipe": "code-r1", "max_tokens": "64"}])
def test_settings_of_the_loss_are_those_of_the_arms_that_have_it(tmp_path, settings):
    assert controls_command(given(tmp_path, dry_run="true", **settings)) == 0


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    assert controls_command(given(tmp_path, dry_run="true")) == 0
    assert "run 4 of 4: own, seed 0" in capsys.readouterr().out
    assert not any(tmp_path.iterdir())


def test_seeds_that_disagree_widen_the_interval():
    alike, apart = [[0.5] * 40] * 4, [[0.5 + shift] * 40 for shift in (-0.3, -0.1, 0.1, 0.3)]
    widths = [
        found.high - found.low
        for found in (crossed_difference([[0.0] * 40] * 4, seconds) for seconds in (alike, apart))
    ]
    assert widths[1] > 2 * widths[0]
