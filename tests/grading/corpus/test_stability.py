"""The same programs get the same verdicts, however many run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import cycle, islice

import pytest

from code_rl.grading.judging import judge_async
from code_rl.grading.verdict import VerdictKind
from tests.grading.corpus.cheats_call import CHEATS_CALL
from tests.grading.corpus.cheats_stdin import CHEATS_STDIN
from tests.grading.corpus.entries import Entry, stdin_problem
from tests.grading.corpus.honest_call import HONEST_CALL
from tests.grading.corpus.honest_stdin import HONEST_STDIN
from tests.grading.corpus.rooms import room

STABLE_KINDS = ("output tricks", "early exit", "patched grader", "returned objects", "missing")
TIMED = ("flood", "huge", "deep", "exponential", "cyclic", "grows", "sigalrm", "thread_exits", "fork", "spin")
"""Entries that race a limit or a clock of their own: their verdict kind may depend on the load by design."""

ONE_SECOND = """
import time
input()
end = time.process_time() + 1.0
while time.process_time() < end:
    for _ in range(10000):
        pass
print("done")
"""


def _entries() -> list[Entry]:
    cheats = [entry for entry in (*CHEATS_STDIN, *CHEATS_CALL) if entry.kind in STABLE_KINDS]
    return [*HONEST_STDIN, *HONEST_CALL, *(entry for entry in cheats if not any(word in entry.name for word in TIMED))]


async def _verdicts(entries: Sequence[Entry], concurrency: int) -> list[VerdictKind]:
    async with room("full", concurrency) as executor:
        verdicts = await asyncio.gather(*(judge_async(entry.problem, entry.code, executor) for entry in entries))
    return [verdict.kind for verdict in verdicts]


def _flips(entries: Sequence[Entry], levels: Sequence[int], rounds: int) -> dict[str, list[str]]:
    seen: dict[str, set[str]] = {}
    for concurrency in levels:
        for _ in range(rounds):
            for entry, kind in zip(entries, asyncio.run(_verdicts(entries, concurrency)), strict=True):
                seen.setdefault(f"{entry.kind}: {entry.name}", set()).add(kind.value)
    return {name: sorted(kinds) for name, kinds in seen.items() if len(kinds) > 1}


def test_a_few_submissions_get_one_verdict_each_at_concurrency_one_and_sixteen() -> None:
    entries = _entries()[::6]
    assert _flips(entries, (1, 16), rounds=1) == {}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_thousand_submissions_get_the_same_verdicts_at_concurrency_1_8_and_64_five_times_each() -> None:
    entries = list(islice(cycle(_entries()), 1000))
    assert _flips(entries, (1, 8, 64), rounds=5) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_right_program_of_one_cpu_second_passes_64_of_64_at_once_under_a_limit_of_six() -> None:
    problem = stdin_problem("wait", ("go\n", "done\n"), time_limit_s=6.0)
    entry = Entry("one_second", "load", ONE_SECOND, problem, frozenset({VerdictKind.PASSED}))
    assert asyncio.run(_verdicts([entry] * 64, 64)) == [VerdictKind.PASSED] * 64
