"""The answer on top: did it learn?"""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console as RichConsole
from run_folders import write_run

from code_rl.reports.overview import MAX_POINTS, answer, columns, overview, split_results
from code_rl.reports.run import open_run
from code_rl.reports.text import clean, compare_text, sparkline, summary


def split(name, before, after, half=0.05):
    sides = [
        {"step": step, "score": score, "low": score - half, "high": score + half}
        for step, score in ((-1, before), (9, after))
    ]
    return {"name": name, "problems": 64, "trained": None, "before": sides[0], "after": sides[1], "sampled": True}


@pytest.mark.parametrize(
    ("splits", "tone", "said"),
    [
        ([split("a", 0.2, 0.6), split("b", 0.3, 0.7)], "good", "on every split the 95% intervals lie apart"),
        ([split("a", 0.2, 0.6), split("b", 0.3, 0.33)], "good", "lie apart on a"),
        ([split("a", 0.2, 0.24)], "flat", "intervals overlap"),
        ([split("a", 0.6, 0.2)], "bad", "below where it began on a"),
        ([split("a", 0.2, 0.6), split("b", 0.6, 0.2)], "flat", "up on a, down on b"),
    ],
)
def test_only_intervals_that_lie_apart_make_a_yes_or_a_no(splits, tone, said):
    found = answer(splits, [])
    assert found["tone"] == tone
    assert said in found["sentence"]


def test_without_evaluations_the_answer_says_so_and_gives_training_figures():
    found = answer([], [{"mean_correct": value} for value in (0.1, 0.2, 0.3, 0.4, 0.5)])
    assert found["headline"] == "Held-out problems were not evaluated."
    assert "10.0% of the completions passed in the first" in found["sentence"]


def test_before_and_after_are_the_first_and_last_sampled_evaluations():
    def at(step, score):
        return {"step": step, "eval/x/pass@1": score, "eval/x/pass@8": score, "eval/x/mean_correct": score}

    records = [
        at(-1, 0.1),
        {"step": 4, "eval/x/mean_correct": 0.9},
        at(9, 0.4),
        {"step": 12, "eval/x/mean_correct": 0.8},
    ]
    (found,) = split_results(records, {})
    assert (found["before"]["score"], found["after"]["score"], found["after"]["step"]) == (0.1, 0.4, 9)


def test_long_runs_are_drawn_as_means_and_say_so():
    table = columns([{"step": step, "x": float(step)} for step in range(3 * MAX_POINTS)])
    assert table["every"] == 3
    assert table["columns"]["x"][:2] == [1.0, 4.0]
    assert table["step"][-1] == 3 * MAX_POINTS - 1


def test_the_text_has_answer_splits_cost_and_findings(tmp_path):
    run = write_run(tmp_path / "run", steps=12)
    text = summary(overview(open_run(run)))
    for expected in (
        "Yes, it learned.",
        "constants",
        "20.0 [15.0, 25.0]",
        "60.0 [55.0, 65.0]",
        "12 of 12 steps",
        "cost: no money",
        "Some programs got no verdict",
    ):
        assert expected in " ".join(text.split()), expected


def test_text_of_a_run_cannot_command_the_terminal():
    assert clean("a\x1b[31mb\u202ec\x07") == "a [31mb c "
    assert sparkline([0, None, 1]) == "▁█"


@pytest.mark.parametrize(
    ("trained", "said"),
    [
        (0, "on 64 problems that it never trained on;"),
        (3, "on 64 problems, 3 of them also among those to train on;"),
        (None, "on 64 problems;"),
    ],
)
def test_what_was_never_trained_on_is_what_the_run_found(trained, said):
    assert said in answer([{**split("a", 0.2, 0.6), "trained": trained}], [])["sentence"]


def test_runs_side_by_side_are_told_apart_by_settings_and_by_split():
    def view(name, seed, score, half):
        splits = [split("a", 0.2, score, half)]
        return {
            "name": name,
            "settings": [["seed", seed], ["model_name", "tiny"], ["log_path", name]],
            "splits": splits,
        }

    def said(*views):
        console = RichConsole(file=(text := io.StringIO()), width=100)
        console.print(compare_text(views))
        return text.getvalue()

    apart = said(view("one", "0", 0.4, 0.05), view("two", "1", 0.7, 0.05))
    assert "seed" in apart
    assert "model_name" not in apart
    assert "log_path" not in apart
    assert "two is above, the 95% intervals lie apart" in apart
    assert "two is above, the 95% intervals overlap" in said(view("one", "0", 0.4, 0.2), view("two", "1", 0.7, 0.2))


def test_limits_are_no_secrets(tmp_path):
    write_run(tmp_path, steps=1, config={"max_tokens_schedule": "8:64", "api_key": "tml-1"})
    shown = dict(overview(open_run(tmp_path))["settings"])
    assert shown["max_tokens_schedule"] == "8:64"
    assert shown["api_key"] == "(not shown)"


@pytest.mark.parametrize("width", [50, 80, 100])
def test_no_figure_of_the_held_out_table_is_cut_where_the_terminal_is_narrow(tmp_path, width):
    view = overview(open_run(write_run(tmp_path / "run")))
    splits = [{**split, "name": f"{split['name']}-of-a-long-name"} for split in view["splits"]]

    def figures(columns: int) -> list[list[str]]:
        shown = summary({**view, "splits": splits}, columns).splitlines()
        return [re.findall(r"[\d.]+|…", line) for line in shown if "[" in line and "constants" in line]

    (wide,), (narrow,) = figures(200), figures(width)
    assert "…" not in narrow
    wide, narrow = (row[row.index("20.0") :] for row in (wide, narrow))
    assert narrow == wide[: len(narrow)]
    assert len(narrow) >= 6
