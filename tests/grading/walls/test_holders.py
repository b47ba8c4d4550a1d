"""A program that uses little processor time is stopped soon, and its worker serves on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from code_rl.grading.judging import judge_async
from code_rl.grading.sandbox.executor import Limits
from tests.grading.corpus.rooms import room
from tests.grading.walls.holders import CEILING, HOLDERS, MANY, PATIENT, SHORT, WALL_CAP_S
from tests.grading.walls.programs import SAMPLES, Entry, chosen, misjudged, verdicts

AT_ONCE = 4
BUSY = 1.25
"""What waiting for a processor, which no budget counts, may add on a busy machine."""


async def _run(name: str, entries: Sequence[Entry]) -> dict[str, str]:
    async with room(name, AT_ONCE) as executor:
        found = await verdicts(entries, executor, AT_ONCE)
        bad = misjudged(entries, found)
        for entry, verdict in zip(entries, found, strict=True):
            budget_s = (
                CEILING * WALL_CAP_S
                if entry.problem is SHORT
                else BUSY * Limits(entry.problem.time_limit_s).submission_s(len(MANY.tests))
            )
            if verdict.wall_s > budget_s:
                bad[entry.name] = f"held its worker for {verdict.wall_s:.0f} s, {budget_s:.0f} s are allowed"
        afterwards = [*PATIENT[:1]] * AT_ONCE
        return bad | misjudged(afterwards, await verdicts(afterwards, executor, AT_ONCE))


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_no_program_holds_its_worker_beyond_the_ceiling(name: str, sample: bool) -> None:
    assert asyncio.run(_run(name, [*chosen(HOLDERS, name, sample), *chosen(PATIENT, name, sample)])) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_crowd_of_holders_is_stopped_as_soon_as_a_single_one() -> None:
    """Sixty-four workers on few processors: the ceiling does not grow with the load."""

    async def run() -> dict[str, float]:
        async with room("full", 64) as executor:
            found = await asyncio.gather(*(judge_async(SHORT, HOLDERS[n % 4].code, executor) for n in range(64)))
        return {f"{n}": verdict.wall_s for n, verdict in enumerate(found) if verdict.wall_s > CEILING * WALL_CAP_S}

    assert asyncio.run(run()) == {}
