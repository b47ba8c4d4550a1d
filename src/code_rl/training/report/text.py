"""A run's results as text for a terminal."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from code_rl.evaluation.pass_at_k import rate
from code_rl.training.console import FittingTable
from code_rl.training.report.summary import better, standings

WIDTH = 116
MARKS = {"bad": "✗", "warning": "!", "note": "·"}
BARS, BARS_A_LINE = "▁▂▃▄▅▆▇█", 48
_OF_EACH_RUN = ("log_path", "resolved", "checksum")


def summary(view: Mapping[str, Any], width: int = WIDTH) -> str:
    """One run's overview as plain text."""
    console = Console(file=io.StringIO(), width=width, no_color=True, highlight=False)
    with console.capture() as captured:
        console.print(render_text(view))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def render_text(view: Mapping[str, Any]) -> RenderableType:
    """Return one run's overview for rich: answer, held-out table, curves, cost, findings."""
    tone = {"good": "green", "bad": "red"}.get(view["answer"]["tone"], "yellow")
    head = Text.assemble(
        (clean(view["answer"]["headline"]), f"bold {tone}"), " ", clean(view["answer"]["sentence"])
    )
    parts: list[RenderableType] = [
        Text(clean(view["path"]), style="dim"),
        head,
        Text(""),
        _facts(view),
    ]
    if view["splits"]:
        parts += [Text(""), _splits(view["splits"])]
    parts += [Text(""), _curves(view), Text(""), *_cost(view["totals"], view["progress"])]
    for finding in view["findings"]:
        parts += [Text(""), _finding(finding)]
    parts += [Text(f"note: {clean(notice)}", style="dim") for notice in view["notices"]]
    return Group(*parts)


def compare_text(views: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Return several runs side by side: which is better, the settings that differ, and the final
    results by split."""
    found = better(views)
    head = Text(clean(f"which is better? {found['headline']} {found['sentence']}"), style="bold")
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        title="what differs",
        title_justify="left",
    )
    for heading in ("setting", *(clean(view["name"]) for view in views)):
        table.add_column(heading, overflow="fold")
    settings = [dict(view["settings"]) for view in views]
    names = [
        name
        for name in dict.fromkeys(name for each in settings for name in each)
        if name not in _OF_EACH_RUN
    ]
    for name in names:
        values = [each.get(name, "-") for each in settings]
        if len(set(values)) > 1:
            table.add_row(*(Text(clean(value)) for value in (name, *values)))
    return Group(head, Text(""), table, *(Text(clean(line)) for line in standings(views)))


def clean(text: str) -> str:
    """Return text without characters that move a terminal's cursor, change its colors, or reverse
    the writing direction."""
    return "".join(" " if unicodedata.category(char)[0] == "C" else char for char in text)


def sparkline(values: Sequence[float | None]) -> str:
    """Return values as a row of bars. If there are more values than columns, each bar is a mean."""
    known = [value for value in values if value is not None]
    if not known:
        return ""
    low, span = min(known), (max(known) - min(known)) or 1.0
    every = max(1, -(-len(known) // BARS_A_LINE))
    means = [
        sum(known[at : at + every]) / len(known[at : at + every])
        for at in range(0, len(known), every)
    ]
    return "".join(BARS[min(7, int(8 * (value - low) / span))] for value in means)


def duration(seconds: float) -> str:
    """Return seconds as text, such as people say them."""
    if 0 < seconds < 1:
        return "under 1 s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _facts(view: Mapping[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for label, value in view["facts"]:
        table.add_row(Text(clean(label), style="dim"), Text(clean(value)))
    return table


def _splits(splits: Sequence[Mapping[str, Any]]) -> RenderableType:
    sides = [(split["before"] or {}, split["after"] or {}) for split in splits]
    sizes = [f" ({split['problems']})" for split in splits]
    ks = [(after or before).get("k") for before, after in sides]
    columns = [
        (
            "held out (problems)",
            *(clean(split["name"]) + size for split, size in zip(splits, sizes, strict=True)),
        ),
        ("Pass@1 before", *(_interval(before) for before, _ in sides)),
        ("after", *(_interval(after) for _, after in sides)),
        (
            "Pass@k",
            *(
                f"@{k} {_pair(*both, 'pass_k')}" if k else "-"
                for k, both in zip(ks, sides, strict=True)
            ),
        ),
        ("greedy", *(_pair(*both, "greedy") for both in sides)),
        ("format", *(_pair(*both, "format") for both in sides)),
    ]
    return FittingTable(columns, 3, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)


def _curves(view: Mapping[str, Any]) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    shown = {
        "mean_reward": "reward",
        "mean_correct": "correct",
        "format_rate": "format",
        "tokens/completion": "tokens",
    }
    for name, label in shown.items():
        values = view["steps"]["columns"].get(name)
        known = [value for value in values or [] if value is not None]
        if known:
            table.add_row(
                label, Text(sparkline(known), style="cyan"), f"{known[0]:.4g} → {known[-1]:.4g}"
            )
    return table


def _cost(totals: Mapping[str, Any], progress: Mapping[str, Any]) -> list[RenderableType]:
    planned = f" of {progress['planned']}" if progress["planned"] else ""
    spent = [
        f"{name} {duration(seconds)}"
        for name, seconds in totals["stages"].items()
        if seconds >= 0.5
    ]
    stages = f" ({', '.join(spent)})" if spent else ""
    tokens = totals["tokens"]
    lines = [
        f"{progress['done']}{planned} "
        f"step{'s' if (progress['planned'] or progress['done']) != 1 else ''} in "
        f"{duration(totals['seconds'])}{stages}; cost: {clean(totals['cost'])}",
        f"{totals['completions']:,.0f} completions, {tokens['completion']:,.0f} completion "
        f"tokens for training, {tokens['eval']:,.0f} for evaluation",
    ]
    every = totals["completions"]
    for name, what in (("verdicts", "verdicts"), ("masked", "masked, not trained on")):
        shares = [
            f"{clean(kind)} {100 * count / every:.1f}%"
            for kind, count in totals[name].items()
            if every
        ]
        if shares:
            lines.append(f"{what}: {', '.join(shares[:9])}")
    return [Text(line) for line in lines]


def _finding(finding: Mapping[str, str]) -> RenderableType:
    head = Text(
        f"{MARKS[finding['severity']]} {finding['title']}: {clean(finding['evidence'])}",
        style="bold",
    )
    body = Group(Text(f"likely: {finding['cause']}"), Text(f"do: {finding['remedy']}"))
    return Group(head, Padding(body, (0, 0, 0, 2)))


def _interval(side: Mapping[str, Any]) -> str:
    return rate(side["score"], (side["low"], side["high"])) if side else "-"


def _pair(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> str:
    cells = [f"{100 * side[key]:.1f}" for side in (before, after) if side.get(key) is not None]
    return " → ".join(cells) or "-"
