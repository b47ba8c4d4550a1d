"""Tests on generated inputs, which tell a wrong version of a reference from an equivalent one.

An input is one of the problem's own with a few values replaced by values that other tests have at
the same place. A constraint of the statement that ties values to each other may be broken. Only
inputs that the reference answers count.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from code_rl.grading import CallTest, Problem, StdinTest, TestCase
from code_rl.grading.sandbox import Executor, Limits, Status
from code_rl.grading.submission import program_job
from code_rl.grading.values import ValueCodecError, dumps, loads

# Enough for most one-token mutants, and few beside the tests of most sets.
GENERATED, TRIES = 16, 64
CHANGES = 3


async def nearby_problem(
    problem: Problem, reference: str, executor: Executor, cpu_s: float, seed: str
) -> Problem | None:
    """Return the problem with generated tests whose expected outputs are the reference's, or None
    if there are none.

    Raises SandboxError if the executor fails.
    """
    tests = generated_tests(problem.tests, random.Random(seed))
    if not tests:
        return None
    limits = Limits(cpu_s=cpu_s, memory_mb=problem.memory_limit_mb)
    job = program_job(problem, reference, tests, limits)
    answered: list[TestCase] = []
    runs = [run async for run in executor.run(job)]
    for test, run in zip(tests, runs, strict=False):
        if run.status is not Status.OK:
            continue
        if isinstance(test, StdinTest):
            answered.append(replace(test, expected=run.stdout.decode("utf-8", "surrogateescape")))
        elif run.value is not None:
            answered.append(replace(test, expected=loads(run.value)))
    return replace(problem, tests=tuple(answered)) if answered else None


def generated_tests(
    tests: Sequence[TestCase], rng: random.Random
) -> Sequence[StdinTest | CallTest]:
    """Return up to 16 tests on new inputs, without expected outputs. None for sequences of
    calls."""
    printed = [test for test in tests if isinstance(test, StdinTest)]
    if printed:
        seen = {test.input for test in printed}
        pool = _pool([test.input.split("\n") for test in printed], words=True)
        inputs = (_changed_text(rng.choice(printed).input, pool, rng) for _ in range(TRIES))
        new = [text for text in dict.fromkeys(inputs) if text not in seen]
        return [StdinTest(text, "") for text in new[:GENERATED]]
    calls = [test for test in tests if isinstance(test, CallTest) and test.raises is None]
    if not calls:
        return []
    pool = _pool([test.args for test in calls])
    known = {_key(test.args) for test in calls}
    made: dict[str, CallTest] = {}
    for _ in range(TRIES):
        test = rng.choice(calls)
        args = tuple(_changed(arg, pool[at], rng) for at, arg in enumerate(test.args))
        made.setdefault(_key(args), replace(test, args=args, expected=None, public=False))
    return [test for key, test in made.items() if key and key not in known][:GENERATED]


def _pool(rows: Sequence[Sequence[Any]], *, words: bool = False) -> dict[int, list[Any]]:
    """Return the scalar values (of lines of text, the numbers) that stand at each position."""
    pool: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        for at, value in enumerate(row):
            pool[at] += filter(_is_integer, value.split(" ")) if words else _scalars(value)
    return pool


def _is_integer(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


def _scalars(value: Any) -> list[Any]:
    if isinstance(value, list | tuple | set | frozenset):
        return [one for item in value for one in _scalars(item)]
    if isinstance(value, dict):
        return _scalars(list(value.values()))
    return [value]


def _changed_text(text: str, pool: dict[int, list[str]], rng: random.Random) -> str:
    """Return the text with up to three integers of one line replaced. The first line of several
    often has the counts of those below, so it is kept."""
    lines = [line.split(" ") for line in text.split("\n")]
    numbers = [
        (row, at)
        for row, line in enumerate(lines)
        for at, word in enumerate(line)
        if _is_integer(word) and (row > 0 or len(text.strip().split("\n")) == 1)
    ]
    for row, at in rng.sample(numbers, min(len(numbers), rng.randint(1, CHANGES))):
        lines[row][at] = rng.choice(pool[row])
    return "\n".join(map(" ".join, lines))


def _changed(value: Any, pool: Sequence[Any], rng: random.Random) -> Any:
    """Return a value of the same type: a scalar of another test, or a list with some items
    replaced or left out."""
    if isinstance(value, list | tuple):
        items = [_changed(item, pool, rng) if rng.random() < 0.5 else item for item in value]
        if items and isinstance(value, list) and rng.random() < 0.25:
            del items[rng.randrange(len(items))]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, str) and value and rng.random() < 0.5:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(value) + value[at + 1 :]
    alike = [one for one in pool if type(one) is type(value)]
    if type(value) is int:
        return rng.randint(min(alike), max(alike))
    return rng.choice(alike) if alike else value


def _key(args: Sequence[Any]) -> str:
    """Return the arguments as text, or an empty text if they cannot be sent."""
    try:
        return dumps(list(args))
    except ValueCodecError:
        return ""
