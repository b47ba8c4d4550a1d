"""Programs with many tests: judged by us, by evalplus's check, by LiveCodeBench's runner, and by `python` once per test.

    python benchmarks/many_tests.py [tests=1,20,100,750] [seconds=3] [rounds=3] [isolation=full] [evalplus=PYTHON] [official=…/testing_util.py]

Every way judges right programs on the same tests, calls or stdin, in as many lanes as there are processors, and takes its turn `rounds`
times; medians are shown, with the ratio of our rate to each. `evalplus` is an interpreter with evalplus 0.3.1, whose `untrusted_check`
judges calls only; `official` is LiveCodeBench's utility, run as its evaluation runs it, in one process a program. Neither has a sandbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import chz

from code_rl.cli.main import run_script
from code_rl.grading.judging import judge_async
from code_rl.grading.problem import CallTest, Problem, StdinTest
from code_rl.grading.sandbox.local.pool import EmbeddedSandbox

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.lcb_harness import Program, load_official, officially

LANES = len(os.sched_getaffinity(0))
CALLED = "def add(a, b):\n    return a + b\n"
SCRIPT = "a, b = map(int, input().split())\nprint(a + b)\n"
EVALPLUS = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from evalplus.eval import untrusted_check
tests, seconds, lanes = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
inputs = [[n, 3 * n] for n in range(tests)]
expected, times = [4 * n for n in range(tests)], [0.001] * tests
code = "def add(a, b):\\n    return a + b\\n"
end, done = time.perf_counter() + seconds, [0] * lanes
def lane(number):
    while time.perf_counter() < end:
        found = untrusted_check("humaneval", code, inputs, "add", expected, 0, times, fast_check=True)
        assert found[0] == "pass", found
        done[number] += 1
started = time.perf_counter()
with ThreadPoolExecutor(lanes) as pool:
    list(pool.map(lane, range(lanes)))
print(sum(done) / (time.perf_counter() - started))
"""


@chz.chz
class ManyTestsConfig:
    """Settings of the benchmark; see the head of its file."""

    tests: str = "1,20,100,750"
    seconds: float = 3.0
    rounds: int = 3
    isolation: str = "full"
    evalplus: str | None = None
    official: str | None = None


def main(config: ManyTestsConfig) -> int:
    print(f"programs judged a second; {LANES} processors, load {os.getloadavg()[0]:.1f}")
    ratios: dict[str, dict[str, float]] = {}
    for kind in ("call", "stdin"):
        for tests in map(int, config.tests.split(",")):
            ways = ways_of(config, kind, tests)
            found: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(config.rounds):
                for name, way in ways.items():
                    found[name].append(way())
            ours = statistics.median(found["code-rl"])
            case = f"{tests} {kind} test(s)"
            ratios[case] = {}
            print(f"\n{case}")
            for name, rates in found.items():
                rate = statistics.median(rates)
                print(f"  {name:<24}{rate:10.2f}   ours is {ours / rate:8.2f}x   {rate * tests:10.0f} tests/s")
                if name != "code-rl":
                    ratios[case][name] = ours / rate
    print("ratios", json.dumps(ratios))
    return 0


def ways_of(config: ManyTestsConfig, kind: str, tests: int) -> dict[str, Callable[[], float]]:
    """The ways of judging this kind of tests; each returns programs a second."""
    ways: dict[str, Callable[[], float]] = {
        "code-rl": partial(ours, config, kind, tests),
        "python per test": partial(in_lanes, config.seconds, partial(plain, kind, tests)),
    }
    if config.evalplus is not None and kind == "call":
        command = [config.evalplus, "-c", EVALPLUS, str(tests), str(config.seconds), str(LANES)]
        ways["evalplus"] = lambda: float(subprocess.run(command, capture_output=True, check=True).stdout)
    if config.official is not None:
        ways["LiveCodeBench's runner"] = partial(
            in_lanes, config.seconds, partial(official, Path(config.official), kind, tests)
        )
    return ways


def problem_of(kind: str, tests: int) -> Problem:
    if kind == "call":
        return Problem("add", "", tuple(CallTest((n, 3 * n), 4 * n) for n in range(tests)), fn_name="add")
    return Problem("add", "", tuple(StdinTest(f"{n} {3 * n}\n", f"{4 * n}\n") for n in range(tests)))


def ours(config: ManyTestsConfig, kind: str, tests: int) -> float:
    problem, code = problem_of(kind, tests), CALLED if kind == "call" else SCRIPT

    async def run() -> float:
        async with EmbeddedSandbox(2 * LANES, config.isolation) as box:
            done = 0

            async def lane(end: float) -> None:
                nonlocal done
                while time.perf_counter() < end:
                    assert (await judge_async(problem, code, box)).correct
                    done += 1

            await judge_async(problem, code, box)
            started = time.perf_counter()
            await asyncio.gather(*(lane(started + config.seconds) for _ in range(2 * LANES)))
            return done / (time.perf_counter() - started)

    return asyncio.run(run())


def in_lanes(seconds: float, judge_one: Callable[[], None]) -> float:
    """Programs a second of a function that judges one, called in `LANES` threads."""
    started = time.perf_counter()

    def lane(_: int) -> int:
        done = 0
        while time.perf_counter() < started + seconds:
            judge_one()
            done += 1
        return done

    with ThreadPoolExecutor(LANES) as pool:
        return sum(pool.map(lane, range(LANES))) / (time.perf_counter() - started)


def plain(kind: str, tests: int) -> None:
    for n in range(tests):
        code = SCRIPT if kind == "stdin" else f"{CALLED}print(add({n}, {3 * n}))"
        done = subprocess.run([sys.executable, "-c", code], input=f"{n} {3 * n}\n", capture_output=True, text=True)
        assert done.stdout == f"{4 * n}\n"


def official(utility: Path, kind: str, tests: int) -> None:
    program = Program(kind, problem_of(kind, tests), CALLED if kind == "call" else SCRIPT)
    assert officially(load_official(utility), program)


if __name__ == "__main__":
    run_script(ManyTestsConfig, main, "programs with many tests, judged by us and by others")
