"""The corpora are what they say: large enough, without a name twice, and of programs that compile where they should."""

from __future__ import annotations

import pytest

from tests.grading.walls.between import BETWEEN
from tests.grading.walls.blame import BLAME, BLAMED_CHECKERS
from tests.grading.walls.holders import HOLDERS
from tests.grading.walls.honest import HONEST
from tests.grading.walls.neighbours import PAIRS
from tests.grading.walls.thieves import CHECKER_THIEVES, THIEVES

KINDS = {
    "thieves": THIEVES,
    "checker_thieves": CHECKER_THIEVES,
    "blame": BLAME,
    "blamed_checkers": BLAMED_CHECKERS,
    "holders": HOLDERS,
    "between": BETWEEN,
    "honest": HONEST,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_corpus_has_at_least_fifteen_programs_and_no_name_twice(kind: str) -> None:
    names = [entry.name for entry in KINDS[kind]]
    assert len(set(names)) == len(names) >= 15
    assert any(entry.quick for entry in KINDS[kind])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "blame"])
def test_every_program_compiles_so_that_it_fails_for_what_it_tries(kind: str) -> None:
    for entry in KINDS[kind]:
        compile(entry.code, entry.name, "exec")


def test_there_are_at_least_fifteen_pairs_of_neighbours() -> None:
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 15
    for pair in PAIRS:
        compile(pair.writer, pair.name, "exec")
        compile(pair.reader, pair.name, "exec")
