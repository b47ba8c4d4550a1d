"""Forecasts, price tables and hard caps."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.cli.main import main
from code_rl.training import read_metrics
from code_rl.training.budget import Budget, Prices, Tokens
from code_rl.training.config import RECIPES, make_config
from code_rl.training.forecast import assumptions, forecast
from tests.training.pipeline_support import rollouts, small, untimed
from tests.verbs import train_command

PRICES = "[price]\nprefill = 0.1\nsample = 0.4\ntrain = 0.3\n"


def test_every_recipe_is_a_valid_run_and_has_a_forecast(capsys, monkeypatch):
    # No recipe's model need be here: smollm2's would be converted, half a gigabyte of it.
    monkeypatch.setattr("code_rl.engine.names.PACKAGE", "absent")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    names = sorted(path.stem for path in RECIPES.glob("*.toml"))
    assert {"deepcoder", "code-r1", "cookbook", "qwen3-4b", "tiny"} <= set(names)
    for name in names:
        assert main(["train", f"recipe={name}", "dry_run=true"]) == 0
        shown = capsys.readouterr().out
        assert f"recipe = {name}" in shown
        assert re.search(r"tokens: [\d,]+ .*\n  sandbox: [\d,]+ ", shown)


def test_every_number_of_a_recipe_says_where_it_comes_from():
    for path in RECIPES.glob("*.toml"):
        for line in path.read_text().partition("[[published]]")[0].splitlines():
            if path.stem != "tiny" and "=" in line and not line.startswith("#"):
                assert "#" in line, f"{path.name}: {line}"


@pytest.mark.parametrize(
    "text",
    [
        "[price]\nprefill = 1\nsample = 1\n",
        "[price]\nprefill = 1\nsample = 1\ntrain = -1\n",
        "[price]\nprefill = 'x'\nsample = 1\ntrain = 1\n",
        "nonsense",
        "[costs]\na = 1\n",
        PRICES + "[assume]\nspeed = 1\n",
    ],
)
def test_a_price_table_that_cannot_be_used_ends_the_run_before_it_begins(tmp_path, text):
    (tmp_path / "p.toml").write_text(text)
    words = ["train", "recipe=cookbook", "dry_run=true", f"prices={tmp_path / 'p.toml'}"]
    assert main(words) == 2
    assert main([*words[:-1], "prices=/nonexistent.toml"]) == 2


def test_dry_run_prices_the_run_and_starts_nothing(tmp_path, capsys):
    table = tmp_path / "prices.toml"
    table.write_text(PRICES + "currency = 'EUR'\n[assume]\nprompt_tokens = 100\n")
    words = [f"prices={table}", "max_cost=0.01", "dry_run=true", f"log_path={tmp_path / 'run'}", "recipe=cookbook"]
    assert main(["train", *words]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"  cost: [\d,]+\.\d\d EUR", shown)
    assert "prompt_tokens = 100 " in shown
    assert "max_cost=0.01" in shown.partition("forecast")[2]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("test_dataset", "splits"),
    [("builtin", 3), ("deepcoder", 2), ("taco:test", 1), ("taco:test,leetcode:test,mbpp", 3)],
)
def test_a_forecast_evaluates_on_the_splits_that_there_are(test_dataset, splits):
    def sampled(given):
        config = make_config({"recipe": "tiny", "max_steps": 1, "eval_samples": 1, **given})
        return forecast(config, assumptions(config, {"completion_share": 1.0}), None).tokens.sample

    evaluations = sampled({"eval_every": 0, "eval_limit": 5, "test_dataset": test_dataset})
    evaluations -= sampled({"eval_every": -1})
    assert evaluations == splits * 5 * 2 * 2 * 128


def test_a_forecast_counts_what_the_settings_say():
    served = make_config({"recipe": "tiny", "backend": "http://127.0.0.1:9"})
    assert assumptions(served, {"prompt_tokens": 10})
    config = make_config(
        {"groups_per_batch": 2, "group_size": 3, "max_steps": 5, "max_tokens": 100, "eval_every": -1, "recipe": "tiny"}
    )
    found = forecast(
        config,
        assumptions(config, {"prompt_tokens": 10, "completion_share": 0.5, "program_cpu_s": 1}),
        Prices(1.0, 2.0, 3.0),
    )
    assert found.tokens == Tokens(prefill=300, sample=1500, train=1800)
    assert found.cost == pytest.approx((300 + 2 * 1500 + 3 * 1800) / 1e6)
    assert found.sandbox_cpu_s == pytest.approx(5 * 6 * 0.9)


@given(st.lists(st.integers(0, 100), max_size=30), st.integers(1, 500))
def test_what_is_begun_only_when_it_fits_never_passes_the_cap(worsts, cap):
    budget = Budget(max_tokens_total=cap)
    for index, worst in enumerate(worsts):
        if budget.refusal(Tokens(sample=worst)) is None:
            budget.reserve(str(index), Tokens(sample=worst))
        if index % 3 == 2:
            for name, tokens in list(budget.reserved.items()):
                budget.settle(name, Tokens(sample=tokens.sample // 2))
        assert budget.spent.total + sum(t.total for t in budget.reserved.values()) <= cap


@pytest.mark.parametrize("lag", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_capped_run_stops_with_a_checkpoint_below_the_cap_and_goes_on_when_it_is_raised(tmp_path, lag, capsys):
    cap = 12000
    changes = {"max_tokens": 32, "max_steps": 8, "save_every": 100, "max_steps_off_policy": lag}
    assert train_command(small(tmp_path, max_tokens_total=cap, **changes)) == 0
    assert f"max_tokens_total={cap}:" in capsys.readouterr().out
    records = untimed(tmp_path)
    assert 0 < len(records) < 8
    used = sum(Tokens.of(record).total for record in records)
    assert used <= cap
    saved = [json.loads(line) for line in (tmp_path / "checkpoints.jsonl").read_text().splitlines()]
    assert saved[-1]["step"] == len(records)
    assert train_command({"log_path": str(tmp_path), "max_tokens_total": str(10 * cap)}) == 0
    assert [record["step"] for record in untimed(tmp_path)] == list(range(8))
    assert len(rollouts(tmp_path)) == 8 * 4


@pytest.mark.parametrize(("lag", "step_s"), [(0, 0.15 + 5.4 + 0.09), (1, 5.4)])
def test_a_forecast_step_is_its_parts_in_turn_or_the_slowest_of_them_where_steps_overlap(lag, step_s):
    given = {"groups_per_batch": 2, "group_size": 3, "max_steps": 5, "max_tokens": 100, "recipe": "tiny"}
    assume = {"prompt_tokens": 10, "completion_share": 0.5, "program_cpu_s": 1, "sandbox_cpus": 1}
    speeds = {"sample_tokens_per_s": 2000.0, "train_tokens_per_s": 4000.0}
    config = make_config({**given, "max_steps_off_policy": lag})
    assert forecast(config, assumptions(config, {**assume, **speeds}), None).step_s == pytest.approx(step_s)


@pytest.mark.slow
def test_an_open_ended_run_that_a_cap_stops_has_a_closing_evaluation_within_it(tmp_path):
    cap = 30_000
    settings = small(
        tmp_path, max_steps=-1, eval_every=0, max_tokens_total=cap, save_every=0, dynamic_sampling=1, eval_limit=2
    )
    assert train_command(settings) == 0
    records = read_metrics(tmp_path)
    assert len(records) > 2
    assert "eval/pass@1" in records[-1]
    assert not any("eval/pass@1" in record for record in records[1:-1])
    assert sum(Tokens.of(record).total for record in records) <= cap
