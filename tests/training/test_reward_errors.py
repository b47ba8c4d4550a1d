"""The error bar of a run's reward: its bound falls with evidence, rises with paid wrong programs, and an alarm names one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from code_rl.grading import Problem, StdinTest, Verdict, VerdictKind, judge_async
from code_rl.policy import Trajectory
from code_rl.training import read_metrics
from code_rl.training.objective import ScoredGroup
from code_rl.training.reward_errors import passes_public, reward_metrics, second_judgment
from code_rl.util.rates import wilson
from tests.boxes import shared_box
from tests.training.pipeline_support import small
from tests.training.report.run_folders import findings, overview
from tests.training.rollout_support import group_of, trajectory
from tests.verbs import train_command

TESTS = tuple(StdinTest(str(n), str(n), public=n < 2) for n in range(4))
PROBLEM = Problem("echo", "Print the line.", TESTS)


def scored(*rewards: float | None) -> ScoredGroup:
    """A group of wrong programs with these rewards."""
    group = group_of([trajectory(0.0) for _ in rewards])
    return ScoredGroup(group, rewards, rewards, (None,) * len(rewards), None, (None,) * len(rewards))


def canaries(programs: int, passed: int = 0) -> dict[str, Any]:
    return {"canary/groups": programs, "canary/programs": programs, "canary/passed": passed, "groups_total": 10}


def test_without_evidence_there_is_no_bound() -> None:
    metrics = reward_metrics([scored(0.0, 0.0)], [{"groups_total": 1}])
    assert (metrics["reward/wrong"], metrics["reward/wrong_paid"], metrics["reward/fpr_upper"]) == (2, 0, None)


def test_the_bound_falls_as_canaries_fail_and_rises_when_one_passes() -> None:
    few, many, fooled = (
        reward_metrics([scored(0.0)], logged)["reward/fpr_upper"]
        for logged in ([canaries(10)], [canaries(10)] * 10, [canaries(10)] * 9 + [canaries(10, 5)])
    )
    assert few == pytest.approx(wilson(0, 10)[1])
    assert many == pytest.approx(wilson(0, 100)[1])
    assert many < fooled == pytest.approx(wilson(5, 100)[1])


def test_programs_that_fail_and_are_paid_count_over_the_whole_run() -> None:
    first = reward_metrics([scored(1.0, 0.0, None)], [canaries(1000)])
    assert (first["reward/wrong"], first["reward/wrong_paid"]) == (2, 1)
    assert first["reward/wrong_program"] == "pass"
    then = reward_metrics([scored(0.0)], [canaries(1000) | first, canaries(1000)])
    assert then["reward/wrong_paid"] == 0
    assert then["reward/fpr_upper"] > 1 / 3


def wrong_at(number: int, problem: Problem) -> Verdict:
    """The verdict on a program that is wrong where this number is the input."""
    return asyncio.run(judge_async(problem, f"n = int(input())\nprint(n if n != {number} else -1)", shared_box()))


@pytest.mark.parametrize(("failed", "passes"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_program_passes_the_public_tests_if_its_first_failure_is_after_them(failed: int, passes: bool) -> None:
    assert passes_public(PROBLEM, wrong_at(failed, PROBLEM)) is passes


def test_a_public_test_after_the_failure_proves_nothing() -> None:
    problem = Problem("late", "late", TESTS[::-1])
    assert passes_public(problem, wrong_at(3, problem)) is None
    assert passes_public(problem, Verdict(VerdictKind.NO_CODE, 0, 4, "lcb", None)) is False


def test_groups_without_a_wrong_program_are_no_evidence() -> None:
    right = [ScoredGroup(group_of([trajectory(1.0)]), (1.0,), (0.0,), (None,), None, (None,)) for _ in range(15)]
    alone, beside = (reward_metrics([scored(1.0, 0.0), *more], [{}])["reward/fpr_upper"] for more in ([], right))
    assert alone == beside


def pays_every_program(trajectory: Trajectory) -> float:
    """A planted fault: the verdict is not looked at."""
    return float(trajectory.format_ok)


@pytest.mark.long
def test_a_reward_against_the_verdict_raises_an_alarm_with_a_program(tmp_path, capsys) -> None:
    settings = small(tmp_path, max_steps=2, reward="tests.training.test_reward_errors:pays_every_program")
    assert train_command(settings) == 0
    records = [record for record in read_metrics(tmp_path) if record["step"] >= 0]
    assert all(record["reward/wrong_paid"] == record["reward/wrong"] for record in records)
    assert records[-1]["reward/fpr_upper"] == 1
    found = findings(overview(tmp_path))["wrong-paid"]
    program = next(record["reward/wrong_program"] for record in records if record["reward/wrong_paid"])
    assert program in found["evidence"]
    assert capsys.readouterr().out.count(program) >= 1


@pytest.mark.parametrize(("code", "unstable"), [("print(input())", 0), ("print('other words')", 1)])
def test_a_program_that_passed_is_judged_once_more(code: str, unstable: int) -> None:
    passed = trajectory(1.0)
    group = replace(
        group_of([trajectory(0.0), replace(passed, turns=(replace(passed.last, code=code),))]), problem=PROBLEM
    )
    groups = [scored(0.0), ScoredGroup(group, (0.0, 1.0), (-0.5, 0.5), (None, None), None, (None, None))]
    again = asyncio.run(second_judgment(groups, shared_box(), 5.0))
    assert again == {"reward/judged_twice": 1, "reward/unstable": unstable}
    assert asyncio.run(second_judgment([scored(0.0)], shared_box(), 5.0)) == {}
