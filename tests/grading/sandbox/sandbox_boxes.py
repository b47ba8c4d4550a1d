"""Short ways to run programs through the embedded sandbox in tests."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from code_rl.grading.sandbox import Job
from code_rl.grading.sandbox.executor import Execution
from code_rl.grading.sandbox.server import EmbeddedSandbox
from code_rl.util.errors import IsolationError
from tests.boxes import shared_box
from tests.grading.jobs import collect, stdin_job


def available_levels() -> list[str]:
    """The levels that protect and can be had here."""
    levels = []
    for level in ("full", "landlock"):
        try:
            shared_box(level)
        except IsolationError:
            continue
        levels.append(level)
    return levels


LEVELS = available_levels()


def run_jobs(*jobs: Job, level: str = "auto", concurrency: int = 1, own: bool = False) -> list[list[Execution]]:
    """Run jobs one after the other, in a shared sandbox or in one that is started now."""

    async def go() -> list[list[Execution]]:
        box = EmbeddedSandbox(concurrency, level) if own else shared_box(level, concurrency)
        async with box if own else contextlib.nullcontext():
            return [await collect(box, job) for job in jobs]

    return asyncio.run(go())


def run(job: Job, level: str = "auto", *, own: bool = False) -> list[Execution]:
    """Run one job."""
    return run_jobs(job, level=level, own=own)[0]


def run_one(code: str, stdin: bytes = b"", level: str = "auto", **limits: Any) -> Execution:
    """Run one script on one input."""
    return run(stdin_job(code, stdin, **limits), level)[0]
