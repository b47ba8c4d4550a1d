"""The answer on top: did it learn?"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.training.report import compare_text, render_text
from tests.training.report.run_folders import overview, overview_of, write_run

STEPS = [{"step": step, "n_datums": 8} for step in range(10)]


def split(name, before, after, half=0.05, problems=64):
    """The metrics of a held-out split, before and after."""
    prefix = f"eval/{name}/"
    return [
        {f"{prefix}pass@1": score, f"{prefix}mean_correct": score, f"{prefix}problems": problems}
        | {f"{prefix}pass@1_low": max(0.0, score - half), f"{prefix}pass@1_high": min(1.0, score + half)}
        for score in (before, after)
    ]


def evaluated(splits, steps=STEPS):
    """The metrics of a run with these steps, and evaluations at both of its ends."""
    start, *records = {"step": -1}, *(dict(step) for step in steps)
    for before, after in splits:
        start |= before
        records[-1] |= after
    return [start, *records]


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """The answer about a run with these metrics."""
    folder = tmp_path_factory.mktemp("answered")
    return lambda records: overview_of(folder, records)["answer"]


@pytest.mark.parametrize(
    ("splits", "headline", "points"),
    [
        ([split("a", 0.292, 0.333, 0.2, 12)], "No clear change.", "+4.1"),
        ([split("a", 0.06, 0.62, 0.15), split("b", 0.52, 0.58, 0.15)], "Yes, it learned.", "+31.0"),
        ([split("a", 0.60, 0.32, 0.15)], "No, it got worse.", "−28.0"),
        ([split("a", 0.305, 0.29)], "No clear change.", "−1.5"),
        ([split("a", 0.0, 0.0)], "No clear change.", "+0.0"),
        ([split("a", 0.2, 0.6), split("b", 0.6, 0.2)], "No clear change.", "+0.0"),
        ([split("a", 0.2, 0.6, 0.05, 10), split("b", 0.6, 0.4, 0.05, 90)], "No, it got worse.", "−14.0"),
    ],
)
def test_yes_or_no_is_said_where_the_interval_of_the_pooled_change_excludes_nothing(answer, splits, headline, points):
    found = answer(evaluated(splits))
    assert found["headline"] == headline
    assert points in found["sentence"]
    assert found["tone"] == {"Y": "good", "N": "bad" if "worse" in headline else "flat"}[headline[0]]


@given(one=st.floats(0, 1), other=st.floats(0, 1), half=st.floats(0.01, 0.3), problems=st.integers(1, 300))
def test_what_is_clear_one_way_is_clear_the_other_way(answer, one, other, half, problems):
    mirrored = {"good": "bad", "bad": "good", "flat": "flat"}
    ends = (one, other), (other, one)
    there, back = (answer(evaluated([split("a", *each, half, problems)])) for each in ends)
    assert there["tone"] == mirrored[back["tone"]]


@pytest.mark.parametrize(
    ("steps", "headline"),
    [
        (STEPS[:1], "Too few steps to judge."),
        (STEPS[:4], "Too few steps to judge."),
        ([{**step, "n_datums": 0} for step in STEPS], "The model was never trained."),
    ],
)
def test_a_run_that_did_not_train_or_has_just_begun_is_not_judged(answer, steps, headline):
    assert answer(evaluated([split("a", 0.2, 0.6)], steps))["headline"] == headline
    unevaluated = [{**step, "mean_correct": 0.5} for step in steps]
    assert (answer(unevaluated)["headline"] == headline) is (headline == "The model was never trained.")


def test_greedy_figures_have_an_interval_too(tmp_path):
    records = [{"step": step, "eval/a/mean_correct": p, "eval/a/problems": 40} for step, p in ((-1, 0.25), (9, 0.75))]
    (found,) = overview_of(tmp_path, records)["splits"]
    assert (found["change"]["low"], found["change"]["high"]) == pytest.approx((0.285, 0.653), abs=1e-3)


def test_without_evaluations_the_answer_says_so_and_gives_training_figures(answer):
    found = answer([{"step": step, "mean_correct": (step + 1) / 10} for step in range(5)])
    assert found["headline"] == "Held-out problems were not evaluated."
    assert "10.0% of the completions passed in the first" in found["sentence"]


def test_before_and_after_are_the_first_and_last_sampled_evaluations(tmp_path):
    def at(step, score):
        names = ("pass@1", "pass@1_low", "pass@1_high", "pass@8", "mean_correct")
        scores = dict.fromkeys(names, score) | {"problems": 64}
        return {"step": step, **{f"eval/x/{name}": value for name, value in scores.items()}}

    records = [
        at(-1, 0.1),
        {"step": 4, "eval/x/mean_correct": 0.9},
        at(9, 0.4),
        {"step": 12, "eval/x/mean_correct": 0.8},
    ]
    (found,) = overview_of(tmp_path, records)["splits"]
    assert (found["before"]["score"], found["after"]["score"], found["after"]["step"]) == (0.1, 0.4, 9)


def test_of_long_runs_some_steps_are_drawn_the_last_among_them(tmp_path):
    table = overview_of(tmp_path, [{"step": step, "x": float(step)} for step in range(7_500)])["steps"]
    assert table["every"] == 3
    assert table["columns"]["x"][:2] == [2.0, 5.0]
    assert table["step"][-1] == 7_499


def test_the_text_has_answer_splits_cost_and_findings(tmp_path):
    run = write_run(tmp_path / "run", steps=12)
    view = overview(run)
    assert "20.0" in render_text(view, 50)  # a narrow terminal drops columns and cuts no figure
    greedy = {
        **view["splits"][0],
        "before": {"step": -1, "score": 0.2, "low": 0.1, "high": 0.3},
        "after": None,
        "change": None,
    }
    assert "20.0" in render_text({**view, "splits": [greedy]})
    text = render_text(view)
    assert "Yes, it learned." in text
    for expected in ("constants", "20.0 [15.0, 25.0]", "60.0 [55.0, 65.0]", "12 of 12 steps"):
        assert expected in " ".join(text.split()), expected


def test_text_of_a_run_cannot_command_the_terminal(tmp_path):
    view = overview(write_run(tmp_path / "run", steps=2))
    shown = render_text({**view, "notices": ["a\x1b[31mb\u202ec\x07"]})
    assert shown.endswith("note: a [31mb c ")


def test_runs_side_by_side_are_told_apart_by_settings_and_by_split(tmp_path):
    def view(name, seed, score, half, problems=64):
        records = evaluated([split("a", 0.2, score, half, problems)])
        return overview_of(tmp_path / name, records, {"seed": seed, "model_name": "tiny", "log_path": name})

    apart = compare_text([view("one", "0", 0.4, 0.05), view("two", "1", 0.7, 0.05)])
    assert "two is better" in apart
    assert "seed" in apart
    assert "model_name" not in apart
    assert "log_path" not in apart
    assert "+30.0 points (95% interval +22.9 to +37.1)" in apart
    unclear = compare_text([view("one", "0", 0.4, 0.3), view("two", "1", 0.7, 0.3)])
    assert "No clear difference." in unclear
    other = compare_text([view("one", "0", 0.4, 0.05, problems=4), view("two", "1", 0.7, 0.05, problems=8)])
    assert "cannot be compared" in other


def test_seconds_of_a_step_are_counted_once_whether_or_not_steps_overlap(tmp_path):
    for overlap in (0, 1):
        run = write_run(tmp_path / str(overlap), steps=3, config={"max_steps_off_policy": overlap})
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        times = {"time/sample": 2.0, "time/score": 1.0, "time/wait": 0.5 if overlap else 3.0, "time/train": 1.0}
        times["time/step"] = times["time/wait"] + 1.0
        rows = [row | (times if row["step"] >= 0 else {}) for row in rows]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        totals = overview(run)["totals"]
        assert sum(totals["stages"].values()) == pytest.approx(totals["seconds"])


@pytest.mark.parametrize("backend", ["tinker", "embedded"])
def test_the_cost_of_a_run_is_its_billed_tokens_by_the_price_table(tmp_path, backend):
    prices = tmp_path / "prices.toml"
    prices.write_text('[price]\nprefill = 1.0\nsample = 2.0\ntrain = 4.0\ncurrency = "EUR"\n')
    run = write_run(tmp_path / "run", steps=1, config={"backend": backend, "prices": str(prices)})
    first = {"step": -1, "tokens/eval": 10**6, "tokens/eval_prefill": 2 * 10**6}
    second = {
        "step": 0,
        "format_rate": 1.0,
        "tokens/completion": 10**6,
        "tokens/prefill": 10**6,
        "tokens/train": 10**7,
        "canary/tokens": 10**6,
    }
    (run / "metrics.jsonl").write_text(json.dumps(first) + "\n" + json.dumps(second) + "\n")
    assert "49.00 EUR" in overview(run)["totals"]["cost"]
    prices.unlink()
    assert "3,000,000 sample" in overview(run)["totals"]["cost"]
