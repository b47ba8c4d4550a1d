"""Every program of the corpora gets the verdict that it deserves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.grading.corpus.rooms import room
from tests.grading.walls.between import BETWEEN
from tests.grading.walls.blame import BLAME, BLAMED_CHECKERS
from tests.grading.walls.programs import SAMPLES, Entry, chosen, misjudged, verdicts


async def _run(name: str, entries: Sequence[Entry], at_once: int = 4) -> dict[str, str]:
    async with room(name, at_once) as executor:
        return misjudged(entries, await verdicts(entries, executor, at_once))


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_no_program_turns_its_own_doing_into_a_fault_of_the_sandbox(name: str, sample: bool) -> None:
    assert asyncio.run(_run(name, chosen(BLAME, name, sample))) == {}


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_an_output_that_a_checker_cannot_stand_is_a_wrong_answer(name: str, sample: bool) -> None:
    assert asyncio.run(_run(name, chosen(BLAMED_CHECKERS, name, sample))) == {}


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_nothing_that_a_test_leaves_reaches_the_next(name: str, sample: bool) -> None:
    assert asyncio.run(_run(name, chosen(BETWEEN, name, sample))) == {}
