"""Progress of judging, and the table of verdicts at its end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rich.console import Console

from code_rl.grading import Verdict, VerdictKind
from code_rl.util.progress import progress


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


def undecided(counts: Mapping[Any, int], what: str) -> Iterator[str]:
    """Yield a sentence for each kind of verdict that decides nothing about the program."""
    for kind, why in (
        (VerdictKind.SANDBOX_ERROR, "about themselves; the same command judges them again"),
        (
            VerdictKind.CHECKER_ERROR,
            "because their problem's checker fails on its own reference; the rows say how",
        ),
    ):
        if counts.get(kind):
            yield f"{counts[kind]} {what} got no verdict {why} ({kind.value})"
