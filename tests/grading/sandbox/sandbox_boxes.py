"""Short ways to run programs through the embedded sandbox in tests."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from code_rl.grading.sandbox.executor import CallInput, Execution, Job, Limits, StdinInput
from code_rl.grading.sandbox.local.pool import EmbeddedSandbox
from code_rl.util.errors import IsolationError
from tests.boxes import shared_box


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


def stdin_job(code: str, *inputs: bytes, **limits: Any) -> Job:
    """A script with one test for each input (one empty input when none is given)."""
    return Job(code, tuple(StdinInput(data) for data in inputs or (b"",)), limits=Limits(**limits))


def call_job(code: str, fn_name: str, *arguments: tuple[Any, ...], **more: Any) -> Job:
    """A function with one test for each tuple of arguments."""
    return Job(code, tuple(CallInput(args) for args in arguments or ((),)), fn_name=fn_name, **more)


async def collect(box: EmbeddedSandbox, job: Job) -> list[Execution]:
    """All executions of `job`."""
    return [execution async for execution in box.run(job)]


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
