"""A program that searches all that it can reach finds no other submission's program, and no expected output that a checker saw."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.grading.corpus.rooms import room
from tests.grading.walls.programs import SAMPLES, Entry, chosen, misjudged, verdicts
from tests.grading.walls.thieves import ASKED, CHECKER_THIEVES, OWNERS, THIEVES

AT_ONCE = 4


def _among(owners: Sequence[Entry], thieves: Sequence[Entry]) -> list[Entry]:
    """Every place has run an owner before the first thief comes, and owners go on among the thieves."""
    mixed = [*owners] * (3 * AT_ONCE // len(owners) + 1)
    for number, thief in enumerate(thieves):
        mixed += [thief] if number % 2 else [owners[number // 2 % len(owners)], thief]
    return mixed


async def _run(name: str, owners: Sequence[Entry], thieves: Sequence[Entry]) -> dict[str, str]:
    entries = _among(owners, thieves)
    async with room(name, AT_ONCE) as executor:
        return misjudged(entries, await verdicts(entries, executor, AT_ONCE))


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_no_thief_finds_the_program_of_another_submission(name: str, sample: bool) -> None:
    assert asyncio.run(_run(name, OWNERS, chosen(THIEVES, name, sample))) == {}


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_no_thief_finds_what_a_checker_was_asked(name: str, sample: bool) -> None:
    assert asyncio.run(_run(name, ASKED, chosen(CHECKER_THIEVES, name, sample))) == {}
