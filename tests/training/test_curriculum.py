"""The curriculum: a problem's draws follow its history, and that the history is that of the groups trained before."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.grading import Problem, StdinTest, VerdictKind
from code_rl.training.curriculum import RETIRED_STEPS, History, WeightedOrder, logged_outcomes, outcome, solve_rate
from tests.refusals import refused
from tests.training.pipeline_support import small, untimed
from tests.verbs import train_command


def order_of(count, *, lag=0, prompts=4, name="solve_rate"):
    return WeightedOrder([problem(n) for n in range(count)], name, 0, prompts, lag)


def problem(n):
    return Problem(f"p{n}", f"Statement {n}.", (StdinTest("", "1\n"),))


def batch(order, step):
    return [order.problem(step, slot, 0).id for slot in range(4)]


@pytest.mark.parametrize(("shares", "drawn"), [((1.0, 1.0), False), ((0.0, 0.0), False), ((1.0, 0.0), True)])
def test_a_problem_that_is_always_or_never_solved_is_retired_and_comes_back(shares, drawn):
    history = History()
    for step, share in enumerate(shares):
        history = history.after(step, share)
    assert (solve_rate(history, 2) > 0) is drawn
    assert 0 < solve_rate(history, 2 + RETIRED_STEPS) <= 0.25


def test_half_solved_problems_are_drawn_most():
    order = order_of(40, prompts=4)
    for n in range(40):
        order.observe(0, [(f"p{n}", 0.5 if n < 20 else 1.0)])
    counts = Counter(int(name[1:]) < 20 for step in range(1, 200) for name in batch(order, step))
    # p is 1/2 and 1: weights 0.25 and 0.05.
    assert counts[True] / counts.total() == pytest.approx(5 / 6, abs=0.06)


def test_a_batch_has_no_problem_twice_while_there_are_enough():
    order = order_of(6)
    for step in range(30):
        assert len(set(batch(order, step))) == 4
        order.observe(step, [(f"p{n}", 1.0) for n in range(5)])  # all but one retired: others return early
    assert order.measured(29)["curriculum/retired"] == 5


def test_weights_of_any_size_are_shares():
    order = order_of(6, name="tests.training.test_curriculum:huge")
    assert order.draw(0).weights.tolist() == pytest.approx([1 / 6] * 6)


@given(st.integers(0, 3), st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=2, max_size=2), max_size=8))
def test_draws_depend_on_the_groups_trained_before_the_batch_began_alone(lag, found):
    """A run that learns of each step when it is trained, and one that is told of all of them at once, as on resume."""
    live, resumed, last = order_of(5, lag=lag), order_of(5, lag=lag), len(found)
    for step, shares in enumerate(found):
        resumed.observe(step, [(f"p{n}", share) for n, share in enumerate(shares)])
    for step in range(last + lag + 1):  # batch n begins when step n − lag − 1 has been trained
        if 0 <= (trained := step - lag - 1) < last:
            live.observe(trained, [(f"p{n}", share) for n, share in enumerate(found[trained])])
        if step >= last:
            assert batch(live, step) == batch(resumed, step)
            assert live.measured(step) == resumed.measured(step)


def test_the_outcome_of_a_group_leaves_undecided_verdicts_out():
    kinds = (VerdictKind.PASSED, VerdictKind.WRONG_ANSWER, VerdictKind.SANDBOX_ERROR)
    assert outcome("p", kinds) == [("p", 0.5)]
    assert outcome("p", kinds[2:]) == []


@pytest.mark.parametrize("name", ["nope", "tests.newcomer:REINFORCE", "tests.training.test_curriculum:negative"])
def test_what_is_no_curriculum_is_refused_by_name(tmp_path, name):
    with refused("curriculum", name):
        train_command(small(tmp_path, curriculum=name))


def negative(history, step):
    return -1.0


def huge(history, step):
    return 1e308


@pytest.mark.long
def test_a_run_draws_by_a_curriculum_and_shows_it(tmp_path):
    trained = small(tmp_path / "run", curriculum="tests.newcomer:frontier", max_steps=3, dynamic_sampling=1)
    assert train_command(trained) == 0
    steps = untimed(tmp_path / "run")
    found = logged_outcomes(tmp_path / "run" / "rollouts.jsonl")
    assert steps[0]["curriculum/seen"] == 0
    assert steps[2]["curriculum/seen"] == len({key for step in (0, 1) for key, _ in found[step]})
