"""Planted noise: every kind of defect is found with the right reason, and no clean problem is dropped."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from code_rl.cli.main import main
from code_rl.grading.native import write_problems
from tests.data.preparation.planted import Planted, planted_set
from tests.grading.corpus.reading import read_problems


def found(folder: Path, total: int, defects: int) -> tuple[list[Planted], dict[str, dict[str, str]]]:
    """Run the whole verb on a planted set; returns the set and the dropped rows, by id."""
    planted, eval_problems = planted_set(total, defects)
    write_problems(folder / "noisy.jsonl", [one.problem for one in planted])
    write_problems(folder / "exams.jsonl", eval_problems)
    out = folder / "out"
    words = [f"dataset={folder / 'noisy.jsonl'}", f"out={out}", f"decontaminate={folder / 'exams.jsonl'}", "mutants=2"]
    assert main(["prepare", *words]) == 0
    dropped = {row["id"]: row for row in map(json.loads, (out / "dropped.jsonl").read_text().splitlines())}
    kept = {problem.id for problem in read_problems(out / "train.jsonl")}
    assert kept | dropped.keys() == {one.problem.id for one in planted}
    return planted, dropped


def check(folder: Path, total: int, defects: int, least: int, alike: int = 0) -> None:
    """`alike`: clean problems that may go as copies of others, from which they differ in a word (a stated limit)."""
    planted, dropped = found(folder, total, defects)
    clean_dropped = [dropped[one.problem.id] for one in planted if not one.reasons and one.problem.id in dropped]
    assert [row for row in clean_dropped if row["reason"] != "duplicate"] == []
    assert len(clean_dropped) <= alike
    missed = Counter(
        (one.kind, dropped.get(one.problem.id, {}).get("reason", "kept"))
        for one in planted
        if one.reasons and dropped.get(one.problem.id, {}).get("reason") not in one.reasons
    )
    assert defects - sum(missed.values()) >= least, missed


@pytest.mark.long
def test_each_of_ten_kinds_of_defect_is_found_for_its_own_reason(tmp_path: Path) -> None:
    check(tmp_path, total=40, defects=20, least=20)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_of_100_defects_among_500_problems_at_least_95_are_found_and_hardly_a_clean_one_goes(tmp_path: Path) -> None:
    check(tmp_path, total=500, defects=100, least=95, alike=2)
