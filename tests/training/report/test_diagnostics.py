"""Diagnostics: each is found where it is, and silent where it is not; each has its section in docs/troubleshooting.md."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.paths import ROOT
from tests.training.pipeline_support import small
from tests.training.report.run_folders import findings, overview_of
from tests.verbs import train_command


def run(steps=20, **curves):
    """A healthy run of `steps` steps; a curve given as (first, last) runs straight between them."""
    usual = {
        "mean_reward": (0.3, 0.7), "mean_correct": (0.3, 0.7), "format_rate": (0.95, 1.0), "groups_skipped": (1, 2), "groups_total": (8, 8),
        "loss": (-0.02, -0.01), "kl_sample_train": (0.0, 0.0), "ratio_max": (0.0, 0.0), "truncated_rate": (0.0, 0.0),
        "entropy": (0.3, 0.2), "verdicts/passed": (40, 90), "verdicts/wrong_answer": (80, 30), "verdicts/time_limit": (2, 2),
        "verdicts/compile_error": (3, 2), "verdicts/sandbox_error": (0, 0),
    }  # fmt: skip
    records = []
    for step in range(steps):
        share = step / (steps - 1)
        values = (usual | curves).items()
        records.append({"step": step, **{name.replace("__", "/"): a + share * (b - a) for name, (a, b) in values}})
    return records


def evaluated(records, first, last, middle=None):
    records = [{"step": -1, "eval/pass@1": first, "eval/mean_correct": first}, *records]
    if middle is not None:
        records[len(records) // 2] |= {"eval/mean_correct": middle}
    records[-1] |= {"eval/pass@1": last, "eval/mean_correct": last}
    return records


def collapsing():
    """Every answer has a code block for three steps, and none has one after that."""
    return [
        {**record, "format_rate": float(record["step"] < 3), "mean_correct": 0.3 * (record["step"] < 3)}
        for record in run()
    ]


@pytest.fixture(scope="module")
def diagnose(tmp_path_factory):
    """The findings of a run with these metrics and settings, by name, the worst first."""
    folder = tmp_path_factory.mktemp("diagnosed")
    return lambda records, config: findings(overview_of(folder, records, config))


ELSEWHERE = {"model_name": "tiny", "dataset": "mine.jsonl"}
ILL = {
    "loss-not-finite": run(loss=(float("nan"), float("nan"))),
    "canary-passed": run(canary__passed=(1, 1)),
    "wrong-paid": run(reward__wrong_paid=(1, 1)),
    "unstable-verdicts": run(reward__judged_twice=(1, 1), reward__unstable=(0, 1)),
    "sandbox-errors": run(verdicts__sandbox_error=(1, 1)),
    "checker-errors": run(verdicts__checker_error=(1, 1)),
    "no-optimizer-step": run(n_datums=(0, 0)),
    "no-code-blocks": run(format_rate=(0.0, 0.0)),
    "collapse": collapsing(),
    "built-in-elsewhere": run(mean_correct=(0.0, 0.0)),
    "hardly-moved": run(mean_correct=(0.4, 0.4), format_rate=(0.9, 0.9), entropy=(0.1, 0.1)),
    "degenerate-groups": run(groups_skipped=(2, 9)),
    "reward-flat-at-zero": run(mean_correct=(0.0, 0.01)),
    "format-falling": run(format_rate=(0.95, 0.6)),
    "held-out-flat": evaluated(run(), 0.3, 0.3),
    "held-out-falling": evaluated(run(), 0.3, 0.5, middle=0.8),
    "loss-exploding": run(loss=(0.01, 9.0)),
    "sampler-trainer-gap": run(kl_sample_train=(0.0, 0.05)),
    "entropy-collapse": run(entropy=(0.5, 0.01)),
    "truncation": run(truncated_rate=(0.1, 0.6)),
    "smoke-test": run(format_rate=(0.6, 0.65)),
}


@pytest.mark.parametrize("name", ILL)
def test_it_is_found_with_evidence_cause_and_remedy_and_told_from_the_others(diagnose, name):
    found = diagnose(ILL[name], ELSEWHERE if name == "built-in-elsewhere" else {})
    assert all(found[name][part] for part in ("title", "evidence", "cause", "remedy"))
    assert found.keys() - {name} <= {"degenerate-groups", "held-out-flat"}


def test_weights_that_hardly_moved_name_the_recipes_rate_to_try(diagnose):
    low = {"max_tokens": 64, "recipe": "tiny", "learning_rate": 1e-5}
    assert "try learning_rate=0.002" in diagnose(ILL["hardly-moved"], low)["hardly-moved"]["evidence"]


@pytest.mark.parametrize(
    ("steps", "curves", "fails"),
    [
        (20, {"format_rate": (0.7, 0.71)}, True),
        (20, {"format_rate": (0.96, 0.96)}, False),
        (20, {"mean_reward": (0.7, 0.3)}, True),
        (20, {"mean_correct": (0.7, 0.5)}, True),
        (20, {"mean_correct": (0.5, 0.5)}, False),
        (19, {"mean_correct": (0.7, 0.5)}, False),
    ],
)
def test_the_smoke_test_looks_at_format_reward_and_right_programs_of_20_steps(diagnose, steps, curves, fails):
    assert ("smoke-test" in diagnose(run(steps, **curves), {})) is fails


@pytest.mark.parametrize(
    ("records", "found"),
    [
        (evaluated(run(), 0.3, 0.6, middle=0.5), {}),
        (run(kl_sample_train=(0.0, 0.05), staleness__mean=(1.0, 1.0)), {}),
        (run(steps=3, mean_correct=(0, 0)), {"too-few-steps": "note"}),
        (run(steps=2, n_datums=(0, 0)), {"no-optimizer-step": "bad", "too-few-steps": "note"}),
    ],
    ids=["healthy", "stale samples", "few steps", "few steps without training"],
)
def test_a_run_has_no_other_finding(diagnose, records, found):
    assert [(name, finding["severity"]) for name, finding in diagnose(records, {}).items()] == [*found.items()]


def skipped_groups(right, wrong):
    """Half of the completions pass; whole groups of them all right, all wrong."""
    split = {"rollouts__all_solved": (right, right), "rollouts__none_solved": (wrong, wrong)}
    return run(groups_skipped=(8, 8), mean_correct=(0.52, 0.52), **split)


def test_groups_all_right_and_groups_all_wrong_are_not_taken_for_each_other(diagnose):
    skipped = [diagnose(skipped_groups(*groups), {}) for groups in ((4, 4), (8, 0), (0, 8))]
    assert len({found["degenerate-groups"]["cause"] for found in skipped}) == 3


def test_a_run_whose_groups_are_all_right_is_told_to_take_harder_problems(diagnose):
    found = [diagnose(run(n_datums=(0, 0), mean_correct=(rate, rate)), {}) for rate in (1.0, 0.0)]
    assert len({each["no-optimizer-step"]["remedy"] for each in found}) == 2


def test_a_recipes_own_token_limit_is_no_fault_of_the_run_unless_more_is_cut_off_than_at_first(diagnose):
    own = {"recipe": "smollm2", "max_tokens": 64}
    assert not diagnose(run(truncated_rate=(0.4, 0.3)), own)
    assert [*diagnose(run(truncated_rate=(0.1, 0.3)), own)] == ["truncation"]


def test_every_finding_is_shown_here_and_has_its_section_in_the_troubleshooting_page():
    texts = tomllib.loads((ROOT / "src/code_rl/training/report/findings.toml").read_text())
    assert texts.keys() == {*ILL, "too-few-steps"}
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    assert set(re.findall(r"^## ([a-z-]+)$", page, re.MULTILINE)) >= texts.keys()


@pytest.mark.long
def test_a_run_prints_its_worst_finding_after_20_steps_and_at_its_end(tmp_path, capsys):
    given = small(tmp_path / "run", max_steps="21", batch_size="8", group_size="2", max_tokens="16", save_every="0")
    assert train_command(given) == 0
    assert capsys.readouterr().out.count("diagnosis: ") == 2
