"""The counts of a run, stage by stage, and the card of a prepared set: `card.md` and `card.json`.

The card is written after each stage. It has the counts of the stages, the rows by outcome, tests
per problem, J of the tests as the source has them and as they are written, the problems whose tests
are weak or wrong, licence, and overlap with evaluation sets.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import chz

from code_rl.data.preparation.verify import quality, wrong_kind
from code_rl.data.preparation.workspace import Candidate, Verdicts, Workspace
from code_rl.util.data_files import sources_digest
from code_rl.util.files import write_atomically
from code_rl.util.pages import render_page
from code_rl.util.version import __version__

CARD, DROPPED = "card.md", "dropped.jsonl"
WRONG_TESTS = ("reference_fails", "flaky", "impossible_time_limit", "broken_checker")


@dataclass(frozen=True, slots=True)
class Dropped:
    """One row that a stage dropped, and the evaluation set that has its problem."""

    id: str
    stage: str
    reason: str
    detail: str
    overlap: tuple[str, ...] = ()


@dataclass(slots=True)
class Report:
    """The whole run so far: its stages as the card has them, every dropped row in order, and the
    verdicts of stage `verify` by problem."""

    stages: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    programs: dict[str, Verdicts] = field(default_factory=dict)

    def add(
        self, stage: str, went_in: int, came_out: int, dropped: Sequence[Dropped], seconds: float
    ) -> str:
        """Add a stage with its dropped rows, and return its line for the terminal. `went_in` and
        `came_out` count problems (for `normalise`, rows of the source)."""
        reasons = dict(Counter(one.reason for one in dropped).most_common())
        self.stages.append(
            {
                "stage": stage,
                "in": went_in,
                "out": came_out,
                "dropped": reasons,
                "seconds": round(seconds, 3),
            }
        )
        self.dropped += dropped
        told = ", ".join(f"{reason} {count}" for reason, count in reasons.items())
        return (
            f"{stage:>13}  {went_in:>7} → {came_out:<7} {seconds:7.1f} s "
            f" {told or 'nothing dropped'}"
        )


def write_card(report: Report, kept: Sequence[Candidate], workspace: Workspace) -> str:
    """Write `card.md`, `card.json` and `dropped.jsonl` (every dropped row, in order), over those of
    an earlier stage. Return the card's line about the problems `kept` so far. Raises OSError."""
    out, card = workspace.out, _card(report, kept, workspace)
    rows = (json.dumps(asdict(one)) + "\n" for one in report.dropped)
    write_atomically(out / DROPPED, "".join(rows))
    write_atomically(out / "card.json", json.dumps(card, indent=1) + "\n")
    # Markdown shows HTML's escapes as the characters.
    write_atomically(out / CARD, render_page(Path(__file__).with_name("card.md.j2"), card=card))
    return str(card["kept"]["summary"])


def _card(report: Report, kept: Sequence[Candidate], workspace: Workspace) -> dict[str, Any]:
    """Return the card's record as JSON data: settings, provenance, counts by reason, and measured
    quality. `report` has at least one stage."""
    config, dropped = workspace.config, report.dropped
    ids = {one.entry.id for one in kept}
    reasons = {one.id: one.reason for one in dropped}
    overlap = Counter(name for one in dropped for name in one.overlap)
    tests = [min(one.entry.tests, config.max_tests) for one in kept] or [0]
    return {
        "dataset": config.dataset,
        "code": f"{__version__} {sources_digest('code_rl')[:12]}",
        "settings": chz.asdict(config),
        "provenance": workspace.dataset.provenance(),
        "stages": report.stages,
        "rows": {
            "read": report.stages[0]["in"],
            "kept": len(kept),
            **Counter(one.reason for one in dropped),
        },
        "tests": [min(tests), statistics.median(tests), max(tests)],
        "source": _measured(report.programs.values()),
        "kept": _measured(found for name, found in report.programs.items() if name in ids),
        "overlap": {name: overlap[name] for name in config.evaluation_sets},
        "weak_tests": [
            {
                "id": name,
                "passing": wrong.passed,
                "wrong": wrong.total,
                "kind": wrong_kind(found),
                "outcome": reasons.get(name, "kept"),
            }
            for name, found in report.programs.items()
            if (wrong := quality([found]).fpr).passed
        ],
        "wrong_tests": [
            {"id": one.id, "reason": one.reason, "detail": one.detail}
            for one in dropped
            if one.reason in WRONG_TESTS
        ],
    }


def _measured(problems: Iterable[Verdicts]) -> Mapping[str, Any]:
    """Return J, its rates, and the verdicts on each kind of program, summed over the problems."""
    every = list(problems)
    totals: dict[str, Counter[str]] = {}
    for kind, counts in (item for one in every for item in one.items()):
        totals.setdefault(kind, Counter()).update(counts)
    return {**quality(every).to_json(), "verdicts": totals}
