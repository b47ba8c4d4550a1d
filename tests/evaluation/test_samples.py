"""Files of samples made elsewhere: three layouts, told apart by their fields; anything else is refused by name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from code_rl.evaluation.samples import Sample, read_stored, sample_from_json
from code_rl.util.errors import DataError
from tests.refusals import refused

KNOWN = {"HumanEval/0": "def f(x):\n", "abc365_b": None, "sum": None}


def read(tmp_path, rows, name="samples.jsonl"):
    path = tmp_path / name
    path.write_text(json.dumps(rows) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in rows))
    return read_stored(str(path), KNOWN)


def test_evalplus_solutions_are_programs_and_completions_continue_the_prompt(tmp_path):
    stored = read(
        tmp_path,
        [{"task_id": "HumanEval/0", "solution": "def f(x): return 1"}, {"task_id": "HumanEval/0", "completion": "    return x\n"}],
    )  # fmt: skip
    assert [sample.program() for sample in stored["HumanEval/0"]] == ["def f(x): return 1", "def f(x):\n    return x\n"]
    assert [sample.sample for sample in stored["HumanEval/0"]] == [0, 1]


@pytest.mark.parametrize("name", ["custom.json", "output.jsonl"])
def test_livecodebench_code_lists_are_programs_and_an_empty_one_is_no_program(tmp_path, name):
    rows = [{"question_id": "abc365_b", "code_list": ["print(1)", ""], "output_list": ["```\nprint(1)\n```", "no"]}]
    stored = read(tmp_path, rows, name)
    assert [sample.program() for sample in stored["abc365_b"]] == ["print(1)", None]


def test_our_own_samples_come_back_with_mode_and_truncation(tmp_path):
    rows = [
        Sample("sum", "greedy", 0, completion="x", truncated=True).to_json(),
        Sample("sum", "sampled", 0, code="print(1)").to_json(),
    ]
    greedy, sampled = read(tmp_path, rows)["sum"]
    assert (greedy.mode, greedy.sample, greedy.truncated) == ("greedy", 0, True)
    assert (sampled.mode, sampled.sample, sampled.program()) == ("sampled", 0, "print(1)")


def test_one_sample_that_stands_twice_counts_once_and_another_text_of_its_number_is_refused(tmp_path):
    row = {"problem_id": "sum", "sample": 1, "code": "print(1)", "prompt_tokens": None}
    assert len(read(tmp_path, [row, row])["sum"]) == 1
    with refused("line 2", "'sum'", kind=DataError):
        read(tmp_path, [row, {**row, "code": "print(2)"}])


BAD = {
    "unknown problem": {"problem_id": "other", "code": "x"},
    "no id": {"code": "x"},
    "both texts": {"problem_id": "sum", "code": "x", "completion": "y"},
    "a text under another name": {"problem_id": "sum", "program": "x"},
    "unknown mode": {"problem_id": "sum", "code": "x", "mode": "beam"},
    "a number that is none": {"problem_id": "sum", "code": "x", "sample": -1},
    "tokens that are no number": {"problem_id": "sum", "code": "x", "prompt_tokens": "many"},
    "truncated in words": {"problem_id": "sum", "code": "x", "truncated": "no"},
    "evalplus without text": {"task_id": "HumanEval/0"},
    "a completion that continues nothing": {"task_id": "sum", "completion": "x"},
    "code_list of other things": {"question_id": "abc365_b", "code_list": [1]},
}


@pytest.mark.parametrize("name", BAD)
def test_a_row_that_is_no_sample_is_refused_with_its_line(tmp_path, name):
    with refused("line 2", kind=DataError):
        read(tmp_path, [{"problem_id": "sum", "code": "x"}, BAD[name]])


@given(st.builds(Sample, st.text(), st.sampled_from(["greedy", "sampled"]), st.integers(0, 99), st.text() | st.none()))
def test_a_sample_survives_its_line(sample):
    assert sample_from_json(json.loads(json.dumps(sample.to_json()))) == sample
