"""Stage `cap`: the tests that a problem keeps, within budgets of bytes, CPU time and number.

Public tests stay first. Next are the tests that killed most mutants and wrong solutions; without
such tests, a selection evenly spaced by size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from code_rl.data.preparation.decisions import Decision, OnItem, drop, one_by_one
from code_rl.data.preparation.settings import PrepareConfig
from code_rl.data.preparation.workspace import Candidate, ProblemSummary, Workspace


async def run_cap(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Decide on the tests that each problem keeps."""
    return one_by_one(
        candidates, on_item, lambda one: cap_entry(one.entry, one.notes, workspace.config)
    )


def cap_entry(entry: ProblemSummary, notes: Mapping[str, Any], config: PrepareConfig) -> Decision:
    """Choose the tests to keep, all of them if they fit. `notes` are those of verify (`costs` and
    `kills` by test).

    Drops a problem if fewer than `min_tests` of its tests fit.
    """
    costs, kills = _by_index(notes.get("costs")), _by_index(notes.get("kills"))
    size, cpu_s, count = config.max_test_mb * 1e6, config.max_test_cpu_s, config.max_tests
    sizes = entry.sizes
    if sum(sizes) <= size and sum(costs.values()) <= cpu_s and len(sizes) <= count:
        return Decision(keep=True, metadata={"tests": len(sizes)})
    chosen: list[int] = []
    killers = sorted(kills, key=lambda index: (-kills[index], index))
    rest = spread(sorted(range(len(sizes)), key=lambda index: (sizes[index], index)))
    for index in dict.fromkeys([*entry.public, *killers, *rest]):
        cost = costs.get(index, 0.0)
        if sizes[index] <= size and cost <= cpu_s and len(chosen) < count:
            size, cpu_s = size - sizes[index], cpu_s - cost
            chosen.append(index)
    if len(chosen) < min(config.min_tests, len(sizes)):
        return drop("tests_over_budget", f"{len(chosen)} of {len(sizes)} tests fit the budget")
    metadata = {"tests": len(chosen), "tests_of_source": entry.tests}
    return Decision(keep=True, metadata=metadata, notes={"tests": sorted(chosen)})


def _by_index(values: object) -> dict[int, float]:
    return (
        {int(index): float(value) for index, value in values.items()}
        if isinstance(values, Mapping)
        else {}
    )


def spread(ordered: Sequence[int]) -> list[int]:
    """Return the items so that any first few of them are evenly spaced: the ends, the middle, the
    quarters, …"""
    count = len(ordered)
    if count <= 2:
        return list(ordered)
    places: dict[int, None] = {0: None, count - 1: None}
    parts = 2
    while len(places) < count:
        for part in range(1, parts, 2):
            places.setdefault(part * (count - 1) // parts)
        parts *= 2
    return [ordered[place] for place in places]
