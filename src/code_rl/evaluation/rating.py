"""A Codeforces rating from verdicts, by CodeElo's method (arXiv:2501.01257), on an offline snapshot
of official standings.

In each contest the completions of a problem count as submissions in order. An accepted one earns
the problem's points minus 50 for every earlier one. If problems have no points, it counts as one
problem solved, with a penalty of 10 minutes for every earlier one. Points and penalty give a place
among the official participants. The contest's rating is the r whose expected place, 1 + Σ 1 / (1 +
10^((r − r_i) / 400)), is that place. The rating is the mean over contests.

A snapshot is JSON Lines (`.jsonl` or `.jsonl.gz`), one contest per line:

    {"contest_id": 1971, "name": "…", "problems": [{"index": "A", "points": 500 or null}],
     "rows": [{"points": 3000, "penalty": 20, "rating": 1540}]}

`rating` is the participant's before the contest. The site's own answers to `contest.standings`
(official participants only) and `contest.ratingChanges` are accepted too, as `{"standings": …,
"rating_changes": …}`.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from code_rl.util.data_files import read_rows
from code_rl.util.errors import DataError

PENALTY_POINTS = 50
PENALTY_MINUTES = 10
MIN_PARTICIPANTS = 200
"""CodeElo leaves out contests with no more participants than this."""

HEADROOM = 100
"""A contest's rating is searched from 0 to this much above its best participant."""


@dataclass(frozen=True, slots=True)
class Contest:
    """One contest's official standings, best first: points, penalties and ratings of n
    participants."""

    contest_id: str
    name: str
    problem_points: Mapping[str, float | None]
    points_n: Sequence[float]
    penalties_n: Sequence[float]
    ratings_n: Sequence[float]


@dataclass(frozen=True, slots=True)
class ContestResult:
    """The result of one contest. `place` counts from 0: the number of participants who did at least
    as well, as in CodeElo."""

    contest: str
    solved: int
    points: float
    penalty: float
    place: int
    participants: int
    rating: int


def rate_contest(contest: Contest, attempts: Mapping[str, Sequence[bool]]) -> ContestResult:
    """Rate the attempts (by problem index, each True if accepted, in order) as one participant of
    `contest`. Problems without attempts count as unsolved, attempts at unknown problems are
    ignored. Attempts after the first accepted one do not count."""
    points, penalty = 0.0, 0.0
    solved = {
        index: worth
        for index, worth in contest.problem_points.items()
        if True in attempts.get(index, ())
    }
    for index, worth in solved.items():
        failures = list(attempts[index]).index(True)
        if worth is None:
            points, penalty = points + 1, penalty + PENALTY_MINUTES * failures
        else:
            points += max(0.0, worth - PENALTY_POINTS * failures)
    rows = zip(contest.points_n, contest.penalties_n, strict=True)
    place = sum((-p, q) <= (-points, penalty) for p, q in rows)
    rating = _rating_at(np.asarray(contest.ratings_n, dtype=np.float64), place)
    return ContestResult(
        contest.contest_id, len(solved), points, penalty, place, len(contest.ratings_n), rating
    )


def _rating_at(ratings_N: np.ndarray, place: int) -> int:
    """Return the largest integer rating from 0 whose expected place is `place` or worse, less than
    100 above the best participant's. There is at least one participant."""
    low, high = 0, int(ratings_N.max()) + HEADROOM
    while high - low > 1:
        middle = (low + high) // 2
        expected = 1.0 + float(np.sum(1.0 / (1.0 + 10.0 ** ((middle - ratings_N) / 400.0))))
        low, high = (low, middle) if expected < place else (middle, high)
    return low


def percentile(rating: float, sorted_ratings: Sequence[float]) -> float:
    """Return the share of `sorted_ratings` (ascending, not empty) strictly below `rating`, in per
    cent to one decimal."""
    return round(100.0 * bisect.bisect_left(sorted_ratings, rating) / len(sorted_ratings), 1)


def read_rating_table(path: str | Path) -> list[float]:
    """Return the sorted ratings of all users from `{"rating": count}` JSON. Raises DataError for
    anything else."""
    try:
        table = json.loads(Path(path).read_text(encoding="utf-8"))
        ratings = sorted(float(each) for each, users in table.items() for _ in range(int(users)))
    except (OSError, ValueError, AttributeError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(
            f'ratings={path} is not a JSON object of {{"rating": users}}: {error}'
        ) from error
    if not ratings:
        raise DataError(f"ratings={path} holds no users with a rating")
    return ratings


def read_standings(path: str | Path) -> dict[str, Contest]:
    """Return the contests of a snapshot by id, in either form; the last of equal ids counts. Raises
    DataError naming file, line and fault."""
    contests: dict[str, Contest] = {}
    for where, row in read_rows(path):
        try:
            contest = _from_site(row) if "standings" in row else _from_row(row)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(
                f"{where}: not a contest's standings: {type(error).__name__}: {error}"
            ) from error
        if not contest.ratings_n:
            raise DataError(
                f"{where}: contest {contest.contest_id} has no participant with a rating"
            )
        contests[contest.contest_id] = contest
    return contests


def _from_row(row: Mapping[str, Any]) -> Contest:
    """Read a contest in our form. Raises KeyError, TypeError or ValueError for any other row."""
    return _contest(
        row["contest_id"], row, row["problems"], ((each, each["rating"]) for each in row["rows"])
    )


def _from_site(row: Mapping[str, Any]) -> Contest:
    """Read a contest in the form of Codeforces' own API, with or without its outer object;
    participants without a rating before the contest are left out. Raises KeyError, TypeError,
    ValueError or IndexError for any other row."""
    # With or without the site's outer object
    answers = (row[name] for name in ("standings", "rating_changes"))
    standings, changes = (
        one["result"] if isinstance(one, Mapping) and "result" in one else one for one in answers
    )
    rating_of = {change["handle"]: change["oldRating"] for change in changes}
    handles = ((each, each["party"]["members"][0]["handle"]) for each in standings["rows"])
    rated = ((each, rating_of[handle]) for each, handle in handles if handle in rating_of)
    return _contest(standings["contest"]["id"], standings["contest"], standings["problems"], rated)


def _contest(
    contest_id: object,
    named: Mapping[str, Any],
    problems: Iterable[Mapping[str, Any]],
    rated: Iterable[tuple[Mapping[str, Any], Any]],
) -> Contest:
    """Build a contest whose rated participants are sorted from best to worst: more points first,
    then less penalty. Raises KeyError, TypeError or ValueError for malformed fields."""
    points_of = {str(problem["index"]): problem.get("points") for problem in problems}
    worth = {
        index: None if points is None else float(points) for index, points in points_of.items()
    }
    rows = (
        (float(each["points"]), float(each["penalty"]), float(rating)) for each, rating in rated
    )
    best_first = sorted(rows, key=lambda row: (-row[0], row[1]))
    points, penalties, ratings = zip(*best_first, strict=True) if best_first else ((), (), ())
    return Contest(str(contest_id), str(named.get("name", "")), worth, points, penalties, ratings)
