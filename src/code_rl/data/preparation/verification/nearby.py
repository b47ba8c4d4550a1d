"""Tests on generated inputs, which tell a wrong version of a reference from an equivalent one.

An input is one of the problem's own with some values replaced by values that the tests have at the
same place (argument, or line of standard input). A constraint of the statement that ties values to
each other may be broken. Only inputs that the reference answers count.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from code_rl.grading import CallTest, Problem, SequenceTest, StdinTest, TestCase
from code_rl.grading.sandbox import Executor, Limits, Status
from code_rl.grading.submission import program_job
from code_rl.grading.values import loads

# Enough for most mutants with one small change, and few beside the tests of most sets.
GENERATED, TRIES = 32, 128
REPLACED = 0.3
_INTEGER = re.compile(r"-?[0-9]{1,18}")


async def nearby_problem(
    problem: Problem, reference: str, executor: Executor, limits: Limits, seed: str
) -> Problem | None:
    """Return the problem with generated tests whose expected outputs are the reference's, or None
    if there are none.

    Raises SandboxError if the executor fails.
    """
    tests = generated_tests(problem.tests, random.Random(seed))
    if not tests:
        return None
    job = program_job(replace(problem, tests=tests), reference, tests, limits)
    answered: list[TestCase] = []
    runs = [run async for run in executor.run(job)]
    for test, run in zip(tests, runs, strict=False):
        if run.status is Status.OK:
            printed = run.stdout.decode("utf-8", "surrogateescape")
            expected = printed if run.value is None else loads(run.value)
            answered.append(replace(test, expected=expected))
    return replace(problem, tests=tuple(answered)) if answered else None


def generated_tests(
    tests: Sequence[TestCase], rng: random.Random
) -> tuple[StdinTest | CallTest, ...]:
    """Return up to 32 tests on new inputs, without expected outputs; none for sequences of
    calls."""
    known = [test for test in tests if not isinstance(test, SequenceTest)]
    parts = [_parts(test) for test in known]
    seen, made = set(map(repr, parts)), list[StdinTest | CallTest]()
    for _ in range(TRIES if known else 0):
        index = rng.randrange(len(known))
        # The first line of several often has the counts of those below.
        kept = int(isinstance(known[index], StdinTest) and len(parts[index]) > 1)
        new = parts[index][:kept] + [
            _changed(part, [one for row in parts for one in _scalars(row[at : at + 1])], rng)
            for at, part in enumerate(parts[index][kept:], start=kept)
        ]
        if repr(new) not in seen:
            seen.add(repr(new))
            made.append(_with_parts(known[index], new))
    return tuple(made[:GENERATED])


def _parts(test: StdinTest | CallTest) -> list[Any]:
    """Return the arguments of a call, or the words of each line, integers as int."""
    if isinstance(test, CallTest):
        return list(test.args)
    lines = [line.split(" ") for line in test.input.strip("\n").split("\n")]
    return [[int(w) if _INTEGER.fullmatch(w) else w for w in words] for words in lines]


def _with_parts(test: StdinTest | CallTest, parts: Sequence[Any]) -> StdinTest | CallTest:
    if isinstance(test, CallTest):
        return replace(test, args=tuple(parts), raises=None)
    return replace(test, input="".join(f"{' '.join(map(str, words))}\n" for words in parts))


def _scalars(value: Any) -> list[Any]:
    """Return the values in lists and tuples; texts count as lists of characters."""
    if isinstance(value, list | tuple) or (isinstance(value, str) and len(value) != 1):
        return [one for item in value for one in _scalars(item)]
    return [value]


def _changed(value: Any, pool: Sequence[Any], rng: random.Random) -> Any:
    """Return the value with some of its scalars replaced by others of their type."""
    if isinstance(value, list | tuple):
        return type(value)([_changed(item, pool, rng) for item in value])
    if isinstance(value, str) and len(value) != 1:
        return "".join(_changed(list(value), pool, rng))
    alike = [one for one in pool if type(one) is type(value)]
    return rng.choice(alike) if rng.random() < REPLACED else value
