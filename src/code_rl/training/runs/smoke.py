"""The course's smoke test: do the first steps of a run look like those of a correct setup?

There are four expectations, each about a range of steps. Texts count steps from 1; the first step
is number 0 in the records. A change within its standard error decides nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

STEPS = 20
"""The test is printed after this many steps."""
PASS, FAIL, OPEN = "pass", "fail", "cannot say yet"
ADHERENT = 0.95
SHARP = 0.2
Record = Mapping[str, Any]
Line = tuple[str, str]


def smoke_test(records: Sequence[Record]) -> list[Line]:
    """Return a verdict (pass, fail, cannot say yet) and its evidence for each expectation.
    `records` are those of `metrics.jsonl`."""
    steps = {record["step"]: record for record in records}
    lines = []
    for what, test, remedy in TESTS:
        verdict, found = test(steps)
        lines.append((verdict, f"{what}: {found}{f'; {remedy}' if verdict == FAIL else ''}"))
    return lines


def smoke_lines(records: Sequence[Record]) -> list[str]:
    """Return the results of `smoke_test` as lines for a terminal."""
    return [f"smoke test: {verdict:<{len(OPEN)}}  {text}" for verdict, text in smoke_test(records)]


def _format(steps: Mapping[int, Record]) -> Line:
    """Check that at least a quarter of the answers without a fenced block gained one, or that
    nearly all have one."""
    rates = _values(steps, "format_rate", range(5))
    if len(rates) < 5:
        return OPEN, f"{len(rates)} of 5 steps are there"
    late = statistics.mean(rates[3:])
    risen = late >= ADHERENT or late - rates[0] >= (1 - rates[0]) / 4
    return (
        PASS if risen else FAIL,
        f"{rates[0]:.1%} at first, {late:.1%} in the 4th and 5th, {_moved(late - rates[0])}",
    )


def _moved(change: float) -> str:
    """Return a change of a share as text, with a word for its size."""
    if abs(change) < 0.005:
        return "level"
    return (
        f"{'up' if change > 0 else 'down'}{' sharply' if abs(change) >= SHARP else ''} by "
        f"{100 * abs(change):.1f} points"
    )


def _reward(steps: Mapping[int, Record]) -> Line:
    """Check the slope of a regression line through the steps' rewards against its standard
    error."""
    rewards = _values(steps, "mean_reward", range(4, 15))
    if len(rewards) < 11:
        return OPEN, f"{len(rewards)} of 11 steps are there"
    places = range(len(rewards))
    slope, start = statistics.linear_regression(places, rewards)
    rest = sum(
        (reward - start - slope * place) ** 2 for place, reward in zip(places, rewards, strict=True)
    )
    spread = sum((place - statistics.mean(places)) ** 2 for place in places)
    return _verdict(slope, math.sqrt(rest / (len(rewards) - 2) / spread)), f"{slope:+.4f} a step"


def _correct(steps: Mapping[int, Record]) -> Line:
    early, late = (
        _values(steps, "mean_correct", range(3)),
        _values(steps, "mean_correct", range(9, 30)),
    )
    if len(early) < 2 or len(late) < 5:
        return OPEN, "too few steps are there"
    error = math.sqrt(sum(statistics.variance(part) / len(part) for part in (early, late)))
    before, after = statistics.mean(early), statistics.mean(late)
    return _verdict(
        after - before, error
    ), f"{before:.1%} in the first 3 steps, {after:.1%} since the 10th"


def _held_out(steps: Mapping[int, Record]) -> Line:
    name = "eval/mean_correct"
    before = _values(steps, name, [-1])
    after = _values(steps, name, range(19, 50))
    if not before or not after:
        return OPEN, "no evaluation " + (
            "after 20 steps is there" if before else "before training is there"
        )
    counts = [
        value
        for key, value in steps[-1].items()
        if key.startswith("eval/") and key.endswith("/problems")
    ]
    error = math.sqrt(sum(p * (1 - p) for p in (before[0], after[-1])) / max(1, sum(counts)))
    return _verdict(
        after[-1] - before[0], error
    ), f"{before[0]:.1%} before, {after[-1]:.1%} after (greedy)"


def _verdict(change: float, error: float) -> str:
    return OPEN if abs(change) <= error else PASS if change > 0 else FAIL


def _values(steps: Mapping[int, Record], name: str, places: Sequence[int]) -> list[float]:
    """Return a metric's finite values at these steps (0 is the first)."""
    found = [steps[place].get(name) for place in places if place in steps]
    return [
        float(value) for value in found if isinstance(value, int | float) and math.isfinite(value)
    ]


TESTS: Sequence[tuple[str, Callable[[Mapping[int, Record]], Line], str]] = (
    (
        "first 5 steps, format adherence rises, or is there from the start",
        _format,
        "raise learning_rate if it is far below its recipe's, lower it if the rate collapses; "
        "check renderer= and max_tokens",
    ),
    (
        "5th to 15th step, reward trends upward",
        _reward,
        "check learning_rate against its recipe's, and that most groups are mixed (neither all "
        "right nor all wrong)",
    ),
    (
        "10th to 30th step, more programs are right than at the start",
        _correct,
        "check learning_rate; more completions per prompt or easier problems give a clearer signal",
    ),
    (
        "20th to 50th step, held-out Pass@1 is above that before training",
        _held_out,
        "if training reward rose, the held-out problems are of another kind; else as above",
    ),
)
"""(expectation, test, remedy if it fails)"""
