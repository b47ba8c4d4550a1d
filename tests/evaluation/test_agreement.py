"""The training loop's own evaluations and `code-rl eval` on its checkpoint are one and the same."""

from __future__ import annotations

import json

import pytest

from code_rl.cli.main import main
from code_rl.training import read_metrics
from tests.verbs import train_command

RUN = {
    "backend": "embedded", "executor": "embedded", "batch_size": "8", "group_size": "2", "max_steps": "2", "save_every": "1",
    "eval_limit": "4", "eval_samples": "2", "eval_every": "0",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({}, id="single"),
        pytest.param({"environment": "repair", "max_turns": "2"}, id="repair", marks=pytest.mark.slow),
    ],
)
def test_the_closing_table_and_eval_on_the_final_checkpoint_agree_to_the_last_bit(tmp_path, environment):
    run, out = tmp_path / "run", tmp_path / "out"
    assert train_command({**RUN, **environment, "log_path": str(run)}) == 0
    assert main(["eval", "benchmark=builtin", f"checkpoint={run}", f"out={out}"]) == 0
    metrics = read_metrics(run)[-1]
    results = json.loads((out / "results.json").read_text())
    for split, row in results["breakdown"]["split"].items():
        loops = [metrics[f"eval/{split}/{name}"] for name in ("pass@1", "pass@2", "mean_correct", "format_rate")]
        assert [row["pass@1"], row["pass@2"], row["greedy"], row["format_rate"]] == loops
        assert row["interval"] == [metrics[f"eval/{split}/pass@1_low"], metrics[f"eval/{split}/pass@1_high"]]
    assert results["tokens"]["completion"] == metrics["tokens/eval"]
    assert results["tokens"]["prompt"] == metrics["tokens/eval_prefill"]
    assert results["breakdown"]["split"].keys() == {"constants", "compositions", "primitives"}
    asked = json.loads((out / "manifest.json").read_text())["identity"]["asked"]
    assert (asked.get("environment"), asked.get("max_turns")) == (("repair", 2) if environment else (None, None))


@pytest.mark.slow
def test_another_checkpoint_of_the_run_and_the_base_model_can_be_named(tmp_path):
    run = tmp_path / "run"
    assert train_command({**RUN, "log_path": str(run), "eval_every": "-1"}) == 0
    words = ["benchmark=builtin", "limit=2", "n=1", "max_tokens=48"]
    assert main(["eval", *words, f"checkpoint={run}/000001", f"out={tmp_path / 'a'}"]) == 0
    assert main(["eval", *words, "model_name=tiny", f"out={tmp_path / 'b'}"]) == 0
    asked = [json.loads((tmp_path / name / "manifest.json").read_text())["identity"]["asked"] for name in "ab"]
    assert (asked[0]["checkpoint"], asked[0]["step"], asked[1]["model"]) == ("000001", 1, "tiny")
    assert main(["eval", *words, f"checkpoint={run}/000007", f"out={tmp_path / 'c'}"]) == 2
