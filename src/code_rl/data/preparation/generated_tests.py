"""Tests on generated inputs, which tell a wrong version of a reference from an equivalent one.

An input is one of the problem's own with some values replaced by values that the tests have at the
same place (argument, or line of standard input). A constraint of the statement that ties values to
each other may be broken. Only inputs that the reference answers count.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from code_rl.grading import CallTest, Problem, SequenceTest, StdinTest, TestCase
from code_rl.grading.sandbox import Executor, Limits, Status
from code_rl.grading.submission import program_job
from code_rl.grading.values import loads
from code_rl.util.concurrency import closing

# Enough for most mutants with one small change, and few beside the tests of most sets.
GENERATED, TRIES = 32, 128
REPLACED = 0.3
# Inputs on which the reference may fail, each perhaps at its time limit.
MOST_FAILED = 6
# Characters of a test that is changed, and tests that are read.
LONGEST, MOST_TESTS = 1000, 64
_INTEGER = re.compile(r"-?[0-9]{1,18}")

Pool = defaultdict[tuple[int, type[Any]], list[Any]]
"""The values that stand at each position, by type."""


async def nearby_problem(
    problem: Problem, reference: str, executor: Executor, limits: Limits, seed: str
) -> Problem | None:
    """Return the problem with generated tests alone, whose expected outputs are the reference's, or
    None if there are none. `seed` decides the inputs; inputs on which the reference fails are left
    out.

    Raises SandboxError if the executor fails.
    """
    tests = generated_tests(problem.tests, random.Random(seed))
    if not tests:
        return None
    job = program_job(replace(problem, tests=tests), reference, tests, limits)
    answered: list[TestCase] = []
    failed = 0
    async with closing(executor.run(job)) as runs:
        async for run in runs:
            if run.status is Status.OK:
                printed = run.stdout.decode("utf-8", "surrogateescape")
                expected = printed if run.value is None else loads(run.value)
                answered.append(replace(tests[len(answered) + failed], expected=expected))
            else:
                failed += 1
            if failed > MOST_FAILED or len(answered) + failed == len(tests):
                break
    return replace(problem, tests=tuple(answered)) if answered else None


def generated_tests(
    tests: Sequence[TestCase], rng: random.Random
) -> tuple[StdinTest | CallTest, ...]:
    """Return up to 32 tests on new inputs, whose expected outputs are stale and must be replaced;
    none for sequences of calls. `rng` decides them."""
    short = [
        test for test in tests if not isinstance(test, SequenceTest) and len(repr(test)) <= LONGEST
    ][:MOST_TESTS]
    parts = [_parts(test) for test in short]
    pool: Pool = defaultdict(list)
    for at, part in (item for row in parts for item in enumerate(row)):
        for value in _scalars(part):
            pool[at, type(value)].append(value)
    made: dict[str, StdinTest | CallTest] = {}
    for _ in range(TRIES if short else 0):
        index = rng.randrange(len(short))
        test, row = short[index], parts[index]
        # The first line of several often has the counts of those below.
        kept = int(isinstance(test, StdinTest) and len(row) > 1)
        new = [_changed(part, at, pool, rng) if at >= kept else part for at, part in enumerate(row)]
        made.setdefault(repr(new), _with_parts(test, new))
    seen = set(map(repr, parts))
    return tuple(test for key, test in made.items() if key not in seen)[:GENERATED]


def _parts(test: StdinTest | CallTest) -> list[Any]:
    """Return the arguments of a call, or the words of each line, short integers as int."""
    if isinstance(test, CallTest):
        return [*test.args, *test.kwargs.values()]
    lines = [line.split(" ") for line in test.input.strip("\n").split("\n")]
    return [[int(w) if _INTEGER.fullmatch(w) else w for w in words] for words in lines]


def _with_parts(test: StdinTest | CallTest, parts: Sequence[Any]) -> StdinTest | CallTest:
    """Return the test with other parts of its input, in the order of `_parts`: arguments, or words
    by line. Its expected output is unchanged."""
    if isinstance(test, CallTest):
        count = len(test.args)
        named = dict(zip(test.kwargs, parts[count:], strict=True))
        return replace(test, args=tuple(parts[:count]), kwargs=named, raises=None)
    return replace(test, input="".join(f"{' '.join(map(str, words))}\n" for words in parts))


def _scalars(value: Any) -> list[Any]:
    """Return the values in lists and tuples, at any depth; texts count as lists of characters."""
    if isinstance(value, list | tuple) or (isinstance(value, str) and len(value) != 1):
        return [one for item in value for one in _scalars(item)]
    return [value]


def _changed(value: Any, at: int, pool: Pool, rng: random.Random) -> Any:
    """Return the value at position `at` with about a third of its scalars replaced by others of
    their type from `pool`. Lengths stay."""
    if isinstance(value, list | tuple):
        return type(value)([_changed(item, at, pool, rng) for item in value])
    if isinstance(value, str) and len(value) != 1:
        return "".join(_changed(list(value), at, pool, rng))
    return rng.choice(pool[at, type(value)]) if rng.random() < REPLACED else value
