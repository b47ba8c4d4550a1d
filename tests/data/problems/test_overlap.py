"""Held-out problems that are among those to train on."""

from __future__ import annotations

from code_rl.data import ProblemStore
from code_rl.data.order import Selected, trained_on
from code_rl.grading import Problem, StdinTest


def problem(name, statement):
    return Problem(name, statement, tests=(StdinTest("1\n", "1\n"),))


TRAIN = [problem("a", "Add two numbers."), problem("b", ""), problem("c", "Sort  a list.")]
HELD_OUT = {
    "x": [problem("a", "Something else."), problem("z", "sort a\nlist.")],
    "y": [problem("y", ""), problem("add", "Add three numbers.")],
}


def test_they_are_found_by_id_and_by_text_but_not_by_having_none():
    assert trained_on(TRAIN, HELD_OUT) == {"x": ["a", "z"], "y": []}


def test_a_part_of_a_set_counts_as_that_part():
    assert trained_on(Selected(TRAIN, [0, 1]), HELD_OUT) == {"x": ["a"], "y": []}


def test_a_store_knows_without_reading_its_problems(tmp_path, monkeypatch):
    store = ProblemStore(tmp_path / "store", "key")
    for each in TRAIN:
        store.add(each)
    store.close()
    monkeypatch.setattr(ProblemStore, "__getitem__", None)
    assert trained_on(ProblemStore(tmp_path / "store", "key"), HELD_OUT) == {"x": ["a", "z"], "y": []}
