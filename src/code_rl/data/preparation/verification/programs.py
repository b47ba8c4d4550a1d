"""The verdicts on a problem's right and wrong programs, and the quality of its tests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from code_rl.data.preparation.decisions import Decision, Verdicts
from code_rl.grading import VerdictKind
from code_rl.util.rates import Rate, RewardQuality

RIGHT, TRIVIAL, WRONG, MUTANTS = "right", "trivial", "wrong_solutions", "mutants"
# The count of mutants that pass and are not known to differ from the reference.
UNKNOWN = "unknown"


def wrong_kind(verdicts: Verdicts) -> str:
    """Return the kind of wrong programs that count for FPR: the set's own wrong solutions, else a
    trivial program that passes, else mutants."""
    return next((kind for kind in (WRONG, TRIVIAL) if kind in verdicts), MUTANTS)


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
    found = quality([decision.programs])
    if not decision.keep or min_j is None or found.j is None or found.j >= min_j:
        return decision
    return Decision("low_j", str(found), programs=decision.programs)
