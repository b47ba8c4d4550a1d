"""`code-rl eval compare=A,B`: two evaluations of the same problems, compared problem by problem.
Several evaluations give one table: a row for each folder, a column for each benchmark, and their
average."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from code_rl.evaluation.manifest import MANIFEST, read_manifest
from code_rl.evaluation.pass_at_k import (
    Estimate,
    combined,
    crossed_difference,
    pass_at_k,
    rate,
)
from code_rl.evaluation.results import RESULTS
from code_rl.evaluation.samples import GREEDY, SAMPLED, VERDICTS, Mode
from code_rl.grading import VerdictKind
from code_rl.util.data_files import short
from code_rl.util.errors import ConfigError
from code_rl.util.files import read_lines

Published = Callable[[str], list[dict[str, Any]]]
"""A function from a recipe's name to its published values."""
NEVER_COMPARED = ("benchmark", "files", "rule")
"""Facts that must be equal: results on other data or under another rule are not comparable."""

ACCEPTED = ("seed",)
"""Settings that are expected to differ and are not mentioned."""


def compare(first: Path, second: Path, published: Published = lambda _: []) -> dict[str, Any]:
    """Compare two evaluations and return the content of `comparison.json`; nothing is written.

    `figures` has differences (second minus first) by name, on the problems that both have;
    `remarks` are settings that differ. Raises ConfigError if benchmark, data or rule differ, a
    folder holds no evaluation, or no problem has verdicts in both.
    """
    manifests = [_manifest(path) for path in (first, second)]
    one, other = (manifest["identity"] for manifest in manifests)
    for name in NEVER_COMPARED:
        if one.get(name) != other.get(name):
            raise ConfigError(
                f"compare={first},{second}: {name} differs ({short(one.get(name))} and "
                f"{short(other.get(name))}); "
                "only evaluations of the same data under the same rule can be compared"
            )
    counted = [_counts(path) for path in (first, second)]
    figures: dict[str, dict[str, Any]] = {}
    shared: set[str] = set()
    for mode, label in ((SAMPLED, "pass@"), (GREEDY, "greedy pass@")):
        by_problem = [each.get(mode, {}) for each in counted]
        common = sorted(by_problem[0].keys() & by_problem[1].keys())
        shared |= set(common)
        counts = [[each[problem] for problem in common] for each in by_problem]
        for k in sorted({1, min(n for each in counts for n, _ in each)}) if common else ():
            firsts, seconds = ([pass_at_k(n, c, k) for n, c in each] for each in counts)
            found = crossed_difference([firsts], [seconds])
            changes = [b - a for a, b in zip(firsts, seconds, strict=True)]
            figures[f"{label}{k}"] = {
                "first": sum(firsts) / len(firsts),
                "second": sum(seconds) / len(seconds),
                "difference": found.value,
                "interval": [found.low, found.high],
                "problems": found.problems,
                "rose": sum(change > 0 for change in changes),
                "fell": sum(change < 0 for change in changes),
            }
    if not figures:
        raise ConfigError(
            f"compare={first},{second}: they have no problem in common that both have verdicts on"
        )
    problems = [{problem for mode in each.values() for problem in mode} for each in counted]
    return {
        "first": str(first),
        "second": str(second),
        "benchmark": one["benchmark"],
        "only_in_one": len((problems[0] | problems[1]) - shared),
        "remarks": _remarks(one, other),
        "figures": figures,
        "published": _published(other, published),
    }


def _manifest(path: Path) -> dict[str, Any]:
    """Return the manifest of an evaluation's folder. Raises ConfigError if it holds none, or one
    that cannot be read."""
    manifest = read_manifest(path)
    if "identity" not in manifest:
        raise ConfigError(f"compare: {path} holds no evaluation (no manifest.json)")
    return manifest


def _counts(path: Path) -> dict[Mode, dict[str, tuple[int, int]]]:
    """Return (verdicts, passed) by mode and problem; the last row of a sample counts, and undecided
    ones do not. Raises DataError for a damaged line."""
    rows = {
        (row["problem_id"], row["mode"], row["sample"]): row for row in read_lines(path / VERDICTS)
    }
    found: dict[Mode, dict[str, tuple[int, int]]] = {}
    for (problem_id, mode, _), row in rows.items():
        kind, counts = VerdictKind(row["verdict"]), found.setdefault(mode, {})
        if not kind.undecided:
            judged, passed = counts.get(problem_id, (0, 0))
            counts[problem_id] = judged + 1, passed + (kind is VerdictKind.PASSED)
    return found


def _published(identity: Mapping[str, Any], published: Published) -> list[dict[str, Any]]:
    """Return the published values of this benchmark for the recipe of the evaluated run; empty
    without a recipe."""
    recipe = identity.get("asked", {}).get("recipe")
    values = published(recipe) if recipe is not None else []
    return [
        {"recipe": recipe, **value}
        for value in values
        if value["benchmark"] == identity["benchmark"]
    ]


def _remarks(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting that differs between the two evaluations, by name, the prompt
    last; the seed may differ."""
    before, after = (
        {**each.get("settings", {}), "prompt": each.get("prompt")} for each in (one, other)
    )
    names = [*sorted((before.keys() | after.keys()) - {*ACCEPTED, "prompt"}), "prompt"]
    return [
        f"{name}: {before.get(name)} and {after.get(name)}"
        for name in names
        if before.get(name) != after.get(name)
    ]


COMPARISON, SUMMARY = "comparison.json", "summary.json"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the content of `results.json` in a folder and its subfolders, by benchmark. An
    evaluation that was interrupted has none yet."""
    written = [path.parent / RESULTS for path in sorted(folder.rglob(MANIFEST))]
    found = [json.loads(path.read_text("utf-8")) for path in written if path.exists()]
    return {str(results["benchmark"]): results for results in found}


def summary(folders: Mapping[str, Path]) -> list[dict[str, Any]]:
    """Return one row per folder, in order: Pass@1 with interval of each benchmark and, with
    several, their plain mean. `folders` are by the label of the row."""
    rows = []
    for name, folder in folders.items():
        shown = ("pass@1", "interval", "problems")
        figures = {
            key: {part: each[part] for part in shown} for key, each in read_results(folder).items()
        }
        more = {"average": average(list(figures.values()))} if len(figures) > 1 else {}
        rows.append({"of": name, "benchmarks": figures, **more})
    return rows


def average(figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the unweighted mean over at least one benchmark, with a 95% interval that treats them
    as independent."""
    parts = [
        Estimate(each["pass@1"], each["interval"][0], each["interval"][1], 0) for each in figures
    ]
    mean = combined([(1 / len(parts), part) for part in parts])
    return {"pass@1": mean.value, "interval": [mean.low, mean.high]}


def summary_table(rows: Sequence[Mapping[str, Any]], label: str) -> str:
    """Return the rows as a Markdown table; `label` heads the first column. All rows have the
    benchmarks of the first."""
    columns = [
        row["benchmarks"] | {name: row[name] for name in ("average",) if name in row}
        for row in rows
    ]
    lines = [[label, *columns[0]], ["---"] * (1 + len(columns[0]))]
    lines += [
        [row["of"], *(rate(cells[name]["pass@1"], cells[name]["interval"]) for name in columns[0])]
        for row, cells in zip(rows, columns, strict=True)
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
