"""Rows, and the result that each framework's file makes of a verdict. No framework is needed here; the others are skipped by name where theirs is missing."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from code_rl import DataError, Problem, StdinTest
from code_rl.grading import VerdictKind
from code_rl.grading.native import parse_problem
from code_rl.integrations import rows, trl, verl
from code_rl.util.errors import SandboxError
from tests.refusals import refused

SUM = Problem("sum", "Add.", (StdinTest("1 2\n", "3\n", public=True), StdinTest("5 6\n", "11\n")))
RIGHT = "So:\n```python\nprint(sum(map(int, input().split())))\n```\n"
WRONG = "```python\nprint(3)\n```"


def test_a_row_holds_the_whole_problem_and_shows_the_policy_its_public_part():
    row = rows.to_row(SUM)
    assert parse_problem(json.loads(json.dumps(row))["problem"].encode(), "the row") == SUM
    assert "11" not in json.dumps(row["prompt"])


@pytest.mark.parametrize("answer", [RIGHT, [{"role": "assistant", "content": RIGHT}]])
def test_an_answer_is_a_text_or_messages(answer):
    assert asyncio.run(rows.verdict_of(rows.to_row(SUM)["problem"], answer)).correct


@pytest.mark.parametrize("answer", ["", "no program", [], [{"role": "assistant", "content": None}]])
def test_an_answer_without_a_program_is_wrong_and_not_ours(answer):
    verdict = asyncio.run(rows.verdict_of(rows.to_row(SUM)["problem"], answer))
    assert (verdict.kind, verdict.undecided) == (VerdictKind.NO_CODE, False)


@pytest.mark.parametrize(
    ("problem", "named"), [("{}", "the row's problem"), ("[1]", "the row's problem"), ({"id": "sum"}, "no text")]
)
def test_a_row_without_a_problem_is_a_data_error(problem, named):
    with refused(named, kind=DataError):
        asyncio.run(rows.verdict_of(problem, RIGHT))


def test_trl_gets_a_reward_a_completion_in_order():
    problem = rows.to_row(SUM)["problem"]
    answers: list[Any] = [RIGHT, [{"role": "assistant", "content": WRONG}], "none", RIGHT]
    rewards = asyncio.run(trl.code_reward(answers, problem=[problem] * 4, prompts=["?"] * 4, trainer_state=None))
    assert rewards == [1.0, 0.0, 0.0, 1.0]


def test_trl_gets_a_reward_for_messages_of_parts_and_without_content_and_none_for_no_completions():
    problem = rows.to_row(SUM)["problem"]
    parts = [{"role": "assistant", "content": [{"type": "image"}, {"type": "text", "text": RIGHT}]}]
    answers: list[Any] = [parts, [{"role": "assistant", "tool_calls": []}], []]
    assert asyncio.run(trl.code_reward(answers, problem=[problem] * 3)) == [1.0, 0.0, 0.0]
    logged: dict[str, float] = {}
    assert asyncio.run(trl.code_reward([], problem=[], log_metric=logged.__setitem__)) == []
    assert logged == {}


def test_trl_gets_none_where_the_sandbox_failed_and_hears_how_often(broken):
    broken[0] = 1
    logged: dict[str, float] = {}
    answers = [WRONG, RIGHT]
    rewards = asyncio.run(
        trl.code_reward(answers, problem=[rows.to_row(SUM)["problem"]] * 2, log_metric=logged.__setitem__)
    )
    assert rewards == [None, 1.0]
    assert logged == {"unscored": 0.5}


def test_verl_reads_its_own_row():
    row = json.loads(json.dumps(verl.to_row(SUM)))
    given = {"data_source": row["data_source"], "extra_info": row["extra_info"], "reward_router_address": ""}
    for answer, score in ((RIGHT, 1.0), (WRONG, 0.0), ("", 0.0)):
        got = asyncio.run(
            verl.compute_score(solution_str=answer, ground_truth=row["reward_model"]["ground_truth"], **given)
        )
        assert got == {"score": score, "acc": score}


def test_verl_tries_again_and_then_stops_rather_than_making_a_score_up(broken):
    truth = verl.to_row(SUM)["reward_model"]["ground_truth"]
    broken[0] = verl.ATTEMPTS - 1
    assert asyncio.run(verl.compute_score(solution_str=RIGHT, ground_truth=truth))["score"] == 1.0
    broken[0] = verl.ATTEMPTS
    with pytest.raises(SandboxError):
        asyncio.run(verl.compute_score(solution_str=RIGHT, ground_truth=truth))
