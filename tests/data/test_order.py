"""Problem order, subsamples, and held-out problems that are among those to train on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from code_rl.data import ProblemOrder, ProblemStore, subsample, trained_on
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


def problem(name, statement):
    return Problem(name, statement, tests=(StdinTest("1\n", "1\n"),))


TRAIN = [problem("a", "Add two numbers."), problem("b", ""), problem("c", "Sort  a list.")]
HELD_OUT = {
    "x": [problem("a", "Something else."), problem("z", "sort a\nlist.")],
    "y": [problem("y", ""), problem("add", "Add three numbers.")],
}


def test_problems_trained_on_are_found_by_id_and_by_text_but_not_by_having_none():
    assert trained_on(TRAIN, HELD_OUT) == {"x": ["a", "z"], "y": []}


def test_a_part_of_a_set_counts_as_that_part():
    part = subsample(TRAIN, 1)
    assert trained_on(part, HELD_OUT)["x"] == {"a": ["a"], "b": [], "c": ["z"]}[part[0].id]


def test_a_store_knows_without_reading_its_problems(tmp_path, monkeypatch):
    store = ProblemStore(tmp_path / "store", "key")
    for each in TRAIN:
        store.add(each)
    store.close()
    monkeypatch.setattr(ProblemStore, "__getitem__", None)
    assert trained_on(ProblemStore(tmp_path / "store", "key"), HELD_OUT) == {"x": ["a", "z"], "y": []}
