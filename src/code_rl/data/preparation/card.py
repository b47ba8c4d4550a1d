"""The card of a prepared set: `card.md` and `card.json`.

It is written after each stage. It has the counts of the stages, the rows by outcome, tests per
problem, J of the tests as the source has them and as they are written, the problems whose tests are
weak or wrong, licence, and overlap with evaluation sets.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import chz

from code_rl.data.preparation.decisions import Verdicts
from code_rl.data.preparation.report import CARD, Report
from code_rl.data.preparation.verification.programs import quality, wrong_kind
from code_rl.data.preparation.workspace import Candidate, Workspace
from code_rl.util.data_files import sources_digest
from code_rl.util.files import write_atomically
from code_rl.util.pages import render_page
from code_rl.util.version import __version__

WRONG_TESTS = ("reference_fails", "flaky", "impossible_time_limit", "broken_checker")


def write_card(report: Report, kept: Sequence[Candidate], workspace: Workspace) -> str:
    """Write the card and `dropped.jsonl` (every dropped row, in order). Return the card's line
    about the problems `kept` so far."""
    out, card = workspace.out, _card(report, kept, workspace)
    dropped = map(asdict, report.dropped)
    write_atomically(out / "dropped.jsonl", "".join(json.dumps(row) + "\n" for row in dropped))
    write_atomically(out / "card.json", json.dumps(card, indent=1) + "\n")
    # Markdown shows HTML's escapes as the characters.
    write_atomically(out / CARD, render_page(Path(__file__).with_name("card.md.j2"), card=card))
    return str(card["kept"]["summary"])


def _card(report: Report, kept: Sequence[Candidate], workspace: Workspace) -> dict[str, Any]:
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
        "stages": [stage.to_json() for stage in report.stages],
        "rows": {
            "read": report.stages[0].went_in,
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
    """Return J, its rates, and the verdicts on each kind of program."""
    every = list(problems)
    totals: dict[str, Counter[str]] = {}
    for kind, counts in (item for one in every for item in one.items()):
        totals.setdefault(kind, Counter()).update(counts)
    return {**quality(every).to_json(), "verdicts": totals}
