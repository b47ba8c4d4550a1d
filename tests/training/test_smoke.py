"""The smoke test's four expectations, on metrics that meet them, miss them, or do not say."""

from __future__ import annotations

import random

import pytest

from code_rl.cli.train import train_command
from code_rl.training.report.overview import overview
from code_rl.training.report.run import open_run
from code_rl.training.report.text import summary
from code_rl.training.runs.smoke import FAIL, OPEN, PASS, smoke_lines, smoke_test
from tests.training.pipeline_support import small


def records(count, *, form=(0.7, 0.97), reward=0.01, correct=(0.05, 0.15), held_out=(0.2, 0.4), noise=0.02):
    """A run whose metrics move as these pairs and slopes say."""
    draw = random.Random(0)
    made = [{"step": -1, "eval/mean_correct": held_out[0], "eval/a/problems": 200}]
    for step in range(count):
        share = min(1.0, step / 4)
        made.append(
            {
                "step": step,
                "format_rate": form[0] + share * (form[1] - form[0]),
                "mean_reward": 0.1 + reward * step + draw.gauss(0, noise),
                "mean_correct": correct[step >= 9] + draw.gauss(0, noise),
            }
        )
    if count >= 20:
        made[-1]["eval/mean_correct"] = held_out[1]
    return made


def verdicts(made):
    return [verdict for verdict, _ in smoke_test(made)]


def test_a_correctly_wired_run_passes_all_four():
    assert verdicts(records(20)) == [PASS] * 4
    assert verdicts(records(20, form=(0.99, 0.98)))[0] == PASS  # what starts with good format need not rise


def test_a_run_that_moves_the_wrong_way_fails_all_four():
    assert verdicts(records(20, form=(0.8, 0.6), reward=-0.02, correct=(0.3, 0.1), held_out=(0.5, 0.2))) == [FAIL] * 4


@pytest.mark.parametrize(("steps", "open_ones"), [(0, 4), (4, 4), (5, 3), (14, 2), (15, 1), (20, 0)])
def test_what_has_too_few_steps_cannot_be_said_yet(steps, open_ones):
    assert verdicts(records(steps)).count(OPEN) == open_ones


def test_noise_without_a_change_is_no_verdict_and_no_number_is_no_crash():
    assert verdicts(records(20, reward=0.0, correct=(0.1, 0.1), held_out=(0.3, 0.3), noise=0.1))[3] == OPEN
    assert verdicts(records(20, reward=0.0, noise=0.0))[1] == OPEN
    broken = [{**record, "mean_reward": None, "mean_correct": float("nan")} for record in records(20)]
    assert verdicts(broken) == [PASS, OPEN, OPEN, PASS]


@pytest.mark.long
def test_console_and_report_say_it_after_20_steps_and_not_before(tmp_path, capsys):
    given = small(tmp_path / "run", max_steps="20", batch_size="8", group_size="2", max_tokens="16", save_every="0")
    assert train_command(given) == 0
    out = capsys.readouterr().out
    assert out.count("smoke test: ") == 4
    view = overview(open_run(tmp_path / "run"))
    assert [verdict for verdict, _ in view["smoke"]] == verdicts(open_run(tmp_path / "run").metrics.values())
    assert summary(view).count("smoke test: ") == 4
    assert all(line in out for line in smoke_lines(list(open_run(tmp_path / "run").metrics.values())))


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((0.90, 0.94), "up by 4.0 points"),
        ((0.2, 0.9), "up sharply by 70.0 points"),
        ((0.9, 0.8), "down by 10.0 points"),
        ((0.97, 0.97), "level"),
    ],
)
def test_the_words_of_the_format_line_follow_the_size_of_the_change(rates, words):
    records = [{"step": step, "format_rate": rates[step > 2]} for step in range(5)]
    line = smoke_lines(records)[0]
    assert words in line
    assert ("learning_rate" in line) == ("fail " in line)  # a line that fails says what to do
    assert ("sharply" in line) == ("sharply" in words)
