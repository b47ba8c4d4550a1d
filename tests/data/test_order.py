"""Problem order and subsamples: every problem once an epoch, any position found directly, the built-in splits apart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from code_rl.data import ProblemOrder, subsample
from code_rl.grading import Problem, StdinTest


def problems(count: int) -> list[Problem]:
    return [Problem(str(index), "s", (StdinTest("", ""),)) for index in range(count)]


@given(st.integers(1, 20), st.integers(0, 5), st.integers(0, 3))
def test_every_epoch_holds_every_problem_once(size, seed, epoch):
    batch = ProblemOrder(problems(size), seed).batch(epoch * size, size)
    assert sorted(int(problem.id) for problem in batch) == list(range(size))


@given(st.integers(1, 20), st.integers(0, 60), st.integers(0, 30), st.integers(1, 10))
def test_a_batch_is_the_same_whether_or_not_earlier_ones_were_drawn(size, seed, offset, count):
    fresh = ProblemOrder(problems(size), seed).batch(offset, count)
    used = ProblemOrder(problems(size), seed)
    stream = [used.batch(position, 1)[0] for position in range(offset + count)]
    assert fresh == stream[offset:]


def test_epochs_and_seeds_differ():
    first = ProblemOrder(problems(50), 0)
    assert first.batch(0, 50) != first.batch(50, 50)
    assert first.batch(0, 50) != ProblemOrder(problems(50), 1).batch(0, 50)


@given(st.integers(1, 50), st.integers(-1, 60))
def test_subsample_is_fixed_ordered_and_no_larger_than_asked(size, limit):
    chosen = subsample(problems(size), limit)
    assert list(chosen) == list(subsample(problems(size), limit))
    assert len(chosen) == (size if limit < 0 else min(size, limit))
    ids = [int(problem.id) for problem in chosen]
    assert ids == sorted(set(ids))
