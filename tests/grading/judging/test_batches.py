"""Calls that share a process: every program gets the verdict that it gets with a process for each call."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace

import pytest

from code_rl.grading import CallTest, Problem, Verdict, VerdictKind, judge_async
from tests.grading.corpus.rooms import room
from tests.stand_in import StandIn

COUNT = 60
DOUBLE = Problem("double", "Twice n.", tuple(CallTest((n,), 2 * n) for n in range(COUNT)), fn_name="f")
PARITY = Problem("parity", "Is n odd?", tuple(CallTest((n,), n % 2 == 1) for n in range(COUNT)), fn_name="f")
LISTS = Problem("lists", "Append.", tuple(CallTest(([n],), [n, 0]) for n in range(COUNT)), fn_name="f")
RAISES = replace(DOUBLE, tests=(*DOUBLE.tests[:30], CallTest((-1,), None, raises="ValueError"), *DOUBLE.tests[30:]))
QUICK = replace(DOUBLE, time_limit_s=0.5)

HONEST = {
    "plain": (DOUBLE, "def f(n): return 2 * n"),
    "method": (DOUBLE, "class Solution:\n    def f(self, n): return 2 * n"),
    "memo": (DOUBLE, "memo = {}\ndef f(n):\n    memo.setdefault(n, 2 * n)\n    return memo[n]"),
    "keeps its arguments": (LISTS, "def f(x):\n    x.append(0)\n    return x"),
    "a default that grows": (
        LISTS,
        "def f(x, seen=[]):\n    seen += x\n    return [seen[-1], 0] if len(seen) == 1 else []",
    ),
    "works once only": (DOUBLE, "left = [1]\ndef f(n): return 2 * n * left.pop()"),
    "recursion limit": (
        DOUBLE,
        "import sys\ndef f(n):\n    sys.setrecursionlimit(sys.getrecursionlimit() - 5)\n    return 2 * n",
    ),
    "raises where it is to": (RAISES, "def f(n):\n    if n < 0: raise ValueError\n    return 2 * n"),
    "a slow start": (QUICK, "x = sum(range(10**6))\ndef f(n): return 2 * n"),
    "slow calls": (QUICK, "def f(n):\n    sum(range(2 * 10**6))\n    return 2 * n"),
    "slower and slower": (
        QUICK,
        "made = []\ndef f(n):\n    made.append(n)\n    sum(range(40_000 * len(made)))\n    return 2 * n",
    ),
    "exits at the end": (DOUBLE, "import atexit, os\natexit.register(os._exit, 3)\ndef f(n): return 2 * n"),
}
WRONG = {
    "wrong late": (DOUBLE, "def f(n): return 2 * n + (n == 41)"),
    "raises late": (DOUBLE, "def f(n): return 2 * n + 0 // (n - 41)"),
    "leaves late": (DOUBLE, "import os\ndef f(n):\n    if n == 41: os._exit(0)\n    return 2 * n"),
    "hangs late": (QUICK, "def f(n):\n    while n == 41: pass\n    return 2 * n"),
    "returns no value": (DOUBLE, "def f(n): return f if n == 41 else 2 * n"),
    "floods": (DOUBLE, "def f(n):\n    if n == 41:\n        while True: print('x' * 10**6)\n    return 2 * n"),
}
HOSTILE = {
    "one answer in a batch, another alone": (PARITY, "made = []\ndef f(n):\n    made.append(n)\n    return len(made) > 1"),
    "answers by its number": (PARITY, "made = []\ndef f(n):\n    made.append(n)\n    return len(made) % 2 == 0"),
    "work spread over calls": (
        QUICK,
        "import time\nspent = []\ndef f(n):\n    end = time.process_time() + (0.02 if spent else 0.7)\n"
        "    spent.append(n)\n    while time.process_time() < end: pass\n    return 2 * n",
    ),
    "a thread answers for later calls": (
        DOUBLE,
        "import threading, time\nready = {}\ndef work():\n    for n in range(60):\n        time.sleep(0.01)\n        ready[n] = 2 * n\n"
        "threading.Thread(target=work, daemon=True).start()\ndef f(n): return ready.get(n)",
    ),
    "an object that changes after it was returned": (LISTS, "kept = []\ndef f(x):\n    kept.append(x)\n    for one in kept: one[:] = [x[0], 1]\n    return x"),
    "patched encoder": (
        DOUBLE,
        "import json\nreal = json.dumps\njson.dumps = lambda *a, **k: '0'\ndef f(n): return 1",
    ),
    "the other way from the middle on": (
        replace(PARITY, tests=tuple(CallTest((n,), 1 < n <= 30) for n in range(COUNT))),
        "made = []\ndef f(n):\n    made.append(n)\n    if len(made) == 1: return False\n    if len(made) > 30: raise ValueError\n    return True",
    ),
    "lines in the value": (DOUBLE, "def f(n): return '0\\n0 0\\n0 2\\n0 4'"),
    "a forged record": (
        DOUBLE,
        "import os, struct\ndef f(n):\n    if n == 1:\n        body = '\\n'.join(f'0 {2 * k}' for k in range(1, 60)).encode()\n"
        "        os.write(3, struct.pack('<Q', len(body)) + body)\n        os._exit(0)\n    return 0",
    ),
}  # fmt: skip


Decided = tuple[VerdictKind, int, object]
"""The kind, the number of tests passed, and the first that failed."""


def judged(problem: Problem, code: str, *, all_tests: bool = False, level: str = "auto") -> Verdict:
    async def run() -> Verdict:
        async with room(level) as executor:
            return await judge_async(problem, code, executor, all_tests=all_tests)

    return asyncio.run(run())


def decided(verdict: Verdict) -> Decided:
    return verdict.kind, verdict.passed, verdict.failure and verdict.failure.test


def decided_apart(problem: Problem, code: str, *, all_tests: bool = False) -> Decided:
    """As `decided`, if each test were a problem of its own."""

    async def run() -> Decided:
        first, passed = None, 0
        async with room("auto") as executor:
            for number, test in enumerate(problem.tests):
                alone = await judge_async(replace(problem, tests=(test,)), code, executor)
                passed += alone.correct
                if not alone.correct and first is None:
                    first = alone.kind, number
                if first is not None and not all_tests:
                    break
        kind, failed = first or (VerdictKind.PASSED, None)
        return kind, passed, failed

    return asyncio.run(run())


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_program_passes_whatever_its_calls_leave_behind(name):
    assert (
        decided(judged(*HONEST[name]))
        == decided_apart(*HONEST[name])
        == (VerdictKind.PASSED, len(HONEST[name][0].tests), None)
    )


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_fails_at_the_same_test_for_the_same_reason(name):
    kind, passed, failed = decided(judged(*WRONG[name]))
    assert (kind, passed, failed) == decided_apart(*WRONG[name])
    assert (passed, failed) == (41, 41)


@pytest.mark.parametrize("level", ["full", "landlock", "fusion"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_program_gains_nothing_by_its_earlier_calls(name, level):
    assert not judged(*HOSTILE[name], level=level).correct


def test_where_all_tests_run_as_many_pass_as_alone():
    code = "def f(n): return 2 * n + (n % 20 == 7)"
    assert decided(judged(DOUBLE, code, all_tests=True)) == decided_apart(DOUBLE, code, all_tests=True)


def test_a_call_draws_the_same_random_numbers_in_a_batch_and_alone():
    code = "import random\ndef f(n): return 2 * n if random.random() < 0.97 else -1"
    for salt in range(6):
        salted = f"{code}\n# {salt}"
        assert decided(judged(DOUBLE, salted)) == decided_apart(DOUBLE, salted)


class Counted(StandIn):
    def __init__(self, inner) -> None:
        self.inner, self.slots, self.made = inner, 1, 0

    async def run(self, job):
        async with contextlib.aclosing(self.inner.run(job)) as executions:
            async for execution in executions:
                self.made += 1
                yield execution


def test_hundreds_of_calls_take_few_processes_and_each_has_a_time():
    many = replace(DOUBLE, tests=tuple(CallTest((n,), 2 * n) for n in range(700)))

    async def run() -> tuple[int, list[float]]:
        seconds: list[float] = []
        async with room("auto") as executor:
            counted = Counted(executor)
            assert (await judge_async(many, HONEST["plain"][1], counted, seconds=seconds)).correct
            return counted.made, seconds

    made, seconds = asyncio.run(run())
    assert made < 10
    assert len(seconds) == 700
