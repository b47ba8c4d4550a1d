"""Rows with values that no program could return."""

from __future__ import annotations

import asyncio
import json

from code_rl.data.dataset import open_dataset
from code_rl.data.load import load_dataset
from code_rl.data.preparation.workspace import measure
from code_rl.grading.problem import CallTest
from code_rl.grading.values import MAX_DEPTH
from tests.boxes import shared_box


def row(name: str, depth: int, kind: str = "list") -> str:
    nested: object = 1
    for _ in range(depth):
        nested = [nested, 2] if kind == "list" else {"k": nested}
    tests = {"fn_name": "f", "inputs": [[1]], "outputs": [nested]}
    return json.dumps({"id": name, "question": name, "input_output": json.dumps(tests)}) + "\n"


def test_a_row_whose_expected_value_is_nested_too_deeply_is_left_out_by_name(tmp_path, monkeypatch):
    monkeypatch.setenv("CODE_RL_CACHE", str(tmp_path / "cache"))
    rows = tmp_path / "rows.jsonl"
    deeper = row("more", MAX_DEPTH + 1) + row("far more", 450, "dict")
    rows.write_text(row("most", MAX_DEPTH) + deeper)
    store = asyncio.run(load_dataset(open_dataset(str(rows)), shared_box(), lambda _: None))
    assert len(store) == 1
    assert store.left_out() == {"value_not_plain": 2}


def test_the_deepest_values_that_a_problem_may_have_are_measured():
    deep: object = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    size, _ = measure(CallTest((deep,), deep), hashed=True)
    assert size == 2 * (2 * MAX_DEPTH + 1) + 2
