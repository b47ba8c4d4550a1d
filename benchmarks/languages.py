"""C++ programs a second: compiled once and run on 1 and 20 tests in boxes, beside plain `g++` and `./main` in a loop.

    python benchmarks/languages.py [tests=1,20] [programs=12] [rounds=3] [at_once=2]

Both ways compile every program (their texts differ) and check every output. They take turns; medians are shown.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from code_rl import Problem, StdinTest, judge_async
from code_rl.cli.main import HELP
from code_rl.grading.sandbox import connect_executor
from code_rl.util.settings import read_arguments

PROGRAM = "#include <iostream>\nint main() {{ long long n; std::cin >> n; std::cout << n * n << '\\n'; }} // {}\n"
COMPILE = ["g++", "-std=c++20", "-O2", "-o"]


def boxes(texts: list[str], tests: int, at_once: int) -> None:
    """Judge the programs."""
    cases = tuple(StdinTest(f"{n}\n", f"{n * n}\n") for n in range(tests))
    problem = Problem("squares", "", cases, language="cpp", time_limit_s=10.0)

    async def work() -> None:
        executor = connect_executor("embedded", isolation="full", concurrency=at_once)
        try:
            verdicts = await asyncio.gather(*(judge_async(problem, text, executor) for text in texts))
        finally:
            await executor.aclose()
        assert all(verdict.correct for verdict in verdicts), verdicts

    asyncio.run(work())


def plain(texts: list[str], tests: int, at_once: int) -> None:
    """Compile and run the programs without a sandbox."""

    def one(text: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            source, main = Path(folder) / "main.cpp", f"{folder}/main"
            source.write_text(text)
            subprocess.run([*COMPILE, main, str(source)], check=True)
            for n in range(tests):
                done = subprocess.run([main], input=f"{n}\n".encode(), capture_output=True, check=True)
                assert done.stdout == f"{n * n}\n".encode()

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, texts))


def rate(way: Callable[[list[str], int, int], None], texts: list[str], tests: int, at_once: int) -> float:
    """Return programs a second."""
    began = time.perf_counter()
    way(texts, tests, at_once)
    return len(texts) / (time.perf_counter() - began)


def main(words: list[str]) -> int:
    if any(word in HELP for word in words):
        print(__doc__)
        return 0
    settings = {"tests": "1,20", "programs": "12", "rounds": "3", "at_once": "2", **read_arguments(words)}
    many, rounds, at_once = (int(settings[name]) for name in ("programs", "rounds", "at_once"))
    ratios: dict[str, dict[str, float]] = {}
    for tests in map(int, settings["tests"].split(",")):
        found: dict[str, list[float]] = {"boxes": [], "plain g++": []}
        for turn in range(rounds):
            for name, way in (("boxes", boxes), ("plain g++", plain)):
                texts = [PROGRAM.format(f"{tests} {turn} {name} {number}") for number in range(many)]
                found[name].append(rate(way, texts, tests, at_once))
        ours, theirs = (statistics.median(found[name]) for name in found)
        print(f"{tests} tests: boxes {ours:.2f} programs/s, plain {theirs:.2f}; ratio {ours / theirs:.2f}", flush=True)
        ratios[f"{tests} test(s) of a C++ program"] = {"plain g++ and ./main": ours / theirs}
    print("ratios", json.dumps(ratios))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
