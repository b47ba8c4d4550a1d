"""Rates with intervals, and J = TPR − FPR (Youden's index) of a reward.

TPR is the share of right programs that are rewarded, FPR that of wrong programs. J is 1 for a
faultless reward and 0 for one that tells nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

Z95 = 1.959963984540054


def wilson(passed: float, n: float) -> tuple[float, float]:
    """Return Wilson's 95% interval of a rate of `passed` in `n` (E. B. Wilson, 1927)."""
    rate, z2 = passed / n, Z95**2
    centre = (rate + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(rate * (1 - rate) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


@dataclass(frozen=True, slots=True)
class Rate:
    """`passed` of `total` programs, with a 95% interval.

    The programs of one problem share its tests, so they may share their verdict: the interval is
    that of `problems` independent programs, which is at least as wide as needed.
    """

    passed: int
    total: int
    problems: int

    @property
    def value(self) -> float | None:
        """The share, or None without a program."""
        return self.passed / self.total if self.total else None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the interval; 0 and 1 without a program."""
        if not self.total:
            return 0.0, 1.0
        share = self.passed / self.total
        low, high = wilson(share * self.problems, self.problems)
        return min(low, share), max(high, share)

    def __str__(self) -> str:
        if self.value is None:
            return "unknown"
        low, high = self.ends
        return (
            f"{100 * self.value:.1f}% [{100 * low:.1f}, {100 * high:.1f}] "
            f"({self.passed:,} of {self.total:,})"
        )

    def to_json(self) -> dict[str, Any]:
        """Return counts, share and interval."""
        counts = {"passed": self.passed, "total": self.total, "problems": self.problems}
        return counts | {"value": self.value, "interval": list(self.ends)}


@dataclass(frozen=True, slots=True)
class RewardQuality:
    """TPR and FPR of a reward, and their difference J."""

    tpr: Rate
    fpr: Rate

    @property
    def j(self) -> float | None:
        """J, or None if right or wrong programs are missing."""
        tpr, fpr = self.tpr.value, self.fpr.value
        return None if tpr is None or fpr is None else tpr - fpr

    @property
    def ends(self) -> tuple[float, float]:
        """Newcombe's 95% interval of J (R. G. Newcombe, 1998); −1 and 1 if J is unknown."""
        tpr, fpr = self.tpr.value, self.fpr.value
        if tpr is None or fpr is None:
            return -1.0, 1.0
        (right_low, right_high), (wrong_low, wrong_high) = self.tpr.ends, self.fpr.ends
        low = tpr - fpr - math.hypot(tpr - right_low, wrong_high - fpr)
        return low, tpr - fpr + math.hypot(right_high - tpr, fpr - wrong_low)

    def __str__(self) -> str:
        rates = f"TPR {self.tpr}, FPR {self.fpr}"
        if self.j is None:
            return f"J unknown: {rates}"
        low, high = self.ends
        return f"J {self.j:.3f} [{low:.3f}, {high:.3f}]: {rates}"

    def to_json(self) -> dict[str, Any]:
        """Return J with its interval, and both rates."""
        found = {"j": self.j, "interval": list(self.ends)}
        return found | {"tpr": self.tpr.to_json(), "fpr": self.fpr.to_json()}
