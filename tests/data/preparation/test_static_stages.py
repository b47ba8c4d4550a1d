"""Filters, decided from texts and tests alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from code_rl.data.preparation import PrepareConfig
from code_rl.data.preparation.filter import filter_entry
from code_rl.data.preparation.workspace import ProblemSummary, make_entry
from code_rl.grading import Problem, StdinTest

CONFIG = PrepareConfig(dataset="builtin", out="nowhere")
TASK = (
    "A farmer has n fields in a row and the i-th of them yields a_i sacks of grain. Neighbouring fields must not be harvested in one year. "
    "Print the largest number of sacks that can be harvested. The first line holds n, the second line the yields.\n\n1 <= n <= {most}\n"
)
TESTS = (("3\n1 2 3\n", "4\n"), ("2\n5 9\n", "9\n"), ("1\n7\n", "7\n"))


def problem(name: str, statement: str, tests: Sequence[tuple[str, str]] = TESTS, code: str = "") -> Problem:
    cases = tuple(StdinTest(given, expected) for given, expected in tests)
    return Problem(name, statement, cases, solutions=(code,) if code else ())


def entry(made: Problem) -> ProblemSummary:
    return make_entry(made, 0)[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Look at this board: ![board](http://x/y.png) and print the number of rooks.", "image"),
        ("Look at this board and print the number of rooks. <IMG src='board.png'>", "image"),
        ("This is an interactive problem. Guess the number that the judge thinks of.", "interactive"),
        ("English statement is not available for the problem. Please switch to Chinese.", "no_statement"),
        ("Statement: https://example.org/problems/17/statement", "no_statement"),
        ("The [statement](https://example.org/17).", "no_statement"),
        ("Add.", "too_short"),
        ("word " * 5000, "too_long"),
        ("You are given an image as a grid of pixels. Print how many of them are black.", ""),
        ("Best hand: a Flush is five cards of one suit. Print the name of the given hand.", ""),
        ("Find the nth bell number. https://example.org/bell-numbers/", ""),
    ],
)
def test_a_filter_drops_for_its_own_reason(text: str, reason: str) -> None:
    assert filter_entry(entry(problem("p", text)), CONFIG).reason == reason


def test_too_few_tests_and_too_many_bytes_are_dropped() -> None:
    assert filter_entry(entry(problem("p", TASK, TESTS[:1])), CONFIG).reason == "few_tests"
    large = problem("p", TASK, [("x" * 2_000_000, "1"), ("y", "2")])
    assert filter_entry(entry(large), PrepareConfig(dataset="d", out="o", max_row_mb=1.0)).reason == "oversized"
