"""The verdicts on a problem's right and wrong programs, and the quality of its tests.

A decision of stage `verify` has them in its notes, as counts by verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from code_rl.data.preparation.decisions import Decision, drop
from code_rl.grading import VerdictKind
from code_rl.util.rates import Rate, RewardQuality

RIGHT, TRIVIAL, WRONG, MUTANTS = "right", "trivial", "wrong_solutions", "mutants"
# The count of mutants that pass and are not known to differ from the reference.
UNKNOWN = "unknown"
PROGRAMS = "programs"

Verdicts = Mapping[str, Mapping[str, int]]
"""Counts by verdict of each kind of program. Trivial programs are counted only if one passes."""


def with_programs(decision: Decision, verdicts: Verdicts) -> Decision:
    """Return the decision with these verdicts in its notes."""
    found = {kind: dict(counts) for kind, counts in verdicts.items()}
    return replace(decision, notes={**decision.notes, PROGRAMS: found})


def wrong_kind(verdicts: Verdicts) -> str:
    """Return the kind of wrong programs that count for FPR: a trivial program that passes, else the
    set's own wrong solutions, else mutants."""
    return next((kind for kind in (TRIVIAL, WRONG) if kind in verdicts), MUTANTS)


def quality(problems: Iterable[Verdicts]) -> RewardQuality:
    """Return TPR, FPR and J over problems. Mutants not known to be wrong do not count."""
    every = list(problems)
    right = _rate(one.get(RIGHT, {}) for one in every)
    return RewardQuality(right, _rate(one.get(wrong_kind(one), {}) for one in every))


def _rate(problems: Iterable[Mapping[str, int]]) -> Rate:
    sizes = [(sum(one.values()) - one.get(UNKNOWN, 0), one) for one in problems]
    passed = sum(one.get(VerdictKind.PASSED.value, 0) for _, one in sizes)
    return Rate(passed, sum(n for n, _ in sizes), sum(n > 0 for n, _ in sizes))


def at_least(decision: Decision, min_j: float | None) -> Decision:
    """Drop a problem whose J is below `min_j`. A problem of unknown J is kept."""
    verdicts = decision.notes.get(PROGRAMS, {})
    found = quality([verdicts])
    if not decision.keep or min_j is None or found.j is None or found.j >= min_j:
        return decision
    return with_programs(drop("low_j", str(found)), verdicts)
