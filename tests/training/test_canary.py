"""Canaries: no program passes one, a hack that does is named, and a run is the same beside them."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import Any

import pytest

from code_rl.data import load_problems
from code_rl.grading import CallTest, Problem, StdinTest, judge_async
from code_rl.grading.sandbox import connect_executor
from code_rl.policy import Trajectory
from code_rl.policy.rewards import Reward
from code_rl.training import read_metrics
from code_rl.training.objective import Objective
from code_rl.training.problem_sampler import impossible
from code_rl.training.report.diagnostics import diagnose
from code_rl.training.reward_errors import canary_metrics
from tests.training.pipeline_support import rollouts, small, untimed
from tests.training.rollout_support import group_of, trajectory
from tests.verbs import train_command

STDIN = Problem("echo", "Print the line.", (StdinTest("a", "a", public=True), StdinTest("b", "b")))
CALLS = Problem("same", "Return it.", (CallTest((1,), 1, public=True), CallTest((2,), 2)), fn_name="same")


@pytest.mark.parametrize(
    ("problem", "solution"), [(STDIN, "print(input())"), (CALLS, "def same(x):\n    return x")], ids=["stdin", "calls"]
)
def test_what_solves_a_problem_does_not_solve_its_canary(problem, solution):
    async def both() -> list[bool]:
        async with contextlib.aclosing(connect_executor("embedded")) as executor:
            verdicts = [await judge_async(each, solution, executor) for each in (problem, impossible(problem, 1))]
        return [each.correct for each in verdicts]

    assert asyncio.run(both()) == [True, False]


@pytest.mark.parametrize("problem", [*load_problems("builtin")[:3], STDIN, CALLS], ids=lambda each: each.id)
def test_a_canary_looks_the_same_and_contradicts_itself(problem):
    canary = impossible(problem, 1)
    assert canary.view() == problem.view()
    first, again = canary.tests[0], canary.tests[-1]
    assert replace(first, expected=None, public=False) == replace(again, expected=None)
    assert first.expected != again.expected
    hidden = [(was, now) for was, now in zip(problem.tests, canary.tests, strict=False) if not was.public]
    assert all(was.expected != now.expected for was, now in hidden)


@pytest.mark.long
def test_a_run_is_the_same_beside_canaries_which_bound_its_reward(tmp_path, capsys):
    for name, share in (("with", 1), ("without", 0)):
        assert train_command(small(tmp_path / name, max_steps=2, canary=share)) == 0
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
    assert (
        train_command(small(tmp_path, max_steps=10, canary=0.1, reward="tests.training.test_canary:pays_a_token")) == 0
    )
    records = read_metrics(tmp_path)
    found = {finding.name: finding for finding in diagnose(records, {})}
    assert found["canary-passed"].severity == "bad"
    program = next(record["canary/program"] for record in records if record.get("canary/passed"))
    assert "def" in program
    assert program in found["canary-passed"].evidence
    assert program in capsys.readouterr().out


def test_an_answer_without_a_program_that_is_paid_in_full_is_named():
    empty = group_of([trajectory(-0.1, correctness=0.0)])
    assert empty.trajectories[0].last.code is None
    for paid, passed in ((1.0, 1), (0.9, 0)):
        objective = Objective(Reward(lambda _, paid=paid: paid))
        found = canary_metrics([empty], objective)
        assert (found["canary/passed"], found["canary/programs"]) == (passed, passed)


def knows_its_problem(trajectory: Trajectory, problem: Problem) -> float:
    """Pay for any program, where the problem and its reference solution are there."""
    return float(bool(problem.solutions[0]) and trajectory.format_ok)


def test_a_reward_may_take_the_problem_too(tmp_path):
    settings = small(tmp_path, max_steps=1, reward="tests.training.test_canary:knows_its_problem", canary=1)
    assert train_command(settings) == 0
    rewards = {row["reward"] for group in rollouts(tmp_path) for row in group["completions"]}
    assert rewards <= {1.0, -0.1}
