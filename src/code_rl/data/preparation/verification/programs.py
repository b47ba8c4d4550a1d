"""The verdicts on a problem's right and wrong programs, and the quality of its tests.

A decision of stage `verify` has them in its notes, as counts by verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from code_rl.data.preparation.decisions import Decision, drop
from code_rl.grading import VerdictKind
from code_rl.util.rates import Rate, RewardQuality

RIGHT, WRONG, MUTANTS, TRIVIAL = "right", "wrong_solutions", "mutants", "trivial"
# The count of mutants that pass and are not known to differ from the reference.
UNKNOWN = "unknown"
NOTE = "programs"

Verdicts = Mapping[str, Mapping[str, int]]
"""Counts by verdict of each kind of program; trivial programs only if one passes."""


@dataclass(frozen=True, slots=True)
class Programs:
    """Counts by verdict of a problem's accepted solutions, wrong solutions and mutants."""

    right: Counter[str]
    wrong: Counter[str] = field(default_factory=Counter)
    mutants: Counter[str] = field(default_factory=Counter)


def with_programs(decision: Decision, programs: Programs) -> Decision:
    """Return the decision with these verdicts in its notes."""
    kinds = {RIGHT: programs.right, WRONG: programs.wrong, MUTANTS: programs.mutants}
    found = {name: dict(counts) for name, counts in kinds.items() if counts}
    return replace(decision, notes={**decision.notes, NOTE: found})


def verdicts_of(decision: Decision) -> Verdicts:
    """Return the verdicts in a decision's notes, none if no program was judged."""
    found: Verdicts = decision.notes.get(NOTE, {})
    return found


def wrong_kind(verdicts: Verdicts) -> str:
    """Return the kind of wrong programs that count for FPR: a trivial program that passes, else the
    set's own wrong solutions, else mutants."""
    return next((kind for kind in (TRIVIAL, WRONG) if kind in verdicts), MUTANTS)


def rate(problems: Iterable[Mapping[str, int]]) -> Rate:
    """Return the share of programs that pass, given each problem's counts by verdict. Programs
    without a verdict, and mutants not known to be wrong, do not count."""
    totals = [
        (
            counts.get(VerdictKind.PASSED.value, 0),
            sum(n for kind, n in counts.items() if kind != UNKNOWN and not _undecided(kind)),
        )
        for counts in problems
    ]
    passed, total = (sum(column) for column in zip(*totals, strict=True)) if totals else (0, 0)
    return Rate(passed, total, sum(n > 0 for _, n in totals))


def _undecided(kind: str) -> bool:
    return VerdictKind(kind).undecided


def quality(problems: Iterable[Verdicts]) -> RewardQuality:
    """Return TPR, FPR and J over problems."""
    every = list(problems)
    right = rate(verdicts.get(RIGHT, {}) for verdicts in every)
    return RewardQuality(right, rate(one.get(wrong_kind(one), {}) for one in every))


def at_least(decision: Decision, min_j: float | None) -> Decision:
    """Drop a problem whose J is below `min_j`. A problem of unknown J is kept."""
    found = quality([verdicts_of(decision)])
    if not decision.keep or min_j is None or found.j is None or found.j >= min_j:
        return decision
    dropped = drop(
        "low_j",
        f"J is {found.j:.2f}: {found.fpr.passed} of {found.fpr.total} "
        f"wrong programs pass, {found.tpr.passed} of {found.tpr.total} right ones",
    )
    return replace(dropped, notes={NOTE: verdicts_of(decision)})
