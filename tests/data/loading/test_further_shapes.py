"""verl: rows as published become problems, or say why not."""

from __future__ import annotations

import json
from typing import Any

import pytest

from code_rl.data.sources.records import Ambiguous, Origin, Skipped, item_id
from code_rl.data.sources.shapes import read_row
from code_rl.grading.problem import StdinTest

VERL: dict[str, Any] = {
    "data_source": "taco",
    "prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "Print the double."}],
    "ability": "code",
    "reward_model": {
        "style": "rule",
        "ground_truth": json.dumps({"inputs": ["1\n", "4\n"], "outputs": ["2\n", "8\n"]}),
    },
    "extra_info": {"split": "train", "index": 3},
}


def read(row):
    return read_row(row, Origin("set", "set/train", 0))


def test_verl_ground_truth_is_tests_in_any_shape_and_the_user_s_last_words_the_statement():
    problem = read(VERL)
    assert (problem.id, problem.statement, problem.source) == ("set/train/0", "Print the double.", "taco")
    assert problem.tests == (StdinTest("1\n", "2\n"), StdinTest("4\n", "8\n"))
    calls = [{"type": "function_call", "fn_name": "f", "input": [1], "output": [2]}]
    truth = {"ground_truth": json.dumps(calls)}
    assert isinstance(read({**VERL, "reward_model": truth}), Ambiguous)


def test_verl_rows_of_several_sets_that_count_from_nothing_each_keep_ids_of_their_own():
    assert {item_id(read_row(VERL, Origin("set", "set/train", place))) for place in (0, 1)} == {
        "set/train/0",
        "set/train/1",
    }


@pytest.mark.parametrize("truth", ["42", "\\boxed{4}", '"text"', '{"functional": "assert f(1) == 2"}', None])
def test_verl_rows_without_tests_say_so(truth):
    found = read({**VERL, "reward_model": {"style": "rule", "ground_truth": truth}})
    assert isinstance(found, Skipped)
    assert found.reason == "not_tests"
