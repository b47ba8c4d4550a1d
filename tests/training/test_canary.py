"""Canaries: no program passes one, a hack that does is named, and a run is the same beside them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

import code_rl
from code_rl.data import load_problems
from code_rl.grading import CallTest, Problem, StdinTest, judge_async
from code_rl.policy import Trajectory
from code_rl.training import read_metrics
from tests.boxes import shared_box
from tests.training.pipeline_support import rollouts, small, untimed
from tests.training.report.run_folders import findings, overview
from tests.verbs import train_command

STDIN = Problem("echo", "Print the line.", (StdinTest("a", "a", public=True), StdinTest("b", "b")))
CALLS = Problem("same", "Return it.", (CallTest((1,), 1, public=True), CallTest((2,), 2)), fn_name="same")


PROBLEMS = [*load_problems("builtin")[:3], STDIN, CALLS]


@dataclass
class Canaries:
    """A step beside canaries: those that were sampled, and its metrics. Their answers have no program and are paid in
    full for one problem, for the others almost in full."""

    sampled: list[Problem] = field(default_factory=list)
    metrics: dict[str, Any] = field(default_factory=dict)

    def of(self, problem: Problem) -> Problem:
        return next(canary for canary in self.sampled if canary.id == problem.id)


@pytest.fixture(scope="module")
def canaries(tmp_path_factory):
    seen = Canaries()

    def paid(trajectory: Trajectory, problem: Problem) -> float:
        assert trajectory.last.code is None
        if problem in PROBLEMS:
            return 0.0
        seen.sampled.append(problem)
        return 1.0 if problem.id == STDIN.id else 0.9

    folder = tmp_path_factory.mktemp("canaries")
    given: dict[str, Any] = small(folder, batch_size=64, group_size=32, max_tokens=2, max_steps=1, save_every=0)
    result = code_rl.train(**{**given, "dataset": PROBLEMS, "reward": paid, "canary": 1.0})
    (seen.metrics,) = map(dict, result.metrics)
    return seen


@pytest.mark.parametrize(
    ("problem", "solution"), [(STDIN, "print(input())"), (CALLS, "def same(x):\n    return x")], ids=["stdin", "calls"]
)
def test_what_solves_a_problem_does_not_solve_its_canary(canaries, problem, solution):
    both = (problem, canaries.of(problem))
    verdicts = [asyncio.run(judge_async(each, solution, shared_box())) for each in both]
    assert [verdict.correct for verdict in verdicts] == [True, False]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda each: each.id)
def test_a_canary_looks_the_same_and_contradicts_itself(canaries, problem):
    canary = canaries.of(problem)
    assert canary.view() == problem.view()
    first, again = canary.tests[0], canary.tests[-1]
    assert replace(first, expected=None, public=False) == replace(again, expected=None)
    assert first.expected != again.expected
    hidden = [(was, now) for was, now in zip(problem.tests, canary.tests, strict=False) if not was.public]
    assert all(was.expected != now.expected for was, now in hidden)


def test_an_answer_without_a_program_that_is_paid_in_full_is_named(canaries):
    paid = sum(canary.id == STDIN.id for canary in canaries.sampled)
    assert 0 < paid == canaries.metrics["canary/passed"] == canaries.metrics["canary/programs"]
    assert "canary/program" in canaries.metrics


@pytest.mark.long
def test_a_run_is_the_same_beside_canaries_which_bound_its_reward(tmp_path, capsys):
    for name, share in (("with", 1), ("without", 0)):
        assert train_command(small(tmp_path / name, max_steps=2, save_every=0, canary=share)) == 0
    assert rollouts(tmp_path / "with") == rollouts(tmp_path / "without")
    beside = untimed(tmp_path / "with")
    figures: list[dict[str, Any]] = [
        {name: value for name, value in record.items() if not name.startswith(("canary/", "reward/fpr"))}
        for record in beside
    ]
    without = [
        {name: value for name, value in record.items() if name != "reward/fpr_upper"}
        for record in untimed(tmp_path / "without")
    ]
    assert figures == without
    assert [(record["canary/groups"], record["canary/passed"]) for record in beside] == [(4, 0)] * 2
    first, last = beside
    assert (first["reward/wrong_paid"], last["reward/wrong_paid"]) == (0, 0)
    assert 0 < last["reward/fpr_upper"] < first["reward/fpr_upper"] < 1
    assert 0 <= last["reward/public_fpr"] <= 1
    assert f"{100 * last['reward/fpr_upper']:.1f}%" in capsys.readouterr().out


def pays_a_token(trajectory: Trajectory) -> float:
    """A planted hack: one token is paid, whatever the program does."""
    return float("def" in trajectory.text)


@pytest.mark.long
def test_a_judge_that_pays_one_token_is_named_within_ten_steps(tmp_path, capsys):
    given = small(tmp_path, max_steps=10, save_every=0, canary=0.1, reward="tests.training.test_canary:pays_a_token")
    assert train_command(given) == 0
    records = read_metrics(tmp_path)
    found = findings(overview(tmp_path))
    assert found["canary-passed"]["severity"] == "bad"
    program = next(record["canary/program"] for record in records if record.get("canary/passed"))
    assert "def" in program
    assert program in found["canary-passed"]["evidence"]
    assert program in capsys.readouterr().out
