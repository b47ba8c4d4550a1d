"""Problems with known defects: clean ones of many families, and ten kinds of damage, each with the reason that must be given."""

from __future__ import annotations

import codecs
import dataclasses
import random
import string
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from code_rl.grading import CallTest, Problem, StdinTest
from tests.kinds import each_is

FOLDS = {
    "sum": ("the sum of", "sum(v)"),
    "largest": ("the largest of", "max(v, default=0)"),
    "smallest": ("the smallest of", "min(v, default=0)"),
    "count": ("how many there are among", "len(v)"),
    "spread": ("the difference between the largest and the smallest of", "max(v, default=0) - min(v, default=0)"),
    "xor": ("the bitwise exclusive or of", "__import__('functools').reduce(lambda p, q: p ^ q, v, 0)"),
}
KEEPERS = {
    "multiples": ("that are divisible by {k}", "[t for t in v if t % {k} == 0]"),
    "remainder": ("that leave a remainder of 1 when divided by {k}", "[t for t in v if t % {k} == 1]"),
    "above": ("that are strictly greater than {k}", "[t for t in v if t > {k}]"),
    "below": ("that are strictly less than {k}", "[t for t in v if t < {k}]"),
    "places": ("that stand at positions divisible by {k}, counting from zero", "v[::{k}]"),
}
STORIES = (
    "A harbour master writes down the weights of ships as they arrive.",
    "In a library every returned book gets a stamp with a number.",
    "The gardener measures her sunflowers each morning before breakfast.",
    "A radio telescope logs one reading for every second of the night.",
    "Runners cross the line one after another and their bibs are noted.",
    "A bakery keeps a list of the loaves that were sold during each hour.",
    "Tram drivers report the passengers that they counted between stops.",
    "An archivist numbers the boxes in the order in which they were found.",
)


@dataclass(frozen=True)
class Planted:
    """`problem` with a defect, and the reasons that are right for it (none: clean). `exam` is the problem that it leaked from, or copies."""

    problem: Problem
    kind: str = "clean"
    reasons: frozenset[str] = frozenset()


def values(rng: random.Random, largest: int = 60) -> list[int]:
    return [rng.randint(1, largest) for _ in range(rng.randint(6, 60))]


def stdin_problem(rng: random.Random, number: int) -> Problem:
    """Read n and n integers, print one fold of some of them."""
    fold, keeper, k, most = _combination(number)
    (what, fold_code), (which, keep_code) = FOLDS[fold], KEEPERS[keeper]
    code = f"n = int(input())\nv = list(map(int, input().split()))\nv = {keep_code.format(k=k)}\nprint({fold_code})\n"
    statement = (
        f"{rng.choice(STORIES)} Given are n integers. Print {what} those {which.format(k=k)}; an empty choice counts as zero.\n\n"
        f"Input\n\nThe first line contains a single integer n, the second line contains n integers separated by spaces.\n\n"
        f"Output\n\nPrint a single integer, the answer to the question above.\n\nConstraints\n\n1 <= n <= {most}\n"
    )
    inputs = _telling_inputs(rng, lambda v: _evaluate(keep_code, fold_code, k, v))
    tests = tuple(
        StdinTest(
            f"{len(v)}\n{' '.join(map(str, v))}\n", f"{_evaluate(keep_code, fold_code, k, v)}\n", public=index < 2
        )
        for index, v in enumerate(inputs)
    )
    return Problem(f"stdin-{number}", statement, tests, solutions=(code,), source="planted")


def call_problem(rng: random.Random, number: int) -> Problem:
    """`solve(numbers)` returns a list."""
    _, keeper, k, most = _combination(number)
    step = number % 40 + 2
    which, keep_code = KEEPERS[keeper]
    code = f"def solve(numbers):\n    v = numbers\n    v = {keep_code.format(k=k)}\n    return [t + {step} for t in v] + [len(v)]\n"
    statement = (
        f"{rng.choice(STORIES)} Write a function `solve` that takes the list `numbers` and returns a new list: every item {which.format(k=k)}, "
        f"raised by {step}, in the order of the input, and after them how many such items there were.\n\nThe list has at most {most} items."
    )
    inputs = _telling_inputs(rng, lambda v: _evaluate(keep_code, "v", k, v))
    tests = []
    for index, v in enumerate(inputs):
        kept = _evaluate(keep_code, "v", k, v)
        tests.append(CallTest((v,), [t + step for t in kept] + [len(kept)], public=index < 2))
    return Problem(
        f"call-{number}",
        statement,
        tuple(tests),
        fn_name="solve",
        starter_code="def solve(numbers):\n    ",
        solutions=(code,),
        source="planted",
    )


def _telling_inputs(rng: random.Random, answer: Callable[[list[int]], Any]) -> list[list[int]]:
    """Nine inputs whose answers are not all one."""
    while True:
        inputs = [values(rng) for _ in range(9)]
        if len({str(answer(v)) for v in inputs}) > 2:
            return inputs


def _combination(number: int) -> tuple[str, str, int, int]:
    """No two numbers below 1440 share one; many share their numbers and differ in a few words only."""
    folds, keepers = sorted(FOLDS), sorted(KEEPERS)
    number, fold = divmod(number * 7919 % 1440, len(folds))
    number, keeper = divmod(number, len(keepers))
    number, k = divmod(number, 16)
    return folds[fold], keepers[keeper], k + 5, 10 ** (number + 2)


def _evaluate(keep_code: str, fold_code: str, k: int, v: list[int]) -> Any:
    return eval(fold_code, {"v": eval(keep_code.format(k=k), {"v": v})})


def fresh(rng: random.Random, number: int) -> Problem:
    return (stdin_problem if number % 3 else call_problem)(rng, number)


