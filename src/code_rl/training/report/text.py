"""Plain text for a terminal: a run's overview, and the runs of a directory, a line for each."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from code_rl.engine.checkpoints import is_run, read_config
from code_rl.evaluation.pass_at_k import rate
from code_rl.training.report.overview import better
from code_rl.training.runs.directory import read_metrics
from code_rl.util.errors import CodeRLError
from code_rl.util.files import LOCK, is_held

WIDTH = 116
MARKS = {"bad": "✗", "warning": "!", "note": "·"}
CURVES = {
    "mean_reward": "reward",
    "mean_correct": "correct",
    "format_rate": "format",
    "tokens/completion": "tokens",
}
BARS, BARS_A_LINE = "▁▂▃▄▅▆▇█", 48
_OF_EACH_RUN = ("log_path", "resolved", "checksum")


def render_text(view: Mapping[str, Any], width: int = WIDTH) -> str:
    """Return one run's overview as text: answer, settings, results, curves, findings. Tables are at
    most `width` characters wide; each line is made safe for a terminal by `clean`."""
    answer = view["answer"]
    lines = [view["path"], f"{answer['headline']} {answer['sentence']}", ""]
    lines += [f"{label:<18}{value}" for label, value in view["facts"]]
    lines += ["", *closing(view, width), *_curves(view["steps"]["columns"])]
    for finding in view["findings"]:
        lines += ["", f"{MARKS[finding['severity']]} {finding['title']}: {finding['evidence']}"]
        lines += [f"  likely: {finding['cause']}", f"  do: {finding['remedy']}"]
    lines += [f"note: {notice}" for notice in view["notices"]]
    return "\n".join(map(clean, lines))


def compare_text(views: Sequence[Mapping[str, Any]]) -> str:
    """Return which of at least two runs is better, and the settings in which they differ, as
    text."""
    found, settings = better(views), [dict(view["settings"]) for view in views]
    lines = [f"which is better? {found['headline']} {found['sentence']}"]
    for name in dict.fromkeys(name for each in settings for name in each):
        values = [each.get(name, "-") for each in settings]
        if len(set(values)) > 1 and name not in _OF_EACH_RUN:
            lines.append(f"  {name}: {' | '.join(values)}")
    return "\n".join(map(clean, lines))


def closing(view: Mapping[str, Any], width: int = WIDTH) -> list[str]:
    """Return the results of a run as lines: held-out splits (in a table of at most `width`
    characters), time, cost, tokens and verdicts."""
    totals, progress = view["totals"], view["progress"]
    planned = f" of {progress['planned']}" if progress["planned"] else ""
    spent = [f"{stage} {duration(s)}" for stage, s in totals["stages"].items() if s >= 0.5]
    stages = f" ({', '.join(spent)})" if spent else ""
    lines = [*held_out(view["splits"], width)] if view["splits"] else []
    steps = "step" if (progress["planned"] or progress["done"]) == 1 else "steps"
    tokens = totals["tokens"]
    lines += [
        f"{progress['done']}{planned} {steps} in {duration(totals['seconds'])}{stages}; "
        f"cost: {totals['cost']}",
        f"{totals['completions']:,.0f} completions, {tokens['completion']:,.0f} completion tokens "
        f"for training, {tokens['eval']:,.0f} for evaluation",
    ]
    for name, what in (("verdicts", "verdicts"), ("masked", "masked, not trained on")):
        shares = [f"{k} {100 * n / totals['completions']:.1f}%" for k, n in totals[name].items()]
        lines += [f"{what}: {', '.join(shares[:9])}"] if shares and totals["completions"] else []
    return [clean(line) for line in lines]


def held_out(splits: Sequence[Mapping[str, Any]], width: int = WIDTH) -> list[str]:
    """Return a table of the held-out splits before and after training as lines, in per cent; `-`
    for what was not measured."""
    rows = [["held out (problems)", "Pass@1 before", "after [95%]", "Pass@k", "greedy", "format"]]
    for split in splits:
        before, after = split["before"] or {}, split["after"] or {}
        k = (after or before).get("k")
        row = [f"{split['name']} ({split['problems']})", _interval(before), _interval(after)]
        row.append(f"@{k} {_pair(before, after, 'pass_k')}" if k else "-")
        rows.append([*row, *(_pair(before, after, name) for name in ("greedy", "format"))])
    return aligned(rows, width)


def aligned(rows: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Return rows as lines with aligned columns, the first to the left, the others to the right.
    Beyond the first three, the last columns are left out if they do not fit into `width`
    characters. All rows have the same number of cells, at least one."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while len(widths) > 3 and sum(widths) + 2 * len(widths) - 2 > width:
        widths.pop()
    lines = []
    for name, *cells in rows:
        sized = zip(cells, widths[1:], strict=False)
        lines.append(
            "  ".join([name.ljust(widths[0]), *(cell.rjust(size) for cell, size in sized)])
        )
    return lines


def _interval(side: Mapping[str, Any]) -> str:
    """Return one side's rate with its interval, in per cent, or `-` for an empty side."""
    return rate(side["score"], (side["low"], side["high"])) if side else "-"


