"""Forecasts, price tables and hard caps."""

from __future__ import annotations

import json
import re

import pytest

from code_rl.cli.main import main
from code_rl.training import forecast_lines, read_metrics
from code_rl.training.config import RECIPES, make_config
from tests.training.pipeline_support import rollouts, small, untimed
from tests.verbs import train_command

PRICES = "[price]\nprefill = 0.1\nsample = 0.4\ntrain = 0.3\n"
BILLED = {
    *("tokens/prefill", "tokens/eval_prefill", "canary/prefill", "tokens/completion", "tokens/eval", "canary/tokens"),
    "tokens/train",
}


def spent(records):
    """The tokens of these steps."""
    return sum(value for record in records for name, value in record.items() if name in BILLED)


def forecast(folder, assume, **given):
    """The figures of a forecast by name, under these assumptions."""
    (folder / "prices.toml").write_text(
        "[price]\nprefill = 10_000\nsample = 20_000\ntrain = 30_000\n[assume]\n"
        + "".join(f"{name} = {value}\n" for name, value in assume.items())
    )
    config = make_config({"recipe": "tiny", **given, "prices": str(folder / "prices.toml")})
    lines = [line.strip() for line in forecast_lines(config)]
    start = next(number for number, line in enumerate(lines) if line.startswith("forecast for"))
    return dict(line.split(": ", 1) for line in lines[start + 1 :] if ": " in line)


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
    [("builtin", 3), ("deepcoder", 2), ("taco:test,leetcode:test,mbpp", 3)],
)
def test_a_forecast_evaluates_on_the_splits_that_there_are(tmp_path, test_dataset, splits):
    def sampled(**given):
        figures = forecast(tmp_path, {"completion_share": 1.0}, max_steps=1, eval_samples=1, **given)
        return int(re.findall(r"sampled ([\d,]+)", figures["tokens"])[0].replace(",", ""))

    evaluations = sampled(eval_every=0, eval_limit=5, test_dataset=test_dataset) - sampled(eval_every=-1)
    assert evaluations == splits * 5 * 2 * 2 * 128


@pytest.mark.parametrize(("lag", "step_s"), [(0, "6.2"), (1, "5.4")])
def test_a_forecast_counts_what_the_settings_say_and_a_step_is_its_slowest_part_where_steps_overlap(
    tmp_path, lag, step_s
):
    given = {"groups_per_batch": 2, "group_size": 3, "max_steps": 5, "max_tokens": 100, "eval_every": -1}
    assume = {"prompt_tokens": 10, "completion_share": 0.5, "program_cpu_s": 1, "sandbox_cpus": 1}
    speeds = {"sample_tokens_per_s": 600, "train_tokens_per_s": 1200}
    found = forecast(tmp_path, assume | speeds, **given, max_steps_off_policy=lag)
    assert found["tokens"] == "3,600 (prefill 300, sampled 1,500, trained 1,800)"
    assert found["cost"].startswith(f"{3 + 2 * 15 + 3 * 18}.00 ")
    assert found["sandbox"].startswith(f"{5 * 6 * 0.9:.0f} ")
    assert found["time"].startswith(f"{step_s} s a step")  # 0.5 to sample, 5.4 to judge, 0.3 to train


@pytest.mark.parametrize("lag", [2, pytest.param(0, marks=pytest.mark.slow)])
def test_a_capped_run_stops_with_a_checkpoint_below_the_cap_and_goes_on_when_it_is_raised(tmp_path, lag, capsys):
    cap = 5000
    changes = {"max_tokens": 8, "max_steps": 8, "save_every": 100, "max_steps_off_policy": lag}
    assert train_command(small(tmp_path, max_tokens_total=cap, **changes)) == 0
    assert f"max_tokens_total={cap}:" in capsys.readouterr().out
    records = untimed(tmp_path)
    assert 0 < len(records) < 8
    assert spent(records) <= cap
    saved = [json.loads(line) for line in (tmp_path / "checkpoints.jsonl").read_text().splitlines()]
    assert saved[-1]["step"] == len(records)
    assert train_command({"log_path": str(tmp_path), "max_tokens_total": str(10 * cap)}) == 0
    assert [record["step"] for record in untimed(tmp_path)] == list(range(8))
    assert len(rollouts(tmp_path)) == 8 * 4


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
    assert spent(records) <= cap
