"""`code-rl prepare` on problems of a test, and the files that it leaves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_rl.cli.main import main
from code_rl.data import open_dataset
from code_rl.grading import Problem
from code_rl.grading.native import write_problems
from tests.kinds import each_is


@dataclass(frozen=True)
class Prepared:
    """The folder of a finished run."""

    out: Path

    @property
    def card(self) -> dict[str, Any]:
        return dict(json.loads((self.out / "card.json").read_text()))

    @property
    def dropped(self) -> dict[str, dict[str, Any]]:
        """The dropped rows by id."""
        rows = map(json.loads, (self.out / "dropped.jsonl").read_text().splitlines())
        return {row["id"]: row for row in rows}

    @property
    def reasons(self) -> dict[str, str]:
        return {name: row["reason"] for name, row in self.dropped.items()}

    @property
    def problems(self) -> dict[str, Problem]:
        """The problems that were written, by id."""
        if not (self.out / "manifest.json").exists():
            return {}
        return {problem.id: problem for problem in each_is(Problem, open_dataset(f"{self.out}:train"))}

    def stage(self, name: str) -> dict[str, Any]:
        (found,) = (stage for stage in self.card["stages"] if stage["stage"] == name)
        return dict(found)


def prepared(folder: Path, problems: Iterable[Problem] | Path, *words: str) -> Prepared:
    """Prepare problems, or a file, in `folder / "out"`."""
    path = problems if isinstance(problems, Path) else folder / "set.jsonl"
    if not isinstance(problems, Path):
        folder.mkdir(exist_ok=True)
        write_problems(path, problems)
    assert main(["prepare", f"dataset={path}", f"out={folder / 'out'}", *words]) == 0
    return Prepared(folder / "out")
