"""The Codeforces rating: published percentiles, places by points and penalty, planted ratings found again."""

from __future__ import annotations

import json
from statistics import fmean

import numpy as np
import pytest

from code_rl.cli.main import main
from code_rl.evaluation.rating import (
    MIN_PARTICIPANTS,
    Contest,
    percentile,
    rate_contest,
    read_rating_table,
    read_standings,
)
from code_rl.grading import Problem, StdinTest
from code_rl.grading.native import write_problems
from code_rl.util.errors import DataError
from tests.grading.corpus.rooms import data_file
from tests.refusals import refused

RATED = '{"contest_id": 1, "name": "", "problems": [{"index": "%s"}, {"index": "B"}], "rows": [{"points": 1, "penalty": 0, "rating": %s}]}'


@pytest.mark.parametrize(("rating", "expected"), [(1936, 95.2), (963, 28.5), (1791, 92.7)])
def test_published_ratings_have_their_published_percentiles(rating, expected):
    assert percentile(rating, read_rating_table(data_file("rllm/ratings_2024.json"))) == expected


def planted_contests(rating, rng, count=20, participants=2000):
    """Contests in which each official participant finishes before the planted one with the probability that Elo gives him.

    Problems are worth 1, 2, 4, …, so that a set of solved ones says any number of points exactly.
    """
    for number in range(count):
        ratings = rng.normal(1400, 450, participants)
        before = rng.random(participants) < 1 / (1 + 10 ** ((rating - ratings) / 400))
        points = np.where(before, 3000 + rng.integers(1, 1000, participants), rng.integers(0, 2999, participants))
        order = np.argsort(-points)
        worth = {chr(65 + bit): float(1 << bit) for bit in range(12)}
        contest = Contest(str(number), "", worth, points[order].tolist(), [0.0] * participants, ratings[order].tolist())
        attempts = {index: [bool(3000 & int(value))] for index, value in worth.items()}
        yield contest, attempts


@pytest.mark.parametrize("rating", [700, 1200, 1600, 2100, 2600])
def test_a_planted_rating_is_found_again_within_25_points(rating):
    contests = planted_contests(rating, np.random.default_rng(rating))
    found = fmean(rate_contest(*each).rating for each in contests)
    assert abs(found - rating) < 25


def contest(points, penalties, problem_points, ratings=None):
    return Contest("1", "", problem_points, points, penalties, ratings or [1500.0] * len(points))


def test_contests_with_few_participants_are_left_out_and_named(tmp_path):
    """Of contests 1 and 2, whose problems 1A and 2A are solved, the first has one participant too few."""
    with (tmp_path / "standings.jsonl").open("w") as file:
        for number, count in ((1, MIN_PARTICIPANTS), (2, MIN_PARTICIPANTS + 1)):
            rows = [{"points": place, "penalty": 0, "rating": 1500} for place in range(count)]
            row = {"contest_id": number, "problems": [{"index": "A", "points": 500}], "rows": rows}
            file.write(json.dumps(row) + "\n")

    def rating(*names):
        problems = [Problem(name, "Say 1.", (StdinTest("", "1"),), solutions=("print(1)",)) for name in names]
        write_problems(tmp_path / "problems.jsonl", problems)
        out = tmp_path / f"out{len(names)}"
        words = [f"data={tmp_path / 'problems.jsonl'}", f"standings={tmp_path / 'standings.jsonl'}", f"out={out}"]
        assert main(["eval", "benchmark=codeforces", "model_name=reference", *words]) == 0
        return json.loads((out / "results.json").read_text())["rating"]

    both, alone = rating("1A", "2A"), rating("1A")
    assert (both["few_participants"], [each["contest"] for each in both["by_contest"]]) == (["1"], ["2"])
    assert (alone["rating"], alone["percentile"], alone["few_participants"]) == (None, None, ["1"])
    assert alone["contests"] == 0


def test_every_earlier_failure_costs_50_points():
    standings = contest([1000, 951, 950, 900], [0] * 4, {"A": 500.0, "B": 500.0})
    result = rate_contest(standings, {"A": [False, True], "B": [True, False]})
    assert (result.points, result.solved, result.place) == (950.0, 2, 3)


def test_without_points_problems_count_and_failures_cost_ten_minutes():
    standings = contest([2, 2, 2, 1], [5, 19, 21, 0], {"A": None, "B": None})
    result = rate_contest(standings, {"A": [False, False, True], "B": [True]})
    assert (result.points, result.penalty, result.place) == (2.0, 20.0, 2)


def test_solving_nothing_is_the_last_place_and_more_is_never_a_lower_rating():
    rng = np.random.default_rng(0)
    points = sorted(rng.integers(0, 3000, 500).tolist(), reverse=True)
    worth = {name: 100.0 * 2**i for i, name in enumerate("ABCDE")}
    standings = contest(points, [0] * 500, worth, rng.normal(1500, 300, 500).tolist())
    ratings = [rate_contest(standings, {name: [True] for name in "ABCDE"[:solved]}).rating for solved in range(6)]
    assert ratings == sorted(ratings)
    assert rate_contest(standings, {}).place >= sum(value >= 0 for value in points)


def test_a_snapshot_and_the_sites_own_answers_give_the_same_contest(tmp_path):
    own = {"contest_id": 7, "name": "Round", "problems": [{"index": "A", "points": 500}, {"index": "B"}],
           "rows": [{"points": 1, "penalty": 9, "rating": 1200}, {"points": 500, "penalty": 0, "rating": 1800}]}  # fmt: skip
    site = {
        "standings": {"status": "OK", "result": {
            "contest": {"id": 7, "name": "Round"}, "problems": own["problems"],
            "rows": [{"party": {"members": [{"handle": handle}]}, "points": points, "penalty": penalty}
                     for handle, points, penalty in (("low", 1, 9), ("high", 500, 0), ("unrated", 900, 0))]}},
        "rating_changes": {"status": "OK", "result": [
            {"handle": "low", "oldRating": 1200}, {"handle": "high", "oldRating": 1800}]},
    }  # fmt: skip
    found = []
    for name, row in (("own", own), ("site", site)):
        path = tmp_path / f"{name}.jsonl"
        path.write_text(json.dumps(row) + "\n")
        found.append(read_standings(path))
    assert found[0] == found[1]
    assert found[0]["7"].ratings_n == (1800.0, 1200.0)


@pytest.mark.parametrize(
    "line", [RATED % ("A", '"x"'), '{"contest_id": 1}', '{"contest_id": 1, "problems": [], "rows": []}', '{"standings": {}, "rating_changes": []}']
)  # fmt: skip
def test_a_line_that_is_no_contest_is_named(tmp_path, line):
    path = tmp_path / "standings.jsonl"
    path.write_text(line + "\n")
    with refused("standings.jsonl", kind=DataError):
        read_standings(path)


@pytest.mark.parametrize(
    "text", ["[]", "{}", '{"a": 1}', '{"1200": -1}', '{"1500": 0}', '{"1500": 1e400}', "[" * 200_000]
)
def test_a_table_that_is_no_table_of_ratings_is_refused(tmp_path, text):
    path = tmp_path / "ratings.json"
    path.write_text(text)
    with refused("ratings=", kind=DataError):
        read_rating_table(path)
