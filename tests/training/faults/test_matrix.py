"""Every fault at every stage: the right result, or a resumable stop with one clear line. `tests/training/faults/matrix.py` writes the table."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.training.faults.matrix import BEGIN, END, GOES_ON, PAGE, STOPS, Workshop, workshop
from tests.training.faults.strikes import FAULTS, STAGES

MUST_GO_ON = ("clock forward", "clock back", "sandbox away")


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    with workshop() as made:
        yield made


@pytest.fixture(scope="module")
def overlapped() -> Iterator[Workshop]:
    with workshop(1) as made:
        yield made


def ends_as_promised(shop: Workshop, fault: str, stage: str) -> None:
    if fault == "disk full" and not shop.small_disk:
        pytest.skip("a small disk cannot be mounted here")
    cell = shop.cell(fault, stage)
    assert not cell.wrong, cell
    if fault in MUST_GO_ON:
        assert cell.how == GOES_ON, cell


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_at_every_stage(shop, fault, stage):
    ends_as_promised(shop, fault, stage)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", ["disk full", "SIGKILL", "sandbox gone", "back end gone"])
def test_the_gravest_faults_at_every_stage_of_the_overlapped_schedule(overlapped, fault, stage):
    ends_as_promised(overlapped, fault, stage)


def test_the_table_in_the_docs_has_every_fault_and_stage_and_no_cell_that_is_wrong():
    text = PAGE.read_text()
    rows = [line.strip("| ").split(" | ") for line in text.partition(BEGIN)[2].partition(END)[0].strip().splitlines()]
    assert rows[0] == list(STAGES)
    assert [row[0] for row in rows[2:]] == list(FAULTS)
    for row in rows[2:]:
        assert len(row) == len(STAGES) + 1
        assert all(re.fullmatch(rf"{GOES_ON}|{STOPS} \((\d+|signal \d+)\)|not run yet", cell) for cell in row[1:]), row
