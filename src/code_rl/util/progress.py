"""Progress of long work: a bar on a terminal, an occasional line in a pipe."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterator

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

LINE_EVERY_S = 5.0


class View:
    """A verb's standard output: lines and tables; `pipe_width` is the width of tables in a pipe."""

    pipe_width: int | None = None

    def __init__(self) -> None:
        """Write to standard output; a pipe gets tables of `pipe_width` columns, if that is set."""
        self.console = Console(highlight=False, soft_wrap=True)
        if not self.console.is_terminal and self.pipe_width:
            self.console.width = self.pipe_width

    def say(self, text: str) -> None:
        """Print one line as it is: square brackets are not markup, and long lines are not
        wrapped."""
        self.console.print(text, markup=False)

    def table(
        self, *columns: str, left: Collection[str] = ("",), title: str | None = None
    ) -> Table:
        """Return an empty table, which the caller fills and prints; the columns in `left` are text,
        the others numbers."""
        shown = box.SIMPLE if self.console.is_terminal else box.ASCII2
        table = Table(box=shown, title=title, title_justify="left")
        for name in columns:
            table.add_column(name, justify="left" if name in left else "right")
        return table


@contextlib.contextmanager
def progress(
    console: Console, what: str, total: int | None, note: Callable[[int], str] = lambda _: ""
) -> Iterator[Callable[[], None]]:
    """Show progress during the block, which calls the function once per item: a bar on a terminal,
    in a pipe a line every five seconds at most. `total` None is unknown; `note` gives a text beside
    the count."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    done, shown = 0, time.monotonic()
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(what, total=total, note="")

        def on_item() -> None:
            """Count one item, and show the count."""
            nonlocal done, shown
            done += 1
            bar.update(task, completed=done, note=note(done))
            if not console.is_terminal and time.monotonic() - shown > LINE_EVERY_S:
                shown = time.monotonic()
                console.print(
                    f"{what}: {done} of {total if total is not None else '?'}{note(done)}",
                    markup=False,
                )

        yield on_item
