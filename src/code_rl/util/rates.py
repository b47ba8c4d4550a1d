"""Rates with intervals, and J = TPR − FPR (Youden's index) of a reward.

TPR is the share of right programs that are rewarded, FPR that of wrong programs. J is 1 for a
faultless reward and 0 for one that tells nothing.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

Z95 = 1.959963984540054


def wilson(passed: float, n: float) -> tuple[float, float]:
    """Return Wilson's 95% interval (low, high) of a rate of `passed` in `n`, within [0, 1] (E. B.
    Wilson, 1927). `n` is above 0; neither need be whole."""
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
    def value(self) -> float:
        """The share, NaN without a program."""
        return self.passed / self.total if self.total else math.nan

    @property
    def ends(self) -> tuple[float, float]:
        """The ends (low, high) of the 95% interval, which contains `value`; 0 and 1 without a
        program."""
        if not self.total:
            return 0.0, 1.0
        low, high = wilson(self.value * self.problems, self.problems)
        return min(low, self.value), max(high, self.value)

    def __str__(self) -> str:
        low, high = self.ends
        ends = f"{100 * self.value:.1f}% [{100 * low:.1f}, {100 * high:.1f}] "
        return f"{ends if self.total else ''}({self.passed:,} of {self.total:,})"


@dataclass(frozen=True, slots=True)
class RewardQuality:
    """TPR and FPR of a reward, and their difference J."""

    tpr: Rate
    fpr: Rate

    @property
    def j(self) -> float | None:
        """J = TPR − FPR, or None if there are no right or no wrong programs."""
        return self.tpr.value - self.fpr.value if self.tpr.total and self.fpr.total else None

    @property
    def ends(self) -> tuple[float, float]:
        """The ends (low, high) of Newcombe's 95% interval of J (R. G. Newcombe, 1998); −1 and 1 if
        J is unknown."""
        if self.j is None:
            return -1.0, 1.0
        (right_low, right_high), (wrong_low, wrong_high) = self.tpr.ends, self.fpr.ends
        tpr, fpr = self.tpr.value, self.fpr.value
        low = self.j - math.hypot(tpr - right_low, wrong_high - fpr)
        return low, self.j + math.hypot(right_high - tpr, fpr - wrong_low)

    def __str__(self) -> str:
        low, high = self.ends
        known = "unknown" if self.j is None else f"{self.j:.3f} [{low:.3f}, {high:.3f}]"
        return f"J {known}: TPR {self.tpr}, FPR {self.fpr}"

    def to_json(self) -> dict[str, Any]:
        """Return J and the counts of both rates, with intervals, and all of it as `summary`."""
        rates = {name: getattr(self, name) for name in ("tpr", "fpr")}
        counts = {name: asdict(rate) | {"interval": rate.ends} for name, rate in rates.items()}
        return {"j": self.j, "interval": self.ends, **counts, "summary": str(self)}
