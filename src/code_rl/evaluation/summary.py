"""Several evaluations in one table: a row for each folder, a column for each benchmark, and their average."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from code_rl.evaluation.manifest import MANIFEST
from code_rl.evaluation.results import RESULTS

SUMMARY = "summary.json"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """The results in a folder and those below it, by benchmark."""
    found = [json.loads((path.parent / RESULTS).read_text("utf-8")) for path in sorted(folder.rglob(MANIFEST))]
    return {str(results["benchmark"]): results for results in found}


def summary(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """One row a folder: Pass@1 with interval of each benchmark, and (of several) their plain mean."""
    rows = []
    for name, folder in folders.items():
        figures = {
            benchmark: {"pass@1": each["pass@1"], "interval": each["interval"], "problems": each["problems"]}
            for benchmark, each in read_results(folder).items()
        }
        row: dict[str, Any] = {"of": name, "benchmarks": figures}
        if len(figures) > 1:
            row["average"] = average(list(figures.values()))
        rows.append(row)
    return rows


def average(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over benchmarks, each counting the same. Its 95% interval takes them for independent and nearly normal."""
    mean = sum(each["pass@1"] for each in figures) / len(figures)
    halves = [(each["interval"][1] - each["interval"][0]) / 2 for each in figures]
    half = math.sqrt(sum(width**2 for width in halves)) / len(figures)
    return {"pass@1": mean, "interval": [max(0.0, mean - half), min(1.0, mean + half)]}


def summary_table(rows: Sequence[Mapping[str, Any]], label: str) -> str:
    """The rows as Markdown."""
    names = list(rows[0]["benchmarks"])
    head = [label, *names, *(["average"] if "average" in rows[0] else [])]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [*(row["benchmarks"][name] for name in names), *([row["average"]] if "average" in row else [])]
        lines.append("| " + " | ".join([row["of"], *map(figure, cells)]) + " |")
    return "\n".join(lines)


def figure(found: Mapping[str, Any]) -> str:
    """Pass@1 with its interval, in per cent."""
    low, high = found["interval"]
    return f"{100 * found['pass@1']:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
