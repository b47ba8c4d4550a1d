"""The output of `code-rl eval`: the benchmark, progress, a table, and a line of Markdown to
paste."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from code_rl.evaluation.pass_at_k import rate
from code_rl.grading import Verdict, VerdictKind
from code_rl.util.progress import View, progress


class VerdictView(View):
    """A console that shows programs being judged."""

    @contextlib.contextmanager
    def judging(self, total: int) -> Iterator[Callable[[Verdict], None]]:
        """Show progress over `total` verdicts while the block runs; the block calls the function
        with each verdict."""
        passed, started = 0, time.perf_counter()

        def note(done: int) -> str:
            """Return the number passed and the pace, as text beside the bar."""
            pace = done / max(time.perf_counter() - started, 1e-9)
            return f", {passed} passed, {pace:.1f} per second"

        with progress(self.console, "judged", total, note) as on_item:

            def on_verdict(verdict: Verdict) -> None:
                """Count one verdict."""
                nonlocal passed
                passed += verdict.correct
                on_item()

            yield on_verdict

    def undecided(self, counts: Mapping[Any, int], what: str) -> None:
        """Print a sentence for each kind of verdict in `counts` that decides nothing about the
        program; `what` names the things counted."""
        for kind, why in (
            (VerdictKind.SANDBOX_ERROR, "about themselves; the same command judges them again"),
            (
                VerdictKind.CHECKER_ERROR,
                "because their problem's checker fails on its own reference; the rows say how",
            ),
        ):
            if counts.get(kind):
                self.say(f"{counts[kind]} {what} got no verdict {why} ({kind.value})")


class EvalView(VerdictView):
    """The console of one evaluation."""

    pipe_width = 140

    def results(self, results: Mapping[str, Any]) -> None:
        """Print the table of one benchmark, its remarks, and its line of Markdown. `results` are
        those of `make_results`, with at least one verdict."""
        names = ["problems", *results["intervals"], "greedy", "format", "truncated"]
        table = self.table("", *names, title=f"{_of(results)}: {results['model']}")
        table.add_row("all", *_cells(results, names))
        for tag, values in results["breakdown"].items():
            if len(values) > 1:
                for value, row in values.items():
                    table.add_row(f"  {tag}={value}", *_cells(row, names))
        self.console.print(table, soft_wrap=False)
        self.say(f"verdicts: {_listed(results['verdicts'])}")
        self._remarks(results)
        self.say(markdown(results))

    def comparison(self, found: Mapping[str, Any]) -> None:
        """Print the table of a paired comparison, the result of `compare`, with its remarks."""
        table = self.table(
            "",
            "A",
            "B",
            "difference [95%]",
            "problems",
            "rose",
            "fell",
            title=f"{found['benchmark']}: B minus A",
        )
        for name, row in found["figures"].items():
            low, high = row["interval"]
            shown = f"{100 * row['difference']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
            counts = (str(row[count]) for count in ("problems", "rose", "fell"))
            table.add_row(name, _percent(row["first"]), _percent(row["second"]), shown, *counts)
        self.console.print(table, soft_wrap=False)
        self.say(f"A: {found['first']}")
        self.say(f"B: {found['second']}")
        for value in found["published"]:
            limit = f" at {value['max_tokens']} tokens" if "max_tokens" in value else ""
            change = f"{value['figure']}{limit} {value['before']} → {value['after']}"
            self.say(f"published for recipe={value['recipe']}: {change}")
        for remark in found["remarks"]:
            self.say(f"they differ in {remark}")
        if found["only_in_one"]:
            self.say(
                f"{found['only_in_one']} problems have verdicts in one of them only, and are "
                "left out"
            )

    def _remarks(self, results: Mapping[str, Any]) -> None:
        """Print the k with fewer problems, the rating, the rows without a problem and the missing
        or undecided samples."""
        for name, problems in results["problems_of"].items():
            if few := results["problems"] - problems:
                self.say(
                    f"{name} is over {problems} problems: {few} have fewer verdicts than it needs"
                )
        if "rating" in results:
            rating = results["rating"]
            above = (
                "" if rating["percentile"] is None else f", above {rating['percentile']}% of users"
            )
            value = "none" if rating["rating"] is None else f"{rating['rating']:.0f}{above}"
            self.say(f"rating {value}, mean of {rating['contests']} contests")
        skipped = dict(sorted(Counter(results["skipped"].values()).items()))
        for reasons, what in (
            (skipped, "rows have no problem"),
            (results["missing"], "samples are missing"),
        ):
            if reasons:
                self.say(f"{sum(reasons.values())} {what}: {_listed(reasons)}")
        self.undecided(results["verdicts"], "samples")


def _of(results: Mapping[str, Any]) -> str:
    """Return the benchmark's name with its release and window, if it has them."""
    return ", ".join(
        [
            results["benchmark"],
            *(results[name] for name in ("release", "window") if name in results),
        ]
    )


def markdown(results: Mapping[str, Any]) -> str:
    """Return one row of a Markdown table, with everything needed for a comparison. Raises KeyError
    for results without any verdict."""
    counted = results["problems_of"][f"pass@{results['k']}"]
    few = f" over {counted} of them" if counted < results["problems"] else ""
    cells = [
        results["model"],
        _of(results),
        f"{results['problems']} problems",
        f"Pass@1 {rate(results['pass@1'], results['interval'])}",
        *([f"Pass@{results['k']} {100 * results['pass@k']:.1f}{few}"] if results["k"] > 1 else []),
        results["how"],
    ]
    return "| " + " | ".join(cells) + " |"


def _listed(counts: Mapping[str, int]) -> str:
    """Return counts as `NAME COUNT, …`, in their order."""
    return ", ".join(f"{what} {count}" for what, count in counts.items())


def _cells(row: Mapping[str, Any], names: list[str]) -> list[str]:
    """Return the cells of one table row under these names; columns without a value hold "-"."""
    if not row["problems"]:
        return ["0", *("-" for _ in names[1:])]
    cells = {
        "problems": str(row["problems"]),
        "greedy": "-" if row["greedy"] is None else _percent(row["greedy"]),
    }
    cells |= {name: _percent(row[f"{name}_rate"]) for name in ("format", "truncated")}
    cells |= {name: rate(row[name], ends) for name, ends in row["intervals"].items()}
    return [cells.get(name, "-") for name in names]


def _percent(value: float) -> str:
    """Return a share (0 to 1) as per cent with one decimal."""
    return f"{100 * value:.1f}%"
