"""Stage `cap`: the tests that a problem keeps, within budgets of bytes, CPU time and number.

Public tests stay first. Then come the tests that killed most mutants and wrong solutions; without any, tests spread evenly by size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from code_rl.preparation.bench import Decision, drop
from code_rl.preparation.settings import PrepareConfig
from code_rl.preparation.store import Entry


def cap_settings(config: PrepareConfig) -> tuple[object, ...]:
    """The settings that decide here."""
    return (config.max_test_mb, config.max_test_cpu_s, config.max_tests, config.min_tests)


def cap_entry(entry: Entry, notes: Mapping[str, object], config: PrepareConfig) -> Decision:
    """Choose the tests to keep; `notes` are verify's (`costs` and `kills` by test). All of them where they fit.

    Drops a problem of which fewer than `min_tests` tests fit.
    """
    costs = _by_index(notes.get("costs"))
    kills = _by_index(notes.get("kills"))
    within = _Budget(config.max_test_mb * 1e6, config.max_test_cpu_s, config.max_tests)
    if within.fits(sum(entry.sizes), sum(costs.values()), entry.tests):
        return Decision(keep=True, card={"tests": entry.tests})
    preferred = _preference(entry, kills)
    chosen = [index for index in preferred if within.take(entry.sizes[index], costs.get(index, 0.0))]
    if len(chosen) < min(config.min_tests, entry.tests):
        return drop("tests_over_budget", f"{len(chosen)} of {entry.tests} tests fit the budget")
    return Decision(
        keep=True, card={"tests": len(chosen), "tests_of_source": entry.tests}, notes={"tests": sorted(chosen)}
    )


class _Budget:
    """What may still be taken."""

    def __init__(self, size: float, cpu_s: float, count: int) -> None:
        self._size, self._cpu_s, self._count = size, cpu_s, count

    def fits(self, size: float, cpu_s: float, count: int) -> bool:
        return size <= self._size and cpu_s <= self._cpu_s and count <= self._count

    def take(self, size: float, cpu_s: float) -> bool:
        """Take one test if it fits."""
        if not self.fits(size, cpu_s, 1):
            return False
        self._size, self._cpu_s, self._count = self._size - size, self._cpu_s - cpu_s, self._count - 1
        return True


def _by_index(values: object) -> dict[int, float]:
    return {int(index): float(value) for index, value in values.items()} if isinstance(values, Mapping) else {}


def _preference(entry: Entry, kills: Mapping[int, float]) -> list[int]:
    """All tests, those to keep first."""
    public = list(entry.public)
    killers = sorted(kills, key=lambda index: (-kills[index], index))
    rest = spread(sorted(range(entry.tests), key=lambda index: (entry.sizes[index], index)))
    return list(dict.fromkeys(_known([*public, *killers, *rest], entry.tests)))


def _known(indices: Iterable[int], count: int) -> list[int]:
    return [index for index in indices if 0 <= index < count]


def spread(ordered: Sequence[int]) -> list[int]:
    """The items so that any first few of them lie evenly between both ends: the ends, the middle, the quarters, …"""
    count = len(ordered)
    if count <= 2:
        return list(ordered)
    places: dict[int, None] = {0: None, count - 1: None}
    parts = 2
    while len(places) < count:
        for part in range(1, parts, 2):
            places.setdefault(part * (count - 1) // parts)
        parts *= 2
        if parts > 4 * count:
            places.update(dict.fromkeys(range(count)))
    return [ordered[place] for place in places]
