"""The same programs get the same verdicts, however many run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle, islice

import pytest

from code_rl.grading import Problem, StdinTest, VerdictKind
from code_rl.grading.audit import CorpusProgram
from tests.grading.corpus.programs import of_class, of_kind, verdicts
from tests.grading.corpus.rooms import room

STABLE = ("output tricks", "early exit", "patched grader", "returned objects", "missing")
RACING = ("flood", "huge", "deep", "exponential", "cyclic", "grows", "sigalrm", "thread_exits", "fork", "spin")
"""Programs that race a limit or a clock of their own: their verdicts may depend on the load."""
ONE_SECOND = """
import time
input()
end = time.process_time() + 1.0
while time.process_time() < end:
    for _ in range(10000):
        pass
print("done")
"""


def _entries() -> list[CorpusProgram]:
    steady = [entry for entry in of_class(*STABLE) if not any(word in entry.name for word in RACING)]
    return [*of_kind("honest"), *steady]


async def _kinds(entries: Sequence[CorpusProgram], concurrency: int) -> list[VerdictKind]:
    async with room("full", concurrency) as executor:
        return [verdict.kind for verdict in await verdicts(entries, executor, len(entries))]


def _flips(entries: Sequence[CorpusProgram], levels: Sequence[int], rounds: int) -> dict[str, list[str]]:
    seen: dict[str, set[str]] = {}
    for concurrency in levels:
        for _ in range(rounds):
            for entry, kind in zip(entries, asyncio.run(_kinds(entries, concurrency)), strict=True):
                seen.setdefault(entry.name, set()).add(kind.value)
    return {name: sorted(kinds) for name, kinds in seen.items() if len(kinds) > 1}


@pytest.mark.long
def test_a_few_submissions_get_one_verdict_each_at_concurrency_one_and_sixteen() -> None:
    entries = _entries()[::9]
    assert _flips(entries, (1, 16), rounds=1) == {}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_submissions_get_the_same_verdicts_at_concurrency_1_8_and_64_five_times_each() -> None:
    entries = list(islice(cycle(_entries()), 1000))
    assert _flips(entries, (1, 8, 64), rounds=5) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_right_program_of_one_cpu_second_passes_64_of_64_at_once_under_a_limit_of_six() -> None:
    entry = CorpusProgram("one_second", "honest", "", ONE_SECOND, Problem("wait", "", (StdinTest("go\n", "done\n"),)))
    assert asyncio.run(_kinds([entry] * 64, 64)) == [VerdictKind.PASSED] * 64
