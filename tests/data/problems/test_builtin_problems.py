"""Built-in problems: the reference answers are right, the tests catch the usual mistakes, and nothing depends on history."""

import asyncio
import contextlib
import io
import sys
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from code_rl.data.builtin import SPLITS, BuiltinTrainSet, draw_problem
from code_rl.grading import CallTest, judge_async
from tests.boxes import shared_box

TRAIN = "train"
ALL_SPLITS = (TRAIN, *SPLITS)


@cache
def sample():
    return [draw_problem(split, 77, index) for split in ALL_SPLITS for index in range(150)]


def run_trusted(problem, code):
    """Outputs of one of our own programs on the problem's tests, in this process."""
    outputs = []
    for test in problem.tests:
        scope: dict[str, Any] = {"__name__": "__main__"}
        if isinstance(test, CallTest):
            exec(code, scope)
            outputs.append(scope["Solution"]().solve(*test.args))
            continue
        printed, stdin = io.StringIO(), sys.stdin
        sys.stdin = io.StringIO(test.input)
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, scope)
        finally:
            sys.stdin = stdin
        outputs.append(printed.getvalue())
    return outputs


@pytest.mark.long
def test_reference_solutions_give_exactly_the_expected_outputs():
    for _, problem in sample():
        assert run_trusted(problem, problem.solutions[0]) == [test.expected for test in problem.tests], problem.id


@pytest.mark.parametrize("word", [False, True])
def test_code_and_function_of_every_primitive_agree(word):
    """The text that solutions are made of means the same as the function that computes expected outputs, for every value of its constant."""
    values = "abcdefghijklmnopqrstuvwxyz" if word else list(range(-110, 131))
    whole = ["", "a", "banana", "kitten"] if word else [[], [3], [2, 2, -5, 9], list(range(-7, 12))]
    inputs = (values, whole if word else values, whole)
    drawn = {
        (index, part.name): part
        for spec, _ in sample()
        if (spec.source == "word") == word
        for index, part in enumerate(spec.parts)
    }
    assert len(drawn) >= 16
    for (index, _), part in drawn.items():
        name = "x" if inputs[index] is values else "b"
        for const in part.domain or [None]:
            meaning = eval(f"lambda {name}: " + part.code.format(x=name, b=name, k=const))
            for value in inputs[index]:
                assert meaning(value) == part.fn(value, const), (part.name, const, value)


def test_every_problem_has_public_tests_first_and_mostly_hidden_ones():
    for _, problem in sample():
        assert len(problem.tests) == 8
        assert [test.public for test in problem.tests] == [True] * 2 + [False] * 6
        assert len(problem.view().public_tests) == 2


@given(st.sampled_from(ALL_SPLITS), st.integers(0, 10**9), st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_a_problem_depends_on_split_seed_and_index_alone(split, seed, index):
    first = draw_problem(split, seed, index)
    draw_problem(TRAIN, seed + 1, index)
    assert draw_problem(split, seed, index) == first


def test_training_set_is_a_finite_sequence():
    problems = BuiltinTrainSet(size=10)
    assert len(problems) == 10
    assert problems[-1] == problems[9]
    assert [problem.id for problem in problems[2:5]] == [problems[i].id for i in (2, 3, 4)]
    assert len({problem.id for problem in problems}) == 10
    for outside in (10, -11):
        with pytest.raises(IndexError):
            problems[outside]


def test_training_sets_of_other_seeds_are_other_problems():
    one, two = BuiltinTrainSet(size=50), BuiltinTrainSet(size=50, seed=1)
    assert sum(a.statement == b.statement for a, b in zip(one, two, strict=True)) < 5


def test_reference_solutions_pass_and_unguarded_ones_fail_in_the_real_sandbox():
    chosen = [(spec, problem) for spec, problem in sample() if spec.reduce == "max"][:6] + sample()[::60]

    async def verdicts():
        for _, problem in chosen:
            (right,) = problem.solutions
            for program in (right, right.replace(", default=0", "")):
                yield await judge_async(problem, program, shared_box())

    async def collected():
        return [verdict.correct async for verdict in verdicts()]

    found = asyncio.run(collected())
    assert all(found[::2])
    assert found[1::2] == [spec.reduce not in ("max", "min") for spec, _ in chosen]
