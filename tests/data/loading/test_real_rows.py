"""Real rows of the public samples, where they are here: right programs pass, wrong ones fail, and every row is read or named."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import pytest

from code_rl.data import open_dataset
from tests.data.loading.raw_rows import problem_in
from tests.grading.corpus.reading import read_rows
from tests.grading.corpus.rooms import data_file

NOTHING = "pass"
NOTHING_METHOD = (
    "class Solution:\n    def {0}(self, *args, **kwargs):\n        return []\ndef {0}(*args, **kwargs):\n    return []"
)

MINIMUM_FIRST = "for _ in range(int(input())):\n    print(*sorted(map(int, input().split())))"
SQUARES_AND_CUBES = """
liked = {i * i for i in range(1, 31623)} | {i ** 3 for i in range(1, 1001)}
liked = sorted(x for x in liked if x <= 10 ** 9)
from bisect import bisect
for _ in range(int(input())):
    print(bisect(liked, int(input())))
"""
RIGHT = [
    ("rllm/codeforces.json", 0, MINIMUM_FIRST),
    ("rllm/code_contests.json", 140, SQUARES_AND_CUBES),
]
READ = {
    "apps_coderl/apps.jsonl": {"Problem": 3, "Ambiguous": 2},
    "rllm/codeforces.json": {"Problem": 408},
    "rllm/code_contests.json": {"Problem": 165},
    "open_instruct/acecode_sample.jsonl": {"Problem": 1},
    "nemo_gym/code_gen_example.jsonl": {"Problem": 5},
    "humanevalplus/HumanEvalPlus.jsonl.gz": {"Draft": 164},
    "mbppplus/MbppPlus.jsonl.gz": {"Draft": 378},
    "leetcode/LeetCodeDataset-v0.2.0-test.jsonl.gz": {"Problem": 200},
}
REFERENCES = {
    "apps_coderl/apps.jsonl": (0, 1, 2, 3, 4),
    "open_instruct/acecode_sample.jsonl": (0,),
    "humanevalplus/HumanEvalPlus.jsonl.gz": (53,),
    "mbppplus/MbppPlus.jsonl.gz": (0, 100),
    "leetcode/LeetCodeDataset-v0.2.0-test.jsonl.gz": (100,),
}
LONG = {("apps_coderl/apps.jsonl", 4), ("humanevalplus/HumanEvalPlus.jsonl.gz", 53)}
"""Rows with thousands of runs."""
BROKEN_APPS = 3
"""Solutions among the first ten of APPS 2287 that are not Python 3."""


def problem_of(court, name, index):
    return court.problem(next(islice(read_rows(data_file(name)), index, None)))


def wrong_for(problem):
    return NOTHING if problem.fn_name is None else NOTHING_METHOD.format(problem.fn_name)


@pytest.mark.long
@pytest.mark.parametrize("name", READ)
def test_every_row_is_read_or_named(name):
    items = list(open_dataset(str(data_file(name))))
    assert Counter(type(item).__name__ for item in items) == READ[name]
    assert len({problem_in(item).id for item in items}) == len(items)


@pytest.mark.long
@pytest.mark.parametrize(("name", "index", "program"), RIGHT)
def test_a_right_program_passes_and_an_empty_one_fails(court, name, index, program):
    problem = problem_of(court, name, index)
    assert court.verdicts(problem, program, wrong_for(problem)) == ["passed", "wrong_answer"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "index"),
    [
        pytest.param(name, index, marks=[pytest.mark.slow] if (name, index) in LONG else [])
        for name, rows in REFERENCES.items()
        for index in rows
    ],
)
def test_the_row_s_own_solutions_pass_and_a_function_that_returns_an_empty_list_fails(court, name, index):
    problem = problem_of(court, name, index)
    *verdicts, last = court.verdicts(problem, *problem.solutions, wrong_for(problem))
    broken = verdicts.count("compile_error")
    assert verdicts.count("passed") == len(verdicts) - broken
    assert broken == (BROKEN_APPS if problem.id == "set/2287" else 0)
    assert last == "wrong_answer"


def test_the_two_wrappings_of_apps_are_told_apart(court):
    wrapped, bare = (problem_of(court, "apps_coderl/apps.jsonl", index) for index in (4, 3))
    assert wrapped.meta["reading"].startswith("argument list/result in a list")
    assert wrapped.tests[0].expected is False
    assert bare.meta["reading"].startswith("argument list/result (")
    assert bare.tests[0].expected == 9