def exam(rng: random.Random, number: int) -> Problem:
    """A problem of the evaluation set: of the same kinds, told in words of its own (rot13) and another sentence each."""
    problem = fresh(rng, 900 + number)
    told = random.Random(number).sample(string.ascii_lowercase * 9, 200)
    own = " ".join("".join(told[start : start + 4]) for start in range(0, 200, 4))
    return dataclasses.replace(
        problem, id=f"exam-{number}", statement=codecs.encode(f"{own}. {problem.statement}", "rot13")
    )


def damaged(problem: Problem, kind: str, *reasons: str, **changes: Any) -> Planted:
    """`problem` with these fields changed; `reasons` are right for it."""
    return Planted(dataclasses.replace(problem, **changes), kind, frozenset(reasons or (kind,)))


def _another(value: Any) -> Any:
    return f"{int(value) + 1000}\n" if isinstance(value, str) else [*value, 1000]


def wrong_output(rng: random.Random, number: int) -> Planted:
    """One expected output differs from the reference's."""
    problem = fresh(rng, number)
    tests: list[Any] = list(problem.tests)
    place = rng.randrange(len(tests))
    tests[place] = dataclasses.replace(tests[place], expected=_another(tests[place].expected))
    return damaged(problem, "wrong_output", "reference_fails", tests=tuple(tests))


def swapped_tests(rng: random.Random, number: int) -> Planted:
    """Two tests have each other's expected outputs."""
    problem = fresh(rng, number)
    tests: list[Any] = list(problem.tests)
    one, other = next((i, j) for i in range(len(tests)) for j in range(i) if tests[i].expected != tests[j].expected)
    first, second = tests[one].expected, tests[other].expected
    tests[one] = dataclasses.replace(tests[one], expected=second)
    tests[other] = dataclasses.replace(tests[other], expected=first)
    return damaged(problem, "swapped_tests", "reference_fails", tests=tuple(tests))


def image_reference(rng: random.Random, number: int) -> Planted:
    problem = fresh(rng, number)
    words = rng.choice(("![board](https://example.org/board.png)", "<image>", '<img src="board.png">'))
    return damaged(problem, "image", statement=f"{words}\n\n{problem.statement}")


def interactive(rng: random.Random, number: int) -> Planted:
    problem = fresh(rng, number)
    words = rng.choice(("This is an interactive problem.", "The interactor answers each question."))
    return damaged(problem, "interactive", statement=f"{problem.statement}\n\n{words}")


def edited_copy(original: Problem, number: int) -> Planted:
    """The same problem with a sentence more."""
    statement = f"{original.statement}\nGood luck with it."
    return damaged(original, "duplicate", id=f"copy-{number}", statement=statement)


def leaked(exam: Problem, number: int) -> Planted:
    """A problem of the evaluation set, told in a frame."""
    statement = f"Practice round, task {number}.\n\n{exam.statement}\n\nGood luck!"
    return damaged(exam, "leaked", "contaminated", id=f"leak-{number}", statement=statement)


def broken_wrapping(rng: random.Random, number: int) -> Planted:
    """Arguments or results lie in one list too many."""
    problem = call_problem(rng, number)
    changed: list[Any] = []
    for test in each_is(CallTest, problem.tests):
        more = {"args": (list(test.args),)} if number % 2 else {"expected": [test.expected]}
        changed.append(dataclasses.replace(test, **more))
    return damaged(problem, "broken_wrapping", "reference_fails", tests=tuple(changed))


def flaky(rng: random.Random, number: int) -> Planted:
    """The reference draws lots."""
    problem = stdin_problem(rng, number)
    code = problem.solutions[0].replace("print(", "import random\nprint(random.choice((0, 0, 0, 10**9)) + ")
    return damaged(problem, "flaky", "flaky", "reference_fails", solutions=(code,))


def passes_when_empty(rng: random.Random, number: int) -> Planted:
    problem = stdin_problem(rng, number)
    tests = tuple(StdinTest(test.input, "") for test in each_is(StdinTest, problem.tests))
    code = "n = int(input())\nv = list(map(int, input().split()))\n"
    return damaged(problem, "passes_when_empty", "passes_empty", tests=tests, solutions=(code,))


def impossible_limit(rng: random.Random, number: int) -> Planted:
    problem = stdin_problem(rng, number)
    code = "total = 0\nfor i in range(1500000):\n    total += i\n" + problem.solutions[0]
    return damaged(problem, "impossible_limit", "impossible_time_limit", solutions=(code,), time_limit_s=0.01)


MAKERS = (
    wrong_output, swapped_tests, image_reference, interactive, broken_wrapping, flaky, passes_when_empty, impossible_limit,
)  # fmt: skip


def planted_set(total: int, defects: int, seed: int = 7) -> tuple[list[Planted], list[Problem]]:
    """`total` problems of which `defects` are damaged, ten kinds in turn, shuffled; and the evaluation set that some leaked from."""
    rng = random.Random(seed)
    eval_problems = [exam(rng, n) for n in range(max(8, defects // 5))]
    clean = [Planted(fresh(rng, n)) for n in range(total - defects)]
    noise: list[Planted] = []
    for n in range(defects):
        kind = n % 10
        if kind < len(MAKERS):
            noise.append(MAKERS[kind](rng, 1000 + n))
        elif kind == len(MAKERS):
            noise.append(edited_copy(clean[n].problem, n))
        else:
            noise.append(leaked(eval_problems[n // 10], n))  # each once: two of one task are duplicates
    copies = [one for one in noise if one.kind == "duplicate"]
    others = clean + [one for one in noise if one.kind != "duplicate"]
    rng.shuffle(others)
    return others + copies, eval_problems
