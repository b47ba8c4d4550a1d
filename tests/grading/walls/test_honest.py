"""Right programs pass, in whatever form."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.grading.corpus.rooms import room
from tests.grading.walls.honest import HONEST
from tests.grading.walls.programs import SAMPLES, Entry, chosen, misjudged, verdicts


async def _run(name: str, entries: Sequence[Entry], at_once: int = 4) -> dict[str, str]:
    async with room(name, at_once) as executor:
        return misjudged(entries, await verdicts(entries, executor, at_once))


@pytest.mark.parametrize(("name", "sample"), [*SAMPLES, pytest.param("none", False, id="none", marks=pytest.mark.slow)])
def test_right_programs_pass(name: str, sample: bool) -> None:
    assert asyncio.run(_run(name, chosen(HONEST, name, sample))) == {}
