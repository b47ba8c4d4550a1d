"""The references of the public sets pass their own sets' tests through our readers, sandbox and judge.

Run as a program it prints the table of docs/evidence.md: `python tests/grading/corpus/test_references.py [source ...]`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

import pytest

from tests.grading.corpus.references import SOURCES, Item, Report, judge_references, read_sample, read_source
from tests.grading.corpus.rooms import room

SAMPLE = 2
QUICK = ("humaneval", "humanevalplus-mini", "mbpp", "mbppplus", "leetcode-v0.2.0-test", "leetcode-v0.3.1-test")
"""One file of each shape; reading the others alone takes seconds."""


def judged(items: Iterable[Item]) -> Report:
    async def run() -> Report:
        async with room("full") as executor:
            return await judge_references(items, executor)

    return asyncio.run(run())


@pytest.mark.long
@pytest.mark.parametrize("name", QUICK)
def test_a_seeded_sample_of_references_passes(name: str) -> None:
    source = SOURCES[name]
    report = judged(read_sample(source, SAMPLE))
    assert report.failed.keys() <= source.bad, report.failed
    assert report.skipped.keys() <= source.skipped, report.skipped


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", SOURCES)
def test_every_reference_passes_but_those_known_as_bad(name: str) -> None:
    source = SOURCES[name]
    report = judged(read_source(source))
    assert sum(report.counts.values()) == source.rows
    assert report.failed.keys() == source.bad, report.failed
    assert report.skipped.keys() == source.skipped, report.skipped


async def _print_table(names: list[str]) -> None:
    async with room("auto") as executor:
        print(executor.description)
        for name in names:
            start = time.perf_counter()
            report = await judge_references(read_source(SOURCES[name]), executor)
            print(name, dict(report.counts), f"{time.perf_counter() - start:.0f} s", flush=True)
            for title in ("failed", "skipped", "slow"):
                if getattr(report, title):
                    print(f"  {title}: {getattr(report, title)}", flush=True)


if __name__ == "__main__":
    asyncio.run(_print_table(sys.argv[1:] or list(SOURCES)))
