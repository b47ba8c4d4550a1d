"""Every idiom of honest Python passes, wherever it runs."""

from __future__ import annotations

import asyncio

import pytest

from tests.grading.corpus.honest_call import HONEST_CALL
from tests.grading.corpus.honest_stdin import HONEST_STDIN
from tests.grading.corpus.rooms import SHARES, room
from tests.grading.corpus.verdicts import misjudged


def test_the_corpus_has_at_least_forty_idioms() -> None:
    assert len({entry.name for entry in (*HONEST_STDIN, *HONEST_CALL)}) >= 40


@pytest.mark.parametrize(("name", "step"), [*SHARES, pytest.param("none", 3, id="none-third")])
def test_honest_programs_that_read_stdin_pass(name: str, step: int) -> None:
    async def run() -> dict[str, str]:
        async with room(name) as executor:
            return await misjudged(HONEST_STDIN[::step], executor)

    assert asyncio.run(run()) == {}


@pytest.mark.parametrize(("name", "step"), [*SHARES, pytest.param("none", 3, id="none-third")])
def test_honest_functions_pass(name: str, step: int) -> None:
    async def run() -> dict[str, str]:
        async with room(name) as executor:
            return await misjudged(HONEST_CALL[::step], executor)

    assert asyncio.run(run()) == {}
