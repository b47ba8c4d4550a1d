"""A run's terminal output: a header, a row per step, and a progress bar. A pipe
gets plain text."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from code_rl.util.progress import View, progress
from code_rl.util.redaction import redacted

COLUMNS = {
    "step": 6,
    "reward": 7,
    "correct": 8,
    "format": 7,
    "skipped": 8,
    "loss": 9,
    "tokens": 7,
    "sample": 7,
    "score": 6,
    "train": 6,
    "held-out": 9,
}
"""The width of each column, by heading."""
PIPE_WIDTH = 120
LEFT_OUT = ("score", "train", "sample", "tokens", "loss")
"""Columns to drop, in this order, on a narrow terminal."""


class Console:
    """Terminal output of a run. `total` is the number of steps, or -1."""

    def __init__(self, total: int, rich_console: RichConsole | None = None) -> None:
        """Make the display without showing it. `rich_console` None means the terminal, or a width
        of 120 in a pipe."""
        self.rich = rich_console or View().console
        if not self.rich.is_terminal:
            self.rich.width = PIPE_WIDTH
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.rich,
            transient=True,
            disable=not self.rich.is_terminal,
        )
        self._task = self._progress.add_task("training", total=total if total > 0 else None)
        self._headed = self.evaluates = False

    def header(self, facts: Mapping[str, str]) -> None:
        """Print the main settings, one a line, with keys replaced. There is at least one."""
        width = max(map(len, facts))
        for name, value in facts.items():
            self.rich.print(Text.assemble((f"{name:>{width}}", "bold"), "  ", redacted(value)))

    def notice(self, text: str) -> None:
        """Print a line that a user should read, with keys replaced."""
        self.rich.print(Text(redacted(text)))

    @contextlib.contextmanager
    def outages_shown(self) -> Iterator[None]:
        """Show the warnings of the logger `code_rl.outages` (the run waits for a service) during
        the block."""
        logger, handler = logging.getLogger("code_rl.outages"), _Notices(self)
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)

    def resume_at(self, step: int) -> None:
        """Show `step` steps as done in the progress bar."""
        self._progress.update(self._task, completed=step)

    def start(self) -> None:
        """Show the progress bar, on a terminal only; `stop` removes it."""
        self._progress.start()

    def begin_step(self, step: int) -> None:
        """Show in the progress bar that a step's sampling begins."""
        self._progress.update(self._task, description=f"step {step}")

    def end_step(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Print a row for a finished step, below the headings if it is the first, or for the
        baseline (step −1) a line with every split. Raises KeyError if a metric of the row is
        missing."""
        if step < 0:
            self.notice(
                f"before training: {_evaluation_line(metrics)}  ({metrics['time/eval']:.1f} s)"
            )
            return
        if not self._headed:
            self._headed = True
            self._row([*COLUMNS])
        self._progress.update(self._task, completed=step + 1)
        cells = (
            str(step),
            _number(metrics["mean_reward"], 3),
            _percent(metrics["mean_correct"]),
            _percent(metrics["format_rate"]),
            f"{metrics['groups_skipped']}/{metrics['groups_total']}",
            _number(metrics["loss"], 4),
            str(metrics["tokens/completion"]),
            f"{metrics['time/sample']:.2f}s",
            f"{metrics['time/score']:.2f}s",
            f"{metrics['time/train']:.2f}s",
            _percent(metrics.get("eval/mean_correct")) if "eval/mean_correct" in metrics else "",
        )
        self._row(cells)

    def _row(self, cells: Sequence[str]) -> None:
        """Print one row of the table, one cell for each of `COLUMNS` in order, without the columns
        for which the terminal is too narrow."""
        shown = dict(zip(COLUMNS, cells, strict=True))
        for name in LEFT_OUT:
            if sum(COLUMNS[name] + 2 for name in shown) - 2 <= self.rich.width:
                break
            del shown[name]
        line = "  ".join(f"{cell:>{COLUMNS[name]}}" for name, cell in shown.items())
        self.notice(line.rstrip())

    @contextlib.contextmanager
    def evaluating(self, count: int, samples: int) -> Iterator[Callable[[], None]]:
        """Show that an evaluation of `count` problems runs, greedily and with `samples` samples
        each; `evaluates` is True meanwhile, and the run's own progress bar is hidden.

        The block calls the function that it gets once per judged completion.
        """
        total = count * (1 + samples)
        draws = f"greedy + {samples} samples each" if samples else "greedy"
        self.notice(f"evaluating {count} held-out problems, {draws}")

        self._progress.stop()
        self.evaluates = True
        try:
            with progress(self.rich, "evaluating", total) as judged:
                yield judged
        finally:
            self.evaluates = False
            self._progress.start()

    def stop(self) -> None:
        """Remove the progress bar. Idempotent."""
        self._progress.stop()

    def farewell(
        self, metrics: Sequence[Mapping[str, Any]], log_path: Path, lines: Sequence[str]
    ) -> None:
        """Print the rate of wrong programs that were paid (if it was measured), the run directory,
        and more `lines`, in this order."""
        steps = [record for record in metrics if record["step"] >= 0]
        if steps and (upper := steps[-1].get("reward/fpr_upper")) is not None:
            names = (
                *("canary/passed", "canary/programs", "canary/groups"),
                *("reward/wrong_paid", "reward/wrong"),
            )
            passed, programs, groups, paid, wrong = (
                sum(record.get(name) or 0 for record in steps) for name in names
            )
            self.notice(
                f"wrong programs that were paid: {passed} of {programs} for {groups} canary "
                f"groups, {paid} of {wrong} that fail a test; at most {_percent(upper)} (95%, each "
                "group counted once)"
            )
        self.notice(f"run directory: {log_path}")
        for line in lines:
            self.notice(line)


class _Notices(logging.Handler):
    """A log handler that prints warnings on the console."""

    def __init__(self, console: Console) -> None:
        """Print warnings and errors on this console; other records are dropped."""
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record. Called by `logging`."""
        self._console.notice(record.getMessage())


def _evaluation_line(metrics: Mapping[str, Any]) -> str:
    """Format Pass@1 and greedy accuracy of each split in one line. Splits without samples are left
    out."""
    parts = []
    for key in metrics:
        if key.endswith("/pass@1") and key.count("/") == 2:
            name = key.split("/")[1]
            parts.append(
                f"{name} {_percent(metrics[key])} (greedy "
                f"{_percent(metrics[f'eval/{name}/mean_correct'])})"
            )
    return "Pass@1 " + ", ".join(parts)


def _percent(value: float | None) -> str:
    """Return a share as per cent with one decimal, `-` for None."""
    return "-" if value is None else f"{100 * value:.1f}%"


def _number(value: float | None, digits: int) -> str:
    """Return a number with that many decimals, `-` for None."""
    return "-" if value is None else f"{value:.{digits}f}"
