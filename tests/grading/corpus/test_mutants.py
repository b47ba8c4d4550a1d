"""A wrong program that the sets' own tests kill in a plain run is never paid.

Run as a program it prints its figures: `python tests/grading/corpus/test_mutants.py [mutants per problem]`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

import pytest

from code_rl.data.preparation.wrong_programs import mutants
from tests.grading.corpus.killers import Tally, drafts, judge_mutants
from tests.grading.corpus.rooms import room

EACH = 6


def test_mutants_differ_from_their_source_and_depend_on_the_seed_only() -> None:
    source = "def f(a, b):\n    if a < b and not a == 3:\n        return [a + 1, b[1:]]\n    return (a, b)\n"
    made = mutants(source, 20, "seed")
    assert made == mutants(source, 20, "seed")
    assert source.strip() not in made
    assert len(set(made)) == len(made) == 20


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_no_killed_mutant_of_the_whole_sets_is_paid() -> None:
    async def run() -> Tally:
        async with room("full") as executor:
            return await judge_mutants(drafts(), EACH, executor)

    tally = asyncio.run(run())
    assert tally.paid == []
    assert sum(tally.fates.values()) >= 2000
    assert tally.fates["killed"] > 30


async def _print_figures(count: int) -> None:
    start = time.perf_counter()
    async with room("auto") as executor:
        print(executor.description)
        tally = await judge_mutants(drafts(), count, executor)
    print(f"{time.perf_counter() - start:.0f} s", dict(tally.fates), dict(tally.verdicts))
    for name in ("paid", "stricter", "undecided_passes", "references_lost"):
        print(f"{name}: {len(getattr(tally, name))}")
        for line in getattr(tally, name):
            print(f"  {line}")


if __name__ == "__main__":
    asyncio.run(_print_figures(int(sys.argv[1]) if sys.argv[1:] else EACH))
