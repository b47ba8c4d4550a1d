"""Repair: the message of a turn, the end of a conversation, the tokens that are trained on, and no completion is bought twice."""

from __future__ import annotations

import asyncio
import errno

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.grading import Problem, StdinTest
from code_rl.policy import Sampling
from code_rl.policy.completion_log import GroupLog, InFlight
from code_rl.policy.environments import Repair, Single, get_environment
from code_rl.policy.rewards import get_reward
from code_rl.training.algorithm.datums import Example, make_datum, segments
from code_rl.util.errors import ResourceError
from tests.refusals import refused

from .conversation_support import Characters, Scripted, policy, problem, program

WRONG, RIGHT = program("1"), program("7")


def roll_out(made, task=None, *, count=1, max_tokens=1000, log=None, request_per="group"):
    sampling = Sampling(max_tokens, request_per=request_per)
    return asyncio.run(made.roll_out(task or problem(), count, sampling, 5, log))


@pytest.mark.parametrize(
    ("answers", "task", "kinds", "shown"),
    [
        ([WRONG, RIGHT], problem(), ["wrong_answer", "passed"], "Input:\nPUBLIC"),
        (["I do not know", RIGHT], problem(), ["no_code", "passed"], "has no program"),
        ([WRONG], problem(), ["wrong_answer"] * 3, "Expected:\n7"),
        ([RIGHT], problem(), ["passed"], None),
        ([RIGHT, program("8")], problem(hidden="8"), ["wrong_answer"], None),
        ([WRONG, RIGHT], Problem("p", "s", (StdinTest("HIDDEN", "7"),)), ["wrong_answer"], None),
    ],
    ids=["repaired", "no program", "no turn left", "right", "only hidden tests fail", "no public test"],
)
def test_an_answer_that_fails_a_public_test_is_shown_it_and_may_be_repaired(answers, task, kinds, shown):
    sampler = Scripted(answers)
    (trajectory,) = roll_out(policy(sampler, environment=Repair(max_turns=3)), task).trajectories
    assert [turn.verdict.kind.value for turn in trajectory.turns] == kinds
    assert len(sampler.prompts) == len(kinds)
    assert shown is None or shown in sampler.prompts[1]
    assert trajectory.verdict.total == len(task.tests)
    assert get_reward("correctness").of(trajectory) == float(kinds[-1] == "passed")


def test_public_tests_that_do_not_exist_are_a_verdict_of_none_of_none():
    environment = get_environment("tests.training.broken_parts:Plain")
    (trajectory,) = roll_out(
        policy(Scripted([RIGHT]), environment=environment), Problem("p", "s", (StdinTest("HIDDEN", "7"),))
    ).trajectories
    assert (trajectory.verdict.correct, trajectory.verdict.total) == (True, 1)


@given(
    hidden=st.text(alphabet="abcdefghij", min_size=12, max_size=30),
    answers=st.lists(st.sampled_from([WRONG, "none", program("9")]), min_size=1, max_size=3),
)
def test_nothing_of_a_hidden_test_is_ever_in_a_prompt(hidden, answers):
    task = Problem("p", "s", (StdinTest("in", "7", public=True), StdinTest(hidden, hidden + "x")))
    sampler = Scripted(answers)
    roll_out(policy(sampler), task)
    assert not any(hidden in prompt for prompt in sampler.prompts)


def test_the_tokens_of_a_trajectory_are_bounded_over_its_turns():
    length = len(WRONG) + 1
    for max_tokens in (length, length + 5, 2 * length):
        (trajectory,) = roll_out(policy(Scripted([WRONG])), max_tokens=max_tokens).trajectories
        assert trajectory.length <= max_tokens
        assert len(trajectory.turns) == (1 if max_tokens == length else 2)
        assert trajectory.verdict.total == 3


def test_a_conversation_ends_where_the_context_does():
    made = policy(Scripted([WRONG]), context=len(Characters().prompt_tokens(Repair().begin(problem().view()))) + 60)
    (trajectory,) = roll_out(made).trajectories
    assert len(trajectory.turns) == 1


def test_turns_that_extend_each_other_are_one_datum_in_which_only_the_policy_is_trained():
    (trajectory,) = roll_out(policy(Scripted([WRONG, RIGHT]))).trajectories
    (segment,) = segments(trajectory.turns)
    datum = make_datum(*segment, len(segment.tokens) - len(segment.logprobs), 1.0)
    advantages = datum.loss_fn_inputs["advantages"].to_numpy()
    targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
    said = "".join(map(chr, targets[advantages == 1.0]))
    assert said == f"{WRONG}\0{RIGHT}\0"
    assert np.flatnonzero(advantages).tolist() == Example(datum, segment).sampled.tolist()


def test_turns_that_rewrite_what_came_before_are_several_datums():
    (trajectory,) = roll_out(policy(Scripted([WRONG, RIGHT]), keeps=False)).trajectories
    assert [len(each.logprobs) for each in segments(trajectory.turns)] == [len(WRONG) + 1, len(RIGHT) + 1]


@pytest.mark.parametrize("request_per", ["group", "completion"])
@pytest.mark.parametrize("cut_at", range(5))
def test_a_group_cut_anywhere_is_the_same_afterwards_and_buys_nothing_twice(tmp_path, cut_at, request_per):
    whole = Scripted([WRONG, RIGHT])
    expected = roll_out(policy(whole), count=2, request_per=request_per)
    cut = Scripted([WRONG, RIGHT], fails_at=cut_at)
    if cut_at < len(whole.prompts):
        with pytest.raises(ConnectionError):
            roll_out(policy(cut), count=2, log=InFlight(tmp_path / "kept").group_log(0, "0.0"), request_per=request_per)
    again = Scripted([WRONG, RIGHT])
    log = InFlight(tmp_path / "kept").group_log(0, "0.0")
    assert roll_out(policy(again), count=2, log=log, request_per=request_per).trajectories == expected.trajectories
    if cut_at < len(whole.prompts):
        assert len(cut.prompts) + len(again.prompts) == len(whole.prompts)


@pytest.mark.parametrize(
    ("name", "max_turns", "words"),
    [
        ("repair", 1, "max_turns=1 is too few"),
        ("single", 3, "max_turns=3 has no effect with environment=single"),
        ("repare", None, "unknown environment 'repare', did you mean 'repair'"),
        ("json:loads", None, "environment=json:loads"),
    ],
)
def test_an_environment_that_cannot_be_is_refused_by_name(name, max_turns, words):
    with refused(words):
        get_environment(name, max_turns)


class Twice(Single):
    max_turns = 2


def test_a_class_says_how_many_turns_its_conversations_have():
    assert get_environment(f"{__name__}:Twice").max_turns == 2
    assert get_environment(f"{__name__}:Twice", 3).max_turns == 3


class FullDisk(GroupLog):
    def keep_verdict(self, program, verdict):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_not_the_fault_of_an_environment():
    with pytest.raises(ResourceError, match="No space left"):
        roll_out(policy(Scripted([RIGHT]), environment=get_environment(f"{__name__}:Twice")), log=FullDisk())
