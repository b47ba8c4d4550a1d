"""What `code-rl judge` shows: a progress bar on a terminal, a line now and then in a pipe, and a table of verdicts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

from rich import box
from rich.console import Console
from rich.table import Table

from code_rl.progress import judging
from code_rl.reward.verdict import Verdict, VerdictKind


class JudgingView:
    """Shows the judging of `total` programs on `console` (standard output unless given)."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        self.total = total
        self.console = console or Console(highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, markup=False)

    @contextlib.contextmanager
    def progress(self, executor: str) -> Iterator[Callable[[Verdict], None]]:
        """Show progress while the block runs; the block calls the function with each verdict."""
        self.say(f"{self.total} programs; {executor}")
        with judging(self.console, self.total) as on_verdict:
            yield on_verdict

    def summary(self, counts: Mapping[VerdictKind, int], wall_s: float, out: str) -> None:
        """The table of verdicts, programs per second, and where the rows are."""
        done = sum(counts.values())
        table = Table(box=box.SIMPLE if self.console.is_terminal else box.ASCII2)
        table.add_column("verdict")
        table.add_column("programs", justify="right")
        table.add_column("share", justify="right")
        for kind in VerdictKind:
            if counts.get(kind):
                table.add_row(kind.value, str(counts[kind]), f"{100 * counts[kind] / done:.1f}%")
        self.console.print(table)
        pace = f" in {wall_s:.1f} s, {done / wall_s:.1f} programs per second" if wall_s > 0 else ""
        self.say(f"{done} programs{pace}; verdicts in {out}")
        ours = counts.get(VerdictKind.SANDBOX_ERROR, 0)
        if ours:
            self.say(f"{ours} programs got no verdict about themselves (sandbox_error); run them again")
        broken = counts.get(VerdictKind.CHECKER_ERROR, 0)
        if broken:
            self.say(
                f"{broken} programs got no verdict because their problem's checker is broken (checker_error): it fails on its own reference; "
                "the rows' messages say how"
            )
