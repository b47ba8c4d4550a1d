"""Held-out problems that are among those to train on."""

from __future__ import annotations

import asyncio

from code_rl.loading.pack import write_pack
from code_rl.problems.order import Selected
from code_rl.problems.overlap import trained_on
from code_rl.problems.problem import Problem, StdinTest


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


def test_a_pack_knows_without_reading_its_problems(tmp_path, monkeypatch):
    async def items():
        for each in TRAIN:
            yield each

    pack = asyncio.run(write_pack(tmp_path / "pack", items(), {}))
    monkeypatch.setattr(type(pack), "__getitem__", None)
    assert trained_on(pack, HELD_OUT) == {"x": ["a", "z"], "y": []}