def _pair(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> str:
    """Return the values of `key` before and after that are known, in per cent, or `-` without
    any."""
    cells = [f"{100 * side[key]:.1f}" for side in (before, after) if side.get(key) is not None]
    return " → ".join(cells) or "-"


def _curves(columns: Mapping[str, Sequence[float | None]]) -> list[str]:
    """Return one line per known curve: label, bars, first and last value; curves without a value
    are left out."""
    lines = []
    for name, label in CURVES.items():
        if known := [value for value in columns.get(name, ()) if value is not None]:
            lines.append(f"{label:<9}{sparkline(known)}  {known[0]:.4g} → {known[-1]:.4g}")
    return lines


def clean(text: str) -> str:
    """Return text with a space for every character of Unicode's category C (control, format,
    private, unassigned): they could move a terminal's cursor, change its colors, or reverse the
    writing direction. Line ends are replaced too."""
    return "".join(" " if unicodedata.category(char)[0] == "C" else char for char in text)


def sparkline(values: Sequence[float]) -> str:
    """Return values as a row of at most 48 bars, scaled from the least to the greatest. If there
    are more values than columns, each bar is a mean. Raises ValueError without values."""
    low, span = min(values), (max(values) - min(values)) or 1.0
    every = -(-len(values) // BARS_A_LINE)
    parts = [values[start : start + every] for start in range(0, len(values), every)]
    return "".join(BARS[min(7, int(8 * (sum(part) / len(part) - low) / span))] for part in parts)


def duration(seconds: float) -> str:
    """Return seconds as text: seconds below two minutes, minutes below two hours, else hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


HEAD: tuple[str, ...] = ("run", "state", "recipe", "steps", "held-out Pass@1")


def list_runs(folder: Path) -> str:
    """Return a table with a line for each run in the directory, by name, as text; a run that cannot
    be read is `damaged`. Without runs, a sentence says so."""
    rows = [HEAD]
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if is_run(path):
            try:
                rows.append(_run_cells(path))
            except CodeRLError:
                rows.append((path.name, "damaged", "-", "-", "-"))
    if not rows[1:]:
        return f"{folder} has no runs; name one by log_path="
    return "\n".join(map(clean, aligned(rows)))


def _run_cells(path: Path) -> tuple[str, ...]:
    """Return a run's cells in the list of runs: name, state (running, finished or stopped), recipe,
    steps, held-out Pass@1 of the first and the last evaluation. Raises ConfigError for damaged
    settings."""
    config, metrics = read_config(path), read_metrics(path)
    steps, most = sum(record["step"] >= 0 for record in metrics), config.get("max_steps", -1)
    state = "stopped"
    if (path / LOCK).exists() and is_held(path / LOCK):
        state = "running"
    elif steps >= most > 0:
        state = "finished"
    held_out: list[Any] = [each["eval/pass@1"] for each in metrics if "eval/pass@1" in each]
    ends = held_out[:1] + held_out[1:][-1:]
    shown = " → ".join(f"{100 * value:.1f}%" for value in ends) or "-"
    return path.name, state, str(config.get("recipe") or "-"), f"{steps}/{most}", shown
