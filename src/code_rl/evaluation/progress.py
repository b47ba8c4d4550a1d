"""Progress of judging, and the table of verdicts at its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

from rich.console import Console

from code_rl.grading import Verdict, VerdictKind
from code_rl.util.progress import View, progress

BROKEN_CHECKER = (
    "because their problem's checker is broken (checker_error): it fails on its own "
    "reference; the rows' messages say how"
)


@contextlib.contextmanager
def judging(console: Console, total: int) -> Iterator[Callable[[Verdict], None]]:
    """`progress` of programs that are judged; the block calls the function with each verdict."""
    passed, started = 0, time.perf_counter()

    def note(done: int) -> str:
        return (
            f", {passed} passed, {done / max(time.perf_counter() - started, 1e-9):.1f} per second"
        )

    with progress(console, "judged", total, note) as on_item:

        def on_verdict(verdict: Verdict) -> None:
            nonlocal passed
            passed += verdict.correct
            on_item()

        yield on_verdict


class JudgingView(View):
    """Shows the judging of `total` programs, and a table of their verdicts."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self.total = total

    @contextlib.contextmanager
    def progress(self, executor: str) -> Iterator[Callable[[Verdict], None]]:
        """Show progress while the block runs; the block calls the function with each verdict."""
        self.say(f"{self.total} programs; {executor}")
        with judging(self.console, self.total) as on_verdict:
            yield on_verdict

    def summary(self, counts: Mapping[VerdictKind, int], wall_s: float, out: str) -> None:
        """The table of verdicts, programs per second, and where the rows are."""
        done = sum(counts.values())
        table = self.table("verdict", "programs", "share", left=("verdict",))
        for kind in VerdictKind:
            if counts.get(kind):
                table.add_row(kind.value, str(counts[kind]), f"{100 * counts[kind] / done:.1f}%")
        self.console.print(table)
        pace = f" in {wall_s:.1f} s, {done / wall_s:.1f} programs per second" if wall_s > 0 else ""
        self.say(f"{done} programs{pace}; verdicts in {out}")
        for kind, why in (
            (VerdictKind.SANDBOX_ERROR, "about themselves (sandbox_error); run them again"),
            (VerdictKind.CHECKER_ERROR, BROKEN_CHECKER),
        ):
            if counts.get(kind):
                self.say(f"{counts[kind]} programs got no verdict {why}")
