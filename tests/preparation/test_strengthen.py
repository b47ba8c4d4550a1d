"""Tests made stronger: new inputs that every known right solution agrees on, and nothing else."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from code_rl.cli import main
from code_rl.preparation.verification.inputs import conditioned, mutated, mutated_texts
from code_rl.preparation.verification.strengthen import (
    CONDITIONED,
    DOUBTED,
    FEW,
    MANY,
    NOTHING,
    Agreed,
    agreed_tests,
    failed,
)
from code_rl.preparation.verification.traits import Conditions
from code_rl.preparation.verification.trials import mutants
from code_rl.problems.native import write_problems
from code_rl.problems.problem import CallTest, Compare, Problem, SequenceTest, StdinTest, TestCase
from tests.corpus.reading import read_problems
from tests.corpus.rooms import room
from tests.preparation.test_resume import finish, kill_at

LOOP = "n = int(input())\nv = list(map(int, input().split()))\nprint(max(v))\n"
SCAN = "input()\nbest = None\nfor x in map(int, input().split()):\n    if best is None or x > best:\n        best = x\nprint(best)\n"
SORTED = "import sys\nd = sys.stdin.read().split()\nprint(sorted(map(int, d[1:]))[-1])\n"
LAST = "input()\nprint(input().split()[-1])\n"
LISTS = ([2, 1, 3], [5], [2, -4, 9, 10], [7, 7], [0, 3])
MAX = Problem(
    "max",
    "Print the largest of the numbers on the second line; the first says how many there are.",
    tuple(StdinTest(f"{len(v)}\n{' '.join(map(str, v))}\n", f"{max(v)}\n", public=i < 1) for i, v in enumerate(LISTS)),
    solutions=(LOOP, SCAN, SORTED),
    meta={"wrong_solutions": [LAST]},
)
ABOVE = Problem(
    "above",
    "Return the items of a list that are strictly above k, in the order in which they stand.",
    tuple(CallTest((v, k), [x for x in v if x > k]) for v, k in (([1, 2, 3], 2), ([5, 9, 9], 0), ([], 3), ([4, 4, 1, 0], 3))),
    fn_name="f",
    solutions=(
        "def f(v, k):\n    return [x for x in v if x > k]\n",
        "from itertools import compress\ndef f(v, k):\n    return list(compress(v, [x - k > 0 for x in v]))\n",
        "def f(v, k):\n    if not v:\n        return []\n    return [v[0]] + f(v[1:], k) if v[0] > k else f(v[1:], k)\n",
    ),
    meta={"wrong_solutions": ["def f(v, k):\n    return sorted(x for x in v if x > k)\n"]},
)  # fmt: skip


ONE_IDEA = (
    ABOVE.solutions[0],
    "def f(numbers, bound):\n    found = []\n    for number in numbers:\n        if bound < number:\n            found.append(number)\n    return found\n",
    "def f(v, k):\n    return list(filter(lambda x: not x <= k, v))\n",
    "def f(v, k):\n    r = []\n    i = 0\n    while i < len(v):\n        if v[i] <= k:\n            i += 1\n            continue\n        r += [v[i]]\n        i += 1\n    return r\n",
    "class Solution:\n    def f(self, v, k):\n        out: list[int] = []\n        for i in range(len(v)):\n            if v[i] > k:\n                out.append(v[i])\n        return out\n",
)


def agreed(problem: Problem, *solutions: str, count: int = 32) -> Agreed:
    async def run() -> Agreed:
        async with room("auto") as executor:
            return await agreed_tests(problem, solutions or problem.solutions, executor, "seed", count)

    return asyncio.run(run())


def fails(problem: Problem, tests: tuple[TestCase, ...], code: str) -> set[int]:
    async def run() -> set[int]:
        async with room("auto") as executor:
            return await failed(problem, tests, code, executor)

    return asyncio.run(run())


@pytest.mark.parametrize("problem", [MAX, ABOVE], ids=lambda problem: problem.id)
def test_a_wrong_program_that_passes_weak_tests_fails_new_ones_and_right_ones_do_not(problem: Problem) -> None:
    found = agreed(problem)
    wrong = problem.meta["wrong_solutions"][0]
    assert fails(problem, problem.tests, wrong) == set()
    assert fails(problem, found.tests, wrong)
    for code in problem.solutions:
        assert fails(problem, found.tests, code) == set()
    assert not any(test.public for test in found.tests)


CRASHING = LOOP.replace("print(max(v))", "assert v[0] <= v[-1]\nprint(max(v))")


@pytest.mark.parametrize("solutions", [(CRASHING, SCAN, SORTED), (LOOP, SCAN, SORTED, LAST)], ids=["crash", "other answer"])  # fmt: skip
def test_where_one_solution_has_no_answer_or_another_no_new_input_is_believed(solutions: tuple[str, ...]) -> None:
    found = agreed(MAX, *solutions)
    assert found.disputed > 0
    assert (found.tests, found.why) == ((), DOUBTED)


def brackets(rng: random.Random) -> str:
    text = ""
    while not text or text.count("(") > text.count(")"):
        opens = text.count("(") == text.count(")") or (len(text) < 8 and rng.random() < 0.6)
        text += "(" if opens else ")"
    return text


CONDITIONS: dict[str, tuple[str, list[str], tuple[str, ...]]] = {
    "marks": (
        "Print the greatest depth of the text as one number.",
        [brackets(random.Random(seed)) + "\n" for seed in range(6)],
        (
            "s = input()\nd = m = 0\nfor c in s:\n    if c == '(':\n        d += 1\n        m = max(m, d)\n    else:\n        d -= 1\nprint(m)\n",
            "b = c = 0\nfor x in input().strip():\n    c += 1 if x == '(' else -1\n    b = max(b, c)\nprint(b)\n",
            "from itertools import accumulate\nprint(max(0, *accumulate(1 if c == '(' else -1 for c in input())))\n",
        ),
    ),
    "words": (
        "Given n, s and n numbers, find the two of them whose sum is s. There is exactly one such pair. Print both in the order of their places.",
        ["3 5\n2 3 9\n", "2 7\n1 6\n", "4 9\n1 8 20 30\n", "3 11\n4 5 7\n"],
        (
            "n, s = map(int, input().split())\na = list(map(int, input().split()))\nfor i in range(n):\n    for j in range(i + 1, n):\n        if a[i] + a[j] == s:\n            print(a[i], a[j])\n",
            "from itertools import combinations\ns = int(input().split()[1])\nprint(*[f'{x} {y}' for x, y in combinations(map(int, input().split()), 2) if x + y == s], sep='\\n')\n",
            "import sys\nd = list(map(int, sys.stdin.read().split()))\nfor i, x in enumerate(d[2:], 3):\n    for y in d[i:]:\n        if x == d[1] - y:\n            print(x, y)\n",
        ),
    ),
    "rows": (
        "Given are n pieces l r of a line. Print the sum of all r minus the sum of all l.",
        ["1\n0 6\n", "2\n0 3\n5 6\n", "3\n1 2\n4 7\n9 12\n", "2\n2 4\n6 9\n"],
        (
            "t = 0\nfor _ in range(int(input())):\n    l, r = map(int, input().split())\n    t += r - l\nprint(t)\n",
            "import sys\nd = list(map(int, sys.stdin.read().split()))[1:]\nprint(sum(d[1::2]) - sum(d[::2]))\n",
            "print(sum((lambda l, r: r - l)(*map(int, input().split())) for _ in range(int(input()))))\n",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONDITIONS)
def test_where_inputs_may_have_conditions_that_no_change_keeps_nothing_is_guessed(name: str) -> None:
    statement, inputs, solutions = CONDITIONS[name]
    answers = [subprocess.run([sys.executable, "-c", solutions[0]], input=text, capture_output=True, text=True, check=True).stdout for text in inputs]  # fmt: skip
    found = agreed(Problem(name, statement, tuple(map(StdinTest, inputs, answers)), solutions=solutions))
    assert (found.tests, found.why) == ((), CONDITIONED)


@pytest.mark.parametrize(
    "statement",
    [
        "Every element appears twice except for one. Find that single one.",
        "t is made by shuffling s and then adding one more letter at a random position. Find it.",
        "Return the element that makes up more than half of the list.",
        "Return the majority element.",
    ],
)
def test_conditions_in_words_of_known_problems_are_seen(statement: str) -> None:
    assert conditioned([[[1, 2, 1]], [[3]]], statement)


def test_edges_intervals_and_grids_as_arguments_may_have_conditions_too() -> None:
    assert conditioned([[[[1, 2], [2, 3]]], [[[1, 2]]]], "Count them.")
    assert not conditioned([[[1, 2], 2], [[3], 1]], "Count those above k.")
    assert conditioned(["2\n0 3\n5 6\n", "1\n2 4\n"], "Count them.")
    assert not conditioned(["2\n3 1\n1 2 3\n2 2\n5 5\n", "1\n4 4\n1 2 3 4\n"], "For each case, count them.")


@pytest.mark.parametrize(
    ("statement", "conditions"),
    [
        ("You will generate a correct Python program. Return the largest of the numbers.", False),
        ("Given a list of numbers, check whether the first is a prime.", False),
        ("Return true if the text is a palindrome and false otherwise.", False),
        ("Print the smallest possible sum\nof two of the numbers.", False),
        ("You are given a list of primes. Return their sum.", True),
        ("The text is a palindrome. Count its letters.", True),
        ("Find two numbers whose sum is k. It is possible to find them.", True),
        ("Find the two numbers; exactly one pair has the sum k.", True),
        ("Given a correct sequence, return its length.", True),
        ("Return the time for which a valid clock shows that text.", True),
        ("Write a function to convert the given binary number to its decimal equivalent.", True),
        ("Write a function to print check if the triangle is equilateral or not.", True),
        ("Find the inverse of a modulo p where p is a prime.", True),
        ("Alice gets a palindrome s. Print it.", True),
    ],
)
def test_a_word_that_only_says_what_is_asked_for_is_no_condition(statement: str, conditions: bool) -> None:
    assert conditioned([[[1, 2], 2], [[3], 1]], statement) is conditions


@pytest.mark.parametrize(
    "unsteady",
    ["import random\nprint(max(v) + random.choice([0, 0, 1]) * (v != sorted(v)))", "import time\nprint(max(v) + (time.time_ns() // 7 % 2 if v != sorted(v) else 0))"],
    ids=["random", "clock"],
)  # fmt: skip
def test_a_reference_that_answers_differently_another_time_gives_no_test(unsteady: str) -> None:
    found = agreed(MAX, LOOP.replace("print(max(v))", unsteady), SCAN, SORTED)
    assert fails(MAX, found.tests, LOOP) == set()


@pytest.mark.parametrize(
    ("problem", "solutions", "why"),
    [
        (MAX, (LOOP, SCAN), FEW),
        (MAX, (LOOP, LOOP.replace("v", "w"), LOOP.replace("n =", "m =")), FEW),
        (ABOVE, (*ONE_IDEA,), FEW),
        (ABOVE, (*ABOVE.solutions[:2], *ONE_IDEA), FEW),
        (MAX, (LOOP, SCAN, "print(0)\n"), FEW),
        (MAX, (), FEW),
        (dataclasses.replace(MAX, compare=Compare("checker", checker="pass")), MAX.solutions, MANY),
        (dataclasses.replace(MAX, interactor="pass"), MAX.solutions, MANY),
    ],
    ids=["two", "one shape", "one idea", "two ideas", "one that fails", "none", "checker", "interactive"],
)
def test_without_two_more_independent_solutions_nothing_is_guessed(
    problem: Problem, solutions: tuple[str, ...], why: str
) -> None:
    problem = dataclasses.replace(problem, solutions=solutions)
    found = agreed(problem)
    assert (found.tests, found.why) == ((), why)


def test_sequences_of_calls_and_tolerances_get_tests_too() -> None:
    calls = [
        (("Box", ()), ("put", (n,)), ("put", (m,)), ("total", ()))
        for n, m in ((1, 2), (5, 7), (3, 3), (4, 1), (2, 10), (7, 4))
    ]
    tests = tuple(
        SequenceTest("Box", c, (None, None, None, c[1][1][0] + c[2][1][0]), abs_tol=1e-3, rel_tol=0.0) for c in calls
    )
    codes = (
        "class Box:\n    def __init__(self):\n        self.n = 0\n    def put(self, n):\n        self.n += n\n    def total(self):\n        return self.n\n",
        "class Box:\n    def __init__(self):\n        self.v = []\n    def put(self, n):\n        self.v.append(n)\n    def total(self):\n        return sum(self.v)\n",
        "from functools import reduce\nclass Box(list):\n    put = list.append\n    def total(self):\n        return reduce(int.__add__, self)\n",
    )
    problem = Problem("box", "A box that sums.", tests, compare=Compare("float", abs_tol=1e-6), solutions=codes)
    found = agreed(problem)
    assert found.tests
    assert all(isinstance(test, SequenceTest) and test.abs_tol == 1e-3 for test in found.tests)
    wrong = codes[0].replace("self.n += n", "self.n += n if n not in (5, 6, 8, 9) or not self.n else 0")
    assert fails(problem, problem.tests, wrong) == set()
    assert fails(problem, found.tests, wrong)


def texts(*given: str, wording: str = "") -> list[str]:
    return list(mutated_texts(given, 40, random.Random(0), wording))


def test_a_count_stays_the_length_of_its_list() -> None:
    made = texts(*(test.input for test in MAX.tests if isinstance(test, StdinTest)))
    assert len(made) > 30
    for text in made:
        count, *values = map(int, text.split())
        assert count == len(values)
        assert all(-4 <= value <= 10 for value in values)


def test_a_number_of_cases_stays_that_of_the_cases() -> None:
    made = texts("2\n3 1\n1 2 3\n2 2\n5 5\n", "1\n4 4\n1 2 3 4\n", "3\n1 1\n7\n1 1\n8\n2 1\n3 3\n")
    assert made
    for text in made:
        (cases,), *lines = [list(map(int, line.split())) for line in text.splitlines()]
        assert len(lines) == 2 * cases
        assert all(len(v) == n and 1 <= k <= n for (n, k), v in zip(lines[::2], lines[1::2], strict=True))


def test_edges_stay_within_the_nodes_of_their_graph_and_are_counted() -> None:
    made = texts("3 2\n1 2\n2 3\n", "4 3\n1 2\n2 3\n1 4\n", "2 1\n1 2\n", "4 4\n1 2\n2 3\n3 4\n1 4\n")
    assert made
    for text in made:
        (n, m), *edges = [list(map(int, line.split())) for line in text.splitlines()]
        assert len(edges) == m
        assert all(1 <= a <= n and 1 <= b <= n for a, b in edges)


def test_sorted_lists_stay_sorted_until_one_is_not() -> None:
    given = ["2\n1 3\n", "1\n4\n"]

    def sorted_lists(made: list[str]) -> bool:
        lists = [list(map(int, text.split()[1:])) for text in made]
        return all(v == sorted(v) for v in lists)

    assert sorted_lists(texts(*given, wording="The list is sorted."))
    assert not sorted_lists(texts(*given, "2\n5 2\n"))
    assert not sorted_lists(texts(*given, "2\n5 2\n", wording="The list is sorted."))
    many = ["8\n" + " ".join(map(str, sorted(random.Random(i).sample(range(90), 8)))) + "\n" for i in range(4)]
    assert sorted_lists(texts(*many))


def _hill(v: list[int]) -> bool:
    top = v.index(max(v))
    return v[:top] == sorted(set(v[:top])) and v[top:] == sorted(set(v[top:]), reverse=True)


LISTS_OF_A_KIND: dict[str, tuple[Callable[[list[int]], bool], list[list[int]]]] = {
    "rise and fall": (_hill, [[1, 4, 9, 8, 2], [1, 2, 4, 6, 5, 3, 0], [2, 7, 9, 1], [1, 3, 8, 7, 6, 5]]),
    "rotated": (lambda v: sum(a > b for a, b in pairwise([*v, v[0]])) == 1, [[4, 5, 6, 7, 0, 1, 2], [30, 40, 10, 20], [3, 5, 1, 2], [9, 2, 3, 4, 6]]),
    "permutation": (lambda v: sorted(v) == list(range(1, len(v) + 1)), [[2, 1, 3], [4, 1, 3, 2], [1, 3, 2], [5, 1, 4, 3, 2]]),
    "even": (lambda v: all(x % 2 == 0 for x in v), [[2, 8, 4], [10, 6], [0, 4, 4, 12], [6, 2]]),
    "mirrored": (lambda v: v == v[::-1], [[1, 2, 1], [5, 5], [3, 1, 4, 1, 3], [7, 2, 2, 7]]),
    "pairs and one": (lambda v: sorted(v.count(x) % 2 for x in set(v))[-2:] in ([1], [0, 1]), [[4, 1, 2, 1, 2], [2, 2, 1], [7, 3, 3], [5, 5, 9, 8, 8]]),
    "equal steps": (lambda v: len({b - a for a, b in pairwise(v)}) == 1, [[1, 3, 5, 7], [9, 6, 3], [2, 4, 6], [5, 10, 15, 20]]),
}  # fmt: skip


@pytest.mark.parametrize("kind", LISTS_OF_A_KIND)
def test_what_chance_would_hardly_give_all_lists_is_kept_without_a_word_of_it(kind: str) -> None:
    holds, lists = LISTS_OF_A_KIND[kind]
    assert all(map(holds, lists))
    made = texts(*(f"{len(v)}\n{' '.join(map(str, v))}\n" for v in lists))
    assert made or kind == "equal steps"
    assert all(holds(list(map(int, text.split()[1:]))) for text in made)


@pytest.mark.parametrize(
    ("samples", "holds"),
    [
        ([[["ab", "cd", "e"], "cd"], [["x", "yy"], "x"], [["q", "ab", "zz"], "zz"], [["m", "n"], "n"]], lambda v, x: x in v),
        ([[[4, 5, 9], 18], [[2, 2], 4], [[1, 7], 8], [[3], 3]], lambda v, x: sum(v) == x),
        ([[12, 4], [9, 3], [50, 10], [21, 7]], lambda a, b: a % b == 0),
        ([["listen", "silent"], ["abc", "bca"], ["noon", "oonn"], ["ate", "eat"]], lambda a, b: sorted(a) == sorted(b)),
    ],
    ids=["in it", "sum", "divides", "same letters"],
)  # fmt: skip
def test_what_holds_between_two_values_of_every_input_is_kept(
    samples: list[list[Any]], holds: Callable[[Any, Any], bool]
) -> None:
    assert all(holds(*each) for each in mutated(samples, 40, random.Random(0)))


def test_a_version_is_no_number_and_a_grid_of_one_size_a_grid() -> None:
    assert conditioned([["1.2", "1.10"], ["1.0.1", "2.0"]], "Which is later?")
    assert not conditioned([["1.2", "1.10"], ["-1.01", "2.0"]], "Which is larger?")
    assert conditioned([[[[1, 2], [3, 4]]], [[[5, 6], [7, 8]]]], "Sum them.")


def test_values_of_a_call_keep_their_types_and_what_ties_them() -> None:
    samples: list[list[Any]] = [[[1, 2], ["a", "b"], (1, 2.5), {"k": 1}], [[5], ["c"], (3, 0.5), {"k": 4}], [[7, 8, 9], ["d", "e", "f"], (2, 1.5), {"k": 2}]]  # fmt: skip
    made = list(mutated(samples, 60, random.Random(1)))
    assert made
    for numbers, words, pair, table in made:
        assert len(numbers) == len(words)
        assert (type(pair), len(pair), type(pair[0]), type(pair[1]), set(table)) == (tuple, 2, int, float, {"k"})


def test_a_right_program_that_needs_the_order_of_the_inputs_falls_to_no_new_test() -> None:
    lists = LISTS_OF_A_KIND["rise and fall"][1]
    tests = tuple(StdinTest(f"{len(v)}\n{' '.join(map(str, v))}\n", f"{max(v)}\n") for v in lists)
    statement = "The heights of a hill walk first increase and then decrease. Print the largest of the n heights."
    found = agreed(Problem("hill", statement, tests, solutions=(LOOP, SCAN, SORTED)))
    halving = "n = int(input())\na = list(map(int, input().split()))\nl, h = 0, n - 1\nwhile l < h:\n    m = (l + h) // 2\n    if a[m] < a[m + 1]:\n        l = m + 1\n    else:\n        h = m\nprint(a[l])\n"
    assert found.tests
    assert fails(MAX, found.tests, halving) == set()


def test_the_same_seed_gives_the_same_inputs() -> None:
    given = [test.input for test in MAX.tests if isinstance(test, StdinTest)]
    assert texts(*given) == texts(*given)
    assert not set(texts(*given)) & set(given)


def prepared(folder: Path, *words: str) -> list[str]:
    write_problems(folder / "weak.jsonl", [MAX, ABOVE, dataclasses.replace(MAX, id="few", statement="Say which number on line two is largest of all of them.", solutions=(LOOP,), meta={})])  # fmt: skip
    return [f"dataset={folder / 'weak.jsonl'}", *words]


def test_prepare_adds_hidden_tests_and_says_what_they_catch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = prepared(tmp_path, f"out={tmp_path / 'out'}")
    assert main(["prepare", *words]) == 0
    dropped = [json.loads(line)["reason"] for line in (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()]
    assert dropped == ["wrong_solution_passes"] * 2
    assert main(["prepare", *words, "strengthen=true", "new_tests=4", "dry_run=true"]) == 0
    assert "\n  strengthen\n" in capsys.readouterr().out
    assert main(["prepare", *words, "strengthen=true", "new_tests=4"]) == 0
    said = next(stage for stage in json.loads((tmp_path / "out" / "report.json").read_text())["stages"] if stage["stage"] == "strengthen")  # fmt: skip
    assert (
        "tests added to 2 problems, none that no program fails which passed before: 2 known wrong solutions"
        in said["note"]
    )
    assert "too few solutions: 1" in said["note"]
    assert said["note"].replace(" ", "") in capsys.readouterr().out.replace("\n", "").replace(" ", "")
    by_id = {problem.id: problem for problem in read_problems(tmp_path / "out" / "train.jsonl")}
    assert {name: len(problem.tests) for name, problem in by_id.items()} == {"max": 9, "above": 7, "few": 5}
    assert by_id["max"].tests[:5] == MAX.tests
    assert not any(test.public for test in by_id["max"].tests[5:])
    for problem in (by_id["max"], by_id["above"]):
        wrong = [*problem.meta["wrong_solutions"], *mutants(problem.solutions[0], 24, f"0/{problem.id}")]
        own = len(MAX.tests if problem.id == "max" else ABOVE.tests)
        caught = [
            fails(problem, problem.tests[own:], code) for code in wrong if not fails(problem, problem.tests[:own], code)
        ]
        assert set().union(*caught) == set(range(len(problem.tests) - own))
    assert by_id["few"].meta["prepare"]["strengthened"]["why"] == FEW


def test_tests_that_catch_nothing_are_not_added(tmp_path: Path) -> None:
    write_problems(tmp_path / "strong.jsonl", [dataclasses.replace(MAX, meta={})])
    words = [f"dataset={tmp_path / 'strong.jsonl'}", f"out={tmp_path / 'out'}", "strengthen=true", "mutants=0"]
    assert main(["prepare", *words]) == 0
    (problem,) = read_problems(tmp_path / "out" / "train.jsonl")
    assert problem.tests == MAX.tests
    assert problem.meta["prepare"]["strengthened"]["why"] == NOTHING
    assert f"{NOTHING}: 1" in (tmp_path / "out" / "report.json").read_text()


def test_the_tests_that_catch_come_through_a_cap(tmp_path: Path) -> None:
    words = prepared(tmp_path, f"out={tmp_path / 'out'}", "strengthen=true", "max_tests=3", "mutants=0")
    assert main(["prepare", *words]) == 0
    for problem in read_problems(tmp_path / "out" / "train.jsonl"):
        wrong = problem.meta.get("wrong_solutions")
        assert len(problem.tests) == 3
        assert wrong is None or fails(problem, problem.tests, wrong[0])


def test_a_wrong_solution_that_no_new_test_catches_still_drops_its_problem(tmp_path: Path) -> None:
    few = dataclasses.replace(MAX, solutions=(LOOP, SCAN))
    write_problems(tmp_path / "weak.jsonl", [few])
    assert main(["prepare", f"dataset={tmp_path / 'weak.jsonl'}", f"out={tmp_path / 'out'}", "strengthen=true"]) == 0
    assert '"wrong_solution_passes"' in (tmp_path / "out" / "dropped.jsonl").read_text()


@pytest.mark.parametrize("word", ["new_tests=3", "new_inputs=9"])
def test_a_setting_that_would_do_nothing_is_refused(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prepare", "dataset=builtin", "out=x", word]) == 2
    assert "does nothing without strengthen=" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_in_the_middle_of_the_stage_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    words = prepared(tmp_path, "strengthen=true")
    whole = finish(words, tmp_path / "whole")
    assert whole["train.jsonl"].count(b"\n") == 3
    for lines in (1, 2):
        kill_at(words, tmp_path / f"cut{lines}", "strengthen.jsonl", lines)
        assert finish(words, tmp_path / f"cut{lines}") == whole


@pytest.mark.parametrize("seen", [[[1, 2], ["a", "b"], [30]], [["ab"], [1]], [[1.0], [10**320]], [[10**3000], [3]], [[float("nan"), 1.0], [2.0, 3.0]]])  # fmt: skip
def test_values_of_several_kinds_or_of_any_size_make_no_rule(seen: list[list[Any]]) -> None:
    found = [{("a",): [items]} for items in seen]
    conditions = Conditions(found)
    assert all(map(conditions.hold, found))
