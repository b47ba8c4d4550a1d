"""How far a long piece of work is: a bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from code_rl.grading.verdict import Verdict, VerdictKind

LINE_EVERY_S = 10.0
BROKEN_CHECKER = "because their problem's checker is broken (checker_error): it fails on its own reference; the rows' messages say how"


class View:
    """What a verb shows on standard output: lines and tables; `pipe_width` is that of tables in a pipe."""

    pipe_width: int | None = None

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        if not self.console.is_terminal and self.pipe_width:
            self.console.width = self.pipe_width

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text, markup=False)

    def table(self, *columns: str, left: Collection[str] = ("",), title: str | None = None) -> Table:
        """An empty table; the columns named in `left` are text, the others numbers."""
        shown = box.SIMPLE if self.console.is_terminal else box.ASCII2
        table = Table(box=shown, title=title, title_justify="left")
        for name in columns:
            table.add_column(name, justify="left" if name in left else "right")
        return table


@contextlib.contextmanager
def progress(
    console: Console, what: str, total: int | None, note: Callable[[int], str] = lambda _: ""
) -> Iterator[Callable[[], None]]:
    """Show progress while the block runs, which calls the function once an item; `note` is what to say beside the count."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())  # fmt: skip
    done, shown = 0, time.monotonic()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total, note="")

        def on_item() -> None:
            nonlocal done, shown
            done += 1
            bar.update(task, completed=done, note=note(done))
            if not console.is_terminal and time.monotonic() - shown > LINE_EVERY_S:
                shown = time.monotonic()
                console.print(f"{what}: {done} of {total if total is not None else '?'}{note(done)}", markup=False)

        yield on_item


@contextlib.contextmanager
def judging(console: Console, total: int) -> Iterator[Callable[[Verdict], None]]:
    """`progress` of programs that are judged; the block calls the function with each verdict."""
    passed, started = 0, time.perf_counter()

    def note(done: int) -> str:
        return f", {passed} passed, {done / max(time.perf_counter() - started, 1e-9):.1f} per second"

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
