"""The card of a prepared set: `card.md` and `card.json`.

It has the rows by outcome, tests per problem, J of the tests as the source has them and as they are
written, the problems whose tests are weak or wrong, licence, and overlap with evaluation sets.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_rl.data.preparation.report import Report
from code_rl.data.preparation.verification.programs import (
    MUTANTS,
    RIGHT,
    TRIVIAL,
    UNKNOWN,
    WRONG,
    Verdicts,
    quality,
    rate,
    wrong_kind,
)
from code_rl.data.preparation.workspace import Candidate
from code_rl.util.files import write_atomically
from code_rl.util.pages import render_text
from code_rl.util.rates import RewardQuality

CARD = "card.md"
WRONG_TESTS = frozenset(
    {"reference_fails", "flaky", "impossible_time_limit", "broken_checker", "no_reading_fits"}
)
# The rows of each list that the Markdown shows; the JSON has all.
SHOWN = 20


@dataclass(frozen=True, slots=True)
class TestQuality:
    """J of a set of problems, the rates of each kind of wrong program, and counts by verdict of
    right and wrong programs. `unknown` counts mutants that pass and may be right."""

    quality: RewardQuality
    kinds: Mapping[str, Any]
    right: Mapping[str, int]
    wrong: Mapping[str, int]
    unknown: int

    @classmethod
    def of(cls, problems: Iterable[Verdicts]) -> TestQuality:
        """Return the quality of these problems' tests."""
        every = list(problems)
        counted = {
            kind: rate(one.get(kind, {}) for one in every) for kind in (TRIVIAL, WRONG, MUTANTS)
        }
        wrong = _total(one.get(wrong_kind(one), {}) for one in every)
        unknown = wrong.pop(UNKNOWN, 0)
        kinds = {kind: found for kind, found in counted.items() if found.total}
        right = _total(one.get(RIGHT, {}) for one in every)
        return cls(quality(every), kinds, right, wrong, unknown)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON data."""
        return {
            **self.quality.to_json(),
            "wrong_programs": {kind: found.to_json() for kind, found in self.kinds.items()},
            "verdicts_of_right": dict(self.right),
            "verdicts_of_wrong": dict(self.wrong),
            "mutants_of_unknown_meaning": self.unknown,
        }


@dataclass(frozen=True, slots=True)
class Card:
    """The card's content. `source` and `kept` are the qualities before and after dropping."""

    dataset: str
    licences: Sequence[str]
    provenance: Any
    rows: Mapping[str, int]
    tests: Mapping[str, float]
    source: TestQuality
    kept: TestQuality
    weak_tests: Sequence[Mapping[str, Any]]
    wrong_tests: Sequence[Mapping[str, Any]]
    overlap: Mapping[str, int]

    @property
    def summary(self) -> str:
        """One line about the kept problems."""
        return str(self.kept.quality)

    def to_json(self) -> dict[str, Any]:
        """Return the content of `card.json`."""
        names = ("dataset", "licences", "provenance", "rows", "tests", "overlap")
        return {
            **{name: getattr(self, name) for name in names},
            "source": self.source.to_json(),
            "kept": self.kept.to_json(),
            "weak_tests": self.weak_tests,
            "wrong_tests": self.wrong_tests,
        }

    def save(self, folder: Path) -> None:
        """Write `card.json` and `card.md`."""
        write_atomically(folder / "card.json", json.dumps(self.to_json(), indent=1) + "\n")
        text = render_text(Path(__file__).with_name("card.md.j2"), card=self, shown=SHOWN)
        write_atomically(folder / CARD, text)


def make_card(report: Report, kept: Sequence[Candidate], sets: Sequence[str]) -> Card:
    """Return the card of a finished run. `kept` are its problems, `sets` the evaluation sets that
    were compared."""
    ids = {one.entry.id for one in kept}
    programs = report.programs
    dropped = {one.id: one for stage in report.stages for one in stage.dropped}
    reasons = Counter(one.reason for stage in report.stages for one in stage.dropped)
    overlap = Counter(str(pair["set"]) for pair in report.pairs)
    sources = report.provenance if isinstance(report.provenance, list) else [report.provenance]
    return Card(
        dataset=report.dataset,
        licences=[str(one.get("licence") or "unstated") for one in sources],
        provenance=report.provenance,
        rows={"read": report.stages[0].went_in, "kept": len(kept), **dict(reasons.most_common())},
        tests=_tests([one.metadata.get("tests", one.entry.tests) for one in kept]),
        source=TestQuality.of(programs.values()),
        kept=TestQuality.of(found for name, found in programs.items() if name in ids),
        weak_tests=[
            {
                "id": name,
                "passing_wrong": found.passed,
                "wrong": found.total,
                "kind": wrong_kind(verdicts),
                "outcome": dropped[name].reason if name in dropped else "kept",
            }
            for name, verdicts in programs.items()
            if (found := quality([verdicts]).fpr).passed
        ],
        wrong_tests=[
            {"id": one.id, "reason": one.reason, "detail": one.detail}
            for one in dropped.values()
            if one.reason in WRONG_TESTS
        ],
        overlap={name: overlap[name] for name in sets},
    )


def _tests(counts: Sequence[int]) -> dict[str, float]:
    if not counts:
        return {}
    median, mean = statistics.median(counts), round(statistics.mean(counts), 1)
    return {"fewest": min(counts), "median": median, "mean": mean, "most": max(counts)}


def _total(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total = Counter[str]()
    for each in counts:
        total.update(each)
    return total
