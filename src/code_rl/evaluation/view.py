"""What `code-rl eval` shows: what is evaluated, progress, a table, and a line of Markdown ready to paste."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from code_rl.evaluation.compare import Comparison
from code_rl.progress import judging
from code_rl.reward.verdict import Verdict

PIPE_WIDTH = 140


class EvalView:
    """Writes to `console` (standard output unless given)."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        if not self.console.is_terminal:
            self.console.width = PIPE_WIDTH

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, markup=False)

    def progress(self, total: int) -> AbstractContextManager[Callable[[Verdict], None]]:
        """Show progress while the block runs; the block calls the function with each verdict."""
        return judging(self.console, total)

    def results(self, results: Mapping[str, Any]) -> None:
        """The table of one benchmark."""
        table = Table(
            box=box.SIMPLE if self.console.is_terminal else box.ASCII2, title=title(results), title_justify="left"
        )
        names = ["problems", *_rates(results), "greedy", "format", "truncated"]
        table.add_column("")
        for name in names:
            table.add_column(name, justify="right")
        table.add_row("all", *_cells(results, names))
        for values in results["breakdown"].values():
            if len(values) > 1:
                for value, row in values.items():
                    table.add_row(f"  {value}", *_cells(row, names))
        self.console.print(table, soft_wrap=False)
        self.say("verdicts: " + ", ".join(f"{kind} {number}" for kind, number in results["verdicts"].items()))
        self._remarks(results)
        self.say(markdown(results))

    def comparison(self, comparison: Comparison) -> None:
        """The table of a paired comparison."""
        table = Table(box=box.SIMPLE if self.console.is_terminal else box.ASCII2, title=f"{comparison.benchmark}: B minus A", title_justify="left")  # fmt: skip
        for name in ("", "A", "B", "difference [95%]", "problems", "rose", "fell"):
            table.add_column(name, justify="right" if name else "left")
        for name, found in comparison.differences.items():
            estimate = found.estimate
            first, second = comparison.values[name]
            shown = f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"
            table.add_row(name, _percent(first), _percent(second), shown, str(estimate.problems), str(found.rose), str(found.fell))  # fmt: skip
        self.console.print(table, soft_wrap=False)
        self.say(f"A: {comparison.first}")
        self.say(f"B: {comparison.second}")
        for remark in comparison.remarks:
            self.say(f"they differ in {remark}")
        if comparison.only_in_one:
            self.say(f"{comparison.only_in_one} problems have verdicts in one of them only, and are left out")

    def _remarks(self, results: Mapping[str, Any]) -> None:
        for name, problems in results["problems_of"].items():
            if problems < results["problems"]:
                few = results["problems"] - problems
                self.say(f"{name} is over {problems} problems: {few} have fewer verdicts than it needs")
        rules = results.get("rules")
        if rules:
            self.say(
                f"compare rules: Pass@1 {_percent(rules['lcb'])} under lcb, {_percent(rules['lcb-official'])} as LiveCodeBench decides; they differ on "
                f"{rules['differ']} samples ({rules['only_lcb_accepts']} accepted by lcb alone, {rules['only_official_accepts']} by LiveCodeBench alone)"
            )
            for row in rules["differences"][:10]:
                self.say(
                    f"  {row['problem_id']} sample {row['sample']}: lcb {row['lcb']}, lcb-official {row['lcb-official']}"
                )
        if "rating" in results:
            rating = results["rating"]
            above = "" if rating["percentile"] is None else f", above {rating['percentile']}% of users"
            self.say(f"rating {rating['rating']:.0f}{above}, mean of {rating['contests']} contests")
        for name, what in (("skipped", "rows have no problem"), ("missing", "samples are missing")):
            reasons = results[name]
            if name == "skipped":
                reasons = {reason: list(reasons.values()).count(reason) for reason in sorted(set(reasons.values()))}
            if reasons:
                self.say(
                    f"{sum(reasons.values())} {what}: " + ", ".join(f"{why} {many}" for why, many in reasons.items())
                )
        ours = results["verdicts"].get("sandbox_error", 0)
        if ours:
            self.say(
                f"{ours} samples got no verdict about themselves (sandbox_error); the same command judges them again"
            )
        broken = results["verdicts"].get("checker_error", 0)
        if broken:
            self.say(
                f"{broken} samples got no verdict because a problem's checker fails on its own reference (checker_error)"
            )


def title(results: Mapping[str, Any]) -> str:
    """The benchmark with its release, window and count."""
    parts = [results["benchmark"], *(results[name] for name in ("release", "window") if name in results)]
    return f"{', '.join(parts)}: {results['model']}"


def markdown(results: Mapping[str, Any]) -> str:
    """One row of a Markdown table, with all that a reader needs to compare."""
    low, high = results["interval"]
    cells = [
        results["model"],
        ", ".join([results["benchmark"], *(results[name] for name in ("release", "window") if name in results)]),
        f"{results['problems']} problems",
        f"Pass@1 {100 * results['pass@1']:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
        *([f"Pass@{results['k']} {100 * results['pass@k']:.1f}"] if results["k"] > 1 else []),
        results["how"],
    ]
    return "| " + " | ".join(cells) + " |"


def _rates(row: Mapping[str, Any]) -> list[str]:
    return [
        f"pass@{k}" for k in sorted(int(name[5:]) for name in row if name.startswith("pass@") and name[5:].isdigit())
    ]


def _cells(row: Mapping[str, Any], names: list[str]) -> list[str]:
    if not row["problems"]:
        return ["0", *("-" for _ in names[1:])]
    cells = []
    for name in names:
        if name == "problems":
            cells.append(str(row["problems"]))
        elif name == "greedy":
            cells.append("-" if row["greedy"] is None else _percent(row["greedy"]))
        elif name in ("format", "truncated"):
            cells.append(_percent(row[f"{name}_rate"]))
        elif name not in row:
            cells.append("-")
        else:
            low, high = row["intervals"][name]
            cells.append(f"{100 * row[name]:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    return cells


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"
