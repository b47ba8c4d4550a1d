"""`examples/course_loop.py` trains, and leaves a checkpoint, metrics and a report."""

from __future__ import annotations

import asyncio
import json

import pytest

pytest.importorskip("torch")

from examples.course_loop import STEPS, main


@pytest.mark.slow
def test_a_loop_with_the_names_of_the_course_leaves_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asyncio.run(main())
    folder = tmp_path / "own-loop"
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(STEPS))
    assert all(record["n_datums"] > 0 for record in records)
    assert (folder / "report.html").is_file()
