"""The evaluator with a policy: its environment counts, a cut buys nothing twice, the loop and a folder agree, a large split is held in parts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from code_rl.evaluation import evaluate
from code_rl.evaluation.generators import EvalEntry, PolicyGenerator
from code_rl.evaluation.runner import Evaluation, Plan
from code_rl.evaluation.samples import Folder
from code_rl.grading import Problem
from code_rl.policy import Group, Sampling
from code_rl.policy.environments import Repair, Reply, Single
from tests.policy.conversation_support import Echo, Scripted, policy, problem, program
from tests.training.rollout_support import PROBLEM, group_of, trajectory

WRONG, RIGHT = program("1"), program("7")
LARGE = 1000
TASKS = {name: replace(problem(), id=name) for name in ("a", "b")}
ENTRIES = [EvalEntry(name, "test", index) for index, name in enumerate(TASKS)]


def in_folder(made, out, messages=lambda _: None, plan=None):
    """`code-rl eval` on two problems, with one greedy answer each unless planned otherwise."""
    asked = PolicyGenerator(made, Sampling(1000), at_once=1)
    plan = plan or Plan(0, greedy=True, seed=0)

    def ask(entry):
        return TASKS[entry.problem_id], messages(TASKS[entry.problem_id])

    return asyncio.run(Evaluation(ENTRIES, ask, asked, plan, Echo(), Folder(out)).run())


def in_loop(made, samples=0):
    splits = {"test": list(TASKS.values())}
    return asyncio.run(evaluate(made, splits, samples=samples, sampling=Sampling(1000), seed=0))["test"]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("environment", "right"), [(Repair(), 1.0), (Single(), 0.0)])
def test_the_environment_decides_what_follows_an_answer_in_both(tmp_path, environment, right):
    found = in_folder(policy(Scripted([WRONG, RIGHT]), environment=environment), tmp_path)
    looped = in_loop(policy(Scripted([WRONG, RIGHT]), environment=environment))
    assert [outcome.correct for outcome in found.outcomes.values()] == [right] * 2
    assert looped.greedy.pass_at[1].value == right
    assert sum(outcome.completion_tokens for outcome in found.outcomes.values()) == looped.greedy.completion_tokens
    assert sum(outcome.prompt_tokens for outcome in found.outcomes.values()) == looped.greedy.prompt_tokens


def test_the_wording_of_a_benchmark_begins_the_conversation_and_the_environment_goes_on(tmp_path):
    sampler = Scripted([WRONG, RIGHT])
    wording = [{"role": "system", "content": "SYSTEM"}, {"role": "user", "content": "WORDING"}]
    found = in_folder(policy(sampler), tmp_path, messages=lambda _: wording)
    assert all("SYSTEM" in prompt and "WORDING" in prompt and "Print it." not in prompt for prompt in sampler.prompts)
    assert sum("PUBLIC" in prompt for prompt in sampler.prompts) == 2
    assert all(outcome.correct for outcome in found.outcomes.values())


@pytest.mark.parametrize("cut_at", range(4))
def test_a_policy_that_is_cut_in_a_conversation_is_asked_only_for_the_rest(tmp_path, cut_at):
    with pytest.raises(ConnectionError):
        in_folder(policy(Scripted([WRONG, RIGHT], fails_at=cut_at)), tmp_path)
    again = Scripted([WRONG, RIGHT])
    found = in_folder(policy(again), tmp_path)
    assert len(again.prompts) == 4 - cut_at
    assert all(outcome.correct for outcome in found.outcomes.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["samples.jsonl", "verdicts.jsonl"]


def test_a_prompt_that_fills_the_context_gives_an_empty_answer_in_both(tmp_path):
    sampler = Scripted([RIGHT])
    (outcome, _) = in_folder(policy(sampler, context=20), tmp_path).outcomes.values()
    greedy = in_loop(policy(sampler, context=20)).greedy
    assert sampler.prompts == []
    assert (outcome.kind.value, outcome.truncated, outcome.format_ok) == ("no_code", True, False)
    assert (greedy.verdicts, greedy.truncated_rate, greedy.format_rate) == ({"no_code": 2}, 1.0, 0.0)
    assert greedy.prompt_tokens == 2 * outcome.prompt_tokens > 0
    assert lines(tmp_path / "samples.jsonl")[0]["completion"] == ""


class Bare(Single):
    """Answers are programs as they are, without a fence."""

    async def reply(self, problem, conversation, grader):
        code = conversation[-1]["content"]
        return Reply(code, await grader.judge(code))


def test_an_environment_that_finds_programs_in_its_own_way_is_believed(tmp_path):
    found = in_folder(policy(Scripted(["7"]), environment=Bare()), tmp_path)
    assert all(outcome.correct and outcome.format_ok for outcome in found.outcomes.values())
    assert in_loop(policy(Scripted(["7"]), environment=Bare())).greedy.format_rate == 1.0
    assert [row["code"] for row in lines(tmp_path / "samples.jsonl")] == ["7", "7"]


class Answering:
    """Every second problem is solved, and the groups in flight are counted."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.seeds: list[int] = []

    async def roll_out(self, problem: Problem, count: int, sampling: Sampling, seed: int, *kept: object) -> Group:
        self.now += 1
        self.most = max(self.most, self.now)
        self.seeds.append(seed)
        await asyncio.sleep(0.0001 * (seed % 7))
        self.now -= 1
        return group_of([trajectory(float(problem.id == "right"))] * count)


class Loading(Sequence[Problem]):
    """A split on disk: problems exist only when asked for."""

    def __init__(self, size: int, policy: Answering) -> None:
        self._size, self._policy, self.ahead = size, policy, 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index):
        self.ahead = max(self.ahead, self._policy.now + 1)
        return Problem(id="right" if index % 2 else "wrong", statement="s", tests=PROBLEM.tests)


def test_a_large_split_is_asked_a_part_at_a_time_and_every_group_counts():
    policy: Any = Answering()
    splits = {"large": Loading(LARGE, policy), "small": Loading(8, policy)}
    results = asyncio.run(evaluate(policy, splits, samples=2, sampling=Sampling(8), seed=0))
    assert policy.most == splits["large"].ahead < LARGE / 2
    assert len(policy.seeds) == 2 * (LARGE + 8)
    assert {name: result.greedy.problems for name, result in results.items()} == {"large": LARGE, "small": 8}
    assert all(f.pass_at[1].value == 0.5 for result in results.values() for f in (result.greedy, result.sampled))
