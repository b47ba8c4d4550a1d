"""Real rows of the public samples, where they are here: right programs pass, wrong ones fail, and every row is read or named."""

from __future__ import annotations

from collections import Counter

import pytest

from code_rl.loading.dataset import open_dataset
from code_rl.problems.problem import Problem
from code_rl.problems.sources.records import Skipped, item_id
from tests.corpus.rooms import data_file

NOTHING = "pass"
NOTHING_METHOD = (
    "class Solution:\n    def {0}(self, *args, **kwargs):\n        return []\ndef {0}(*args, **kwargs):\n    return []"
)

DIAGONALS = """
for _ in range(int(input())):
    n, m, k = map(int, input().split())
    if max(n, m) > k:
        print(-1)
    elif (n + m) % 2:
        print(k - 1)
    else:
        print(k - 2 * ((max(n, m) - k) % 2))
"""
BARRELS = """
for _ in range(int(input())):
    n, k = map(int, input().split())
    print(sum(sorted(map(int, input().split()))[::-1][: k + 1]))
"""
SHIRTS = """
from collections import Counter
n = int(input())
before, now = (Counter(input() for _ in range(n)) for _ in range(2))
print(sum((before - now).values()))
"""
MINIMUM_FIRST = "for _ in range(int(input())):\n    print(*sorted(map(int, input().split())))"
SQUARES_AND_CUBES = """
liked = {i * i for i in range(1, 31623)} | {i ** 3 for i in range(1, 1001)}
liked = sorted(x for x in liked if x <= 10 ** 9)
from bisect import bisect
for _ in range(int(input())):
    print(bisect(liked, int(input())))
"""
ABC = "for _ in range(int(input())):\n    print('YES' if sum(a != b for a, b in zip(input(), 'abc')) < 3 else 'NO')"
SENIORS = "class Solution:\n    def countSeniors(self, details: List[str]) -> int:\n        return sum(d[11:13] > '60' for d in details)"
WINNER = """
n, s = int(input()), input()
print(max('TA', key=lambda who: (s.count(who), -s.rindex(who) if who in s else 0)))
"""
RIGHT = [
    ("nemo_gym/code_gen_example.jsonl", 1, DIAGONALS),
    ("nemo_gym/code_gen_example.jsonl", 3, BARRELS),
    ("sandboxfusion/code_eval_code_contests.jsonl", 3, SHIRTS),
    ("sandboxfusion/code_eval_live_code_bench_v1.jsonl", 0, ABC),
    ("sandboxfusion/code_eval_live_code_bench_v1.jsonl", 1, SENIORS),
    ("sandboxfusion/code_eval_live_code_bench_v1.jsonl", 2, WINNER),
    ("rllm/codeforces.json", 0, MINIMUM_FIRST),
    ("rllm/code_contests.json", 140, SQUARES_AND_CUBES),
]
READ = {
    "apps_coderl/apps.jsonl": {"Problem": 3, "Ambiguous": 2},
    "nemo_gym/code_gen_example.jsonl": {"Problem": 5},
    "sandboxfusion/code_eval_code_contests.jsonl": {"Problem": 20},
    "sandboxfusion/code_eval_live_code_bench_v1.jsonl": {"Problem": 3},
    "sandboxfusion/code_eval_mbpp.jsonl": {"Problem": 20},
    "sandboxfusion/code_eval_bigcodebench.jsonl": {"tests_are_a_program": 20},
    "rllm/codeforces.json": {"Problem": 408},
    "rllm/code_contests.json": {"Problem": 165},
    "humanevalplus/HumanEvalPlus.jsonl.gz": {"Draft": 164},
    "mbppplus/MbppPlus.jsonl.gz": {"Draft": 378},
    "leetcode/LeetCodeDataset-v0.2.0-test.jsonl.gz": {"Problem": 200},
}
REFERENCES = {
    "apps_coderl/apps.jsonl": (0, 1, 2, 3, 4),
    "sandboxfusion/code_eval_mbpp.jsonl": (0, 19),
    "humanevalplus/HumanEvalPlus.jsonl.gz": (53,),
    "mbppplus/MbppPlus.jsonl.gz": (0, 100),
    "leetcode/LeetCodeDataset-v0.2.0-test.jsonl.gz": (100,),
}
LONG = {("apps_coderl/apps.jsonl", 4), ("humanevalplus/HumanEvalPlus.jsonl.gz", 53)}
"""Rows with thousands of runs."""
BROKEN_APPS = 3
"""Solutions among the first ten of APPS 2287 that are not Python 3."""


def opened(name):
    return open_dataset(str(data_file(name)))


def row(name, index):
    return next(opened(name).items(index))


@pytest.mark.parametrize("name", READ)
def test_every_row_is_read_or_named(name):
    items = list(opened(name))
    assert Counter(item.reason if isinstance(item, Skipped) else type(item).__name__ for item in items) == READ[name]
    assert len({item_id(item) for item in items}) == len(items)


@pytest.mark.parametrize(("name", "index", "program"), RIGHT)
def test_a_right_program_passes_and_an_empty_one_fails(court, name, index, program):
    problem = row(name, index)
    assert isinstance(problem, Problem)
    wrong = NOTHING if problem.fn_name is None else NOTHING_METHOD.format(problem.fn_name)
    assert court.verdicts(problem, program, wrong) == ["passed", "wrong_answer"]


@pytest.mark.parametrize(
    ("name", "index"),
    [
        pytest.param(name, index, marks=[pytest.mark.slow] if (name, index) in LONG else [])
        for name, rows in REFERENCES.items()
        for index in rows
    ],
)
def test_the_row_s_own_solutions_pass_and_a_function_that_returns_an_empty_list_fails(court, name, index):
    problem = court.resolve(row(name, index))
    wrong = NOTHING if problem.fn_name is None else NOTHING_METHOD.format(problem.fn_name)
    *verdicts, last = court.verdicts(problem, *problem.solutions, wrong)
    broken = verdicts.count("compile_error")
    assert verdicts.count("passed") == len(verdicts) - broken
    assert broken == (BROKEN_APPS if problem.id == "apps/2287" else 0)
    assert last == "wrong_answer"


def test_the_two_wrappings_of_apps_are_told_apart(court):
    wrapped, bare = court.resolve(row("apps_coderl/apps.jsonl", 4)), court.resolve(row("apps_coderl/apps.jsonl", 3))
    assert wrapped.meta["reading"].startswith("argument list/result in a list")
    assert wrapped.tests[0].expected is False
    assert bare.meta["reading"].startswith("argument list/result (")
    assert bare.tests[0].expected == 9
