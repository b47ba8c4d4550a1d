"""The speedrun: its record is what its settings give."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from benchmarks.speedrun import RECORD, processor, race


@pytest.mark.slow
def test_the_record_is_made_again_to_the_digit():
    record = json.loads(RECORD.read_text())
    if record["processor"] != processor():
        pytest.skip(f"the record was made with {record['processor']}")
    assert race(record["settings"], ["0"])["seeds"]["0"] == record["seeds"]["0"]
