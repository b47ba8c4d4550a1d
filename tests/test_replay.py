"""`replay`: a recorded run scored again without model or sandbox, and checked against itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from code_rl.cli import main
from code_rl.commands.train import train_command
from code_rl.files import read_lines
from tests.pipeline_support import small, untimed

RICH = {
    "loss": "ppo", "clip_high": "0.28", "kl_coef": "0.05", "num_minibatches": "2", "dynamic_sampling": "1", "max_steps_off_policy": "1",
    "overlong": "mask", "max_tokens": "56", "learning_rate": "0.001", "eval_every": "0", "eval_limit": "2", "max_steps": "3", "batch_size": "24", "num_substeps": "2",
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_path = tmp_path_factory.mktemp("replay") / "plain"
    assert train_command(small(log_path, max_steps=3)) == 0
    return log_path


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log_path = tmp_path_factory.mktemp("replay") / "rich"
    assert train_command(small(log_path, **RICH)) == 0
    return log_path


def copied(run: Path, to: Path) -> Path:
    to.mkdir()
    for name in ("config.json", "metrics.jsonl", "rollouts.jsonl", "trained.jsonl", "journal.jsonl"):
        (to / name).write_bytes((run / name).read_bytes())
    return to


def changed(run: Path, to: Path, name: str, change: Callable[[list[dict[str, Any]]], object]) -> Path:
    copied(run, to)
    records = list(read_lines(to / name))
    change(records)
    (to / name).write_text("".join(json.dumps(record) + "\n" for record in records))
    return to


def replayed(run: Path, out: Path, *words: str) -> list[dict[str, Any]]:
    assert main(["replay", f"log_path={run}", f"out={out}", *words]) == 0
    return list(read_lines(out))


@pytest.mark.parametrize("which", ["plain", "rich"])
def test_a_run_that_nobody_touched_has_no_difference(which, request, capsys):
    run = request.getfixturevalue(which)
    assert main(["replay", f"log_path={run}", "verify=true"]) == 0
    assert ": no differences" in capsys.readouterr().out


@pytest.mark.parametrize("which", ["plain", "rich"])
def test_replay_without_changes_gives_the_metrics_that_the_run_logged(which, request, tmp_path):
    run = request.getfixturevalue(which)
    logged = [record for record in untimed(run) if record["step"] >= 0]
    for now, then in zip(replayed(run, tmp_path / "out.jsonl"), logged, strict=True):
        then = {
            key: value
            for key, value in then.items()
            if not key.startswith(("eval/", "tokens/eval", "sandbox/", "optim/"))
        }
        assert now == pytest.approx(then)
        assert now.get("loss") is None or now["ratio_max"] > 0


def test_replay_needs_neither_a_model_nor_a_sandbox(plain):
    code = (
        "import sys; from code_rl.cli import main; assert main(['replay', sys.argv[1]]) == 0; "
        "assert not [m for m in sys.modules if m.startswith(('code_rl.sandbox.embedded', 'code_rl.backends.embedded'))]"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, f"log_path={plain}"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr


def test_leave_one_out_scales_every_advantage_by_the_groups_size(plain, tmp_path, capsys):
    (before, after) = (replayed(plain, tmp_path / name, *words) for name, words in (("a", []), ("b", ["advantage=leave_one_out"])))  # fmt: skip
    assert "advantage=leave_one_out (was mean)" in capsys.readouterr().out
    assert [step["n_datums"] for step in after] == [step["n_datums"] for step in before]
    assert any(step["loss"] for step in before)
    for step, scaled in zip(before, after, strict=True):
        if step["loss"] is not None:
            assert scaled["loss"] == pytest.approx(step["loss"] * 4 / 3, rel=1e-4, abs=1e-7)


def test_a_tighter_clip_range_clips_more_of_an_off_policy_run(rich, tmp_path):
    wide = replayed(rich, tmp_path / "wide", "clip_low=1", "clip_high=50")
    tight = replayed(rich, tmp_path / "tight", "clip_low=0.0001", "clip_high=0.0001")
    assert sum(step["clip_fraction"] or 0 for step in wide) == 0
    assert sum(step["clip_fraction"] or 0 for step in tight) > 0


def test_overlong_judged_brings_masked_completions_back_and_says_what_it_assumes(rich, tmp_path, capsys):
    masked = sum(step.get("masked/overlong", 0) for step in replayed(rich, tmp_path / "a"))
    assert masked > 0
    again = replayed(rich, tmp_path / "b", "overlong=judged", "kl_coef=0")
    assert sum(step.get("masked/overlong", 0) for step in again) == 0
    assert "losses are those at a ratio of 1" in capsys.readouterr().out


def test_a_reward_that_reads_what_no_recording_has_is_refused_by_name(tmp_path, capsys):
    assert train_command(small(tmp_path, max_steps=1, save_every=0, reward="tests.broken_parts:quick")) == 0
    assert main(["replay", f"log_path={tmp_path}"]) == 2
    error = capsys.readouterr().err
    assert "reward=tests.broken_parts:quick" in error
    assert "no cpu_s of a verdict" in error
    assert error.count("\n") == 1


def test_a_buffer_that_fills_a_recorded_limit_is_refused_though_it_is_below_the_nominal_one(plain, tmp_path, capsys):
    run = changed(plain, tmp_path / "run", "rollouts.jsonl", lambda r: r[5].update(max_tokens=20))
    words = [f"log_path={run}", "overlong=penalty"]
    assert main(["replay", *words, "overlong_buffer=19"]) == 0
    assert main(["replay", *words, "overlong_buffer=20"]) == 2
    assert "overlong_buffer=20 is not below 20, the token limit that problem" in capsys.readouterr().err


def test_a_kl_term_that_the_run_did_not_have_is_refused(plain, capsys):
    assert main(["replay", f"log_path={plain}", "kl_coef=0.1"]) == 2
    assert "reference model's log-probabilities" in capsys.readouterr().err


CHANGES: dict[str, tuple[str, Callable[[list[dict[str, Any]]], object], str]] = {
    "reward": ("rollouts.jsonl", lambda r: r[1]["completions"][0].update(reward=0.75), "reward 0.75 is recorded"),
    "advantage": ("rollouts.jsonl", lambda r: r[5]["completions"][2].update(advantage=0.125), "advantage 0.125 is recorded"),
    "text": ("rollouts.jsonl", lambda r: [c.update(text="no block") for c in r[0]["completions"]], "no fenced block"),
    "mask": ("rollouts.jsonl", lambda r: r[2]["completions"][0].update(masked="overlong"), "masked overlong is recorded"),
    "skipped": ("rollouts.jsonl", lambda r: r[-1].update(skipped=not r[-1]["skipped"]), "skipped="),
    "why skipped": ("rollouts.jsonl", lambda r: [g.update(skip_reason="no_advantage") for g in r if g["skipped"]], "no_advantage is recorded"),
    "lost group": ("rollouts.jsonl", lambda r: r.pop(3), "1 groups are missing from the rollouts (3)"),
    "doubled group": ("rollouts.jsonl", lambda r: r.insert(1, r[0]), "attempts [0, 0]"),
    "problem": ("rollouts.jsonl", lambda r: r[0].update(problem_id="another"), "the journal decided on"),
    "stale": ("rollouts.jsonl", lambda r: r[9].update(policy_step=0), "was sampled at step 0"),
    "loss": ("metrics.jsonl", lambda r: r[0].update(loss=1.5), "loss 1.5 is recorded in the metrics"),
    "mean": ("metrics.jsonl", lambda r: r[2].update(mean_reward=0.9), "mean_reward 0.9 is recorded in the metrics"),
    "lost step": ("metrics.jsonl", lambda r: r[1].update(step=7), "step 7"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_a_record_that_was_changed_is_reported(plain, tmp_path, capsys, what):
    name, change, said = CHANGES[what]
    run = changed(plain, tmp_path / "run", name, change)
    code = main(["replay", f"log_path={run}", "verify=true"])
    output = capsys.readouterr()
    assert code in (1, 2), output
    assert said in output.out or "do not fit its rollouts" in output.err, output


def test_a_run_that_does_not_say_why_it_skipped_a_group_is_verified(plain, tmp_path, capsys):
    run = changed(plain, tmp_path / "run", "rollouts.jsonl", lambda r: [group.pop("skip_reason") for group in r])
    assert main(["replay", f"log_path={run}", "verify=true"]) == 0
    assert ": no differences" in capsys.readouterr().out


def test_answers_whose_checksum_does_not_fit_are_refused_by_file_and_line(plain, tmp_path, capsys):
    run = changed(plain, tmp_path / "run", "trained.jsonl", lambda r: r[1]["logprobs"].reverse())
    assert main(["replay", f"log_path={run}"]) == 2
    assert "trained.jsonl line 2 is damaged" in capsys.readouterr().err


def test_a_run_recorded_without_answers_is_verified_but_for_its_losses(plain, tmp_path, capsys):
    run = copied(plain, tmp_path / "run")
    (run / "trained.jsonl").unlink()
    assert main(["replay", f"log_path={run}", "verify=true"]) == 0
    assert "their losses were not compared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["learning_rate=1"], "learning_rate=1 has no effect on a replay"),
        (["verify=true", "advantage=mean_std"], "advantage=mean_std is not what it ran"),
        (["clip_high=0.3"], "has no effect with loss=importance_sampling"),
        (["advantage=median"], "unknown advantage 'median'"),
    ],
)
def test_what_a_replay_cannot_honour_is_refused_by_name(plain, words, said, capsys):
    assert main(["replay", f"log_path={plain}", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["verify=true"], ["replay_out=x"], ["replay=/nowhere"], ["replay="]])
def test_settings_of_a_replay_without_one_are_refused(words, capsys):
    assert main(["train", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def without_steps(plain: Path, tmp_path: Path) -> str:
    run = copied(plain, tmp_path / "run")
    for name in ("rollouts.jsonl", "metrics.jsonl"):
        (run / name).write_text("")
    return str(run)


@pytest.mark.parametrize(
    ("log_path", "out", "said"),
    [
        (without_steps, "{tmp}/out", "holds no recorded step: there is nothing to replay"),
        (lambda plain, tmp_path: str(tmp_path), "{tmp}/out", "holds no run (config.json is missing)"),
        (lambda plain, tmp_path: str(plain), "/proc/nothing/here", "out=/proc/nothing/here cannot be written"),
        (lambda plain, tmp_path: str(plain), "{tmp}", "is a directory; give a file"),
        (lambda plain, tmp_path: str(plain), "{run}/metrics.jsonl", "is in the directory of the run that is replayed"),
    ],
)
def test_what_cannot_be_replayed_or_written_is_one_line(plain, tmp_path, capsys, log_path, out, said):
    run = log_path(plain, tmp_path)
    assert main(["replay", f"log_path={run}", f"out={out.format(tmp=tmp_path, run=run)}"]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not list(tmp_path.glob("*.part"))


def test_an_earlier_file_is_kept_when_a_replay_fails(plain, tmp_path):
    (tmp_path / "out").write_text("earlier")
    assert main(["replay", f"log_path={plain}", f"out={tmp_path / 'out'}", "kl_coef=0.1"]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_text() == "earlier"
