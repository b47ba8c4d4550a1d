"""Short ways to make a job, and to have all its executions."""

from __future__ import annotations

from typing import Any

from code_rl.grading.sandbox import Executor, Job, Limits, StdinInput
from code_rl.grading.sandbox.executor import CallInput, Execution


def stdin_job(code: str, *inputs: bytes | str, **limits: Any) -> Job:
    """A script with one test for each input (one empty input when none is given)."""
    data = (text.encode() if isinstance(text, str) else text for text in inputs or (b"",))
    return Job(code, tuple(map(StdinInput, data)), limits=Limits(**limits))


def call(*args: Any, **kwargs: Any) -> CallInput:
    """One test of a function."""
    return CallInput(args, kwargs)


def call_job(code: str, fn_name: str, *arguments: tuple[Any, ...], **more: Any) -> Job:
    """A function with one test for each tuple of arguments."""
    return Job(code, tuple(call(*args) for args in arguments or ((),)), fn_name=fn_name, **more)


async def collect(executor: Executor, job: Job) -> list[Execution]:
    """All executions of `job`."""
    return [execution async for execution in executor.run(job)]
