"""The sandbox of one Ray node: an actor whose answers are plain data.

A submission is read step by step. The first step returns the first execution, so a program that
fails its first test costs no more. Each later step returns all executions of a short interval, so
many fast tests cost few calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from code_rl.grading.sandbox.executor import Execution, Job
from code_rl.grading.sandbox.local.pool import EmbeddedSandbox
from code_rl.grading.sandbox.retries import CONTROL, CONTROL_OUTPUT
from code_rl.util.concurrency import closing
from code_rl.util.data_files import sources_digest
from code_rl.util.errors import CodeRLError, SandboxError
from code_rl.util.version import __version__

STEP_S = 0.25


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about a node: isolation level and submissions at once. `refusal` is why it runs
    none."""

    code: str
    isolation: str = ""
    concurrency: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class NodeReply:
    """The executions of one step, in order. `over` or a `failure` ends the submission. `retries`
    counts this node's retries since its last reply."""

    executions: tuple[Execution, ...] = ()
    over: bool = False
    failure: SandboxError | None = None
    retries: int = 0


def code_here() -> str:
    """Return the version of the sandbox's code, which must be equal on all nodes."""
    return (
        f"{__version__} {sources_digest('code_rl.grading.sandbox', 'code_rl.grading.values')[:12]}"
    )


class Node:
    """The actor. Its calls run in one event loop, in the order of arrival."""

    def __init__(self, concurrency: int, isolation: str) -> None:
        self._submissions: dict[int, AsyncIterator[Execution]] = {}
        self._steps: dict[int, asyncio.Task[NodeReply]] = {}
        self._told = 0
        try:
            self._box = EmbeddedSandbox(concurrency, isolation)
        except CodeRLError as error:
            self._facts = NodeFacts(code_here(), refusal=str(error))
        else:
            self._facts = NodeFacts(code_here(), self._box.isolation, concurrency)

    async def facts(self) -> NodeFacts:
        """Return this node's facts."""
        return self._facts

    async def begin(self, number: int, job: Job) -> NodeReply:
        """Start submission `number` and return its first execution."""
        self._submissions[number] = self._box.run(job)
        return await self.step(number, 0.0)

    async def step(self, number: int, seconds: float = STEP_S) -> NodeReply:
        """Return the executions of submission `number` within `seconds`, at least one."""
        task = self._steps[number] = asyncio.create_task(self._step(number, seconds))
        try:
            return await task
        except asyncio.CancelledError:
            return NodeReply(over=True)
        finally:
            self._steps.pop(number, None)

    async def stop(self, number: int) -> None:
        """End submission `number`, whatever it is doing."""
        task, submission = self._steps.pop(number, None), self._submissions.pop(number, None)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        if submission is not None:
            async with closing(submission):
                pass

    async def well(self) -> bool:
        """Return True if a probe program gives its known output here."""
        with contextlib.suppress(SandboxError):
            return [execution.stdout async for execution in self._box.run(CONTROL)] == [
                CONTROL_OUTPUT
            ]
        return False

    async def close(self) -> None:
        """End all workers."""
        if not self._facts.refusal:
            await self._box.aclose()

    async def _step(self, number: int, seconds: float) -> NodeReply:
        found: list[Execution] = []
        over, failure, end = True, None, time.monotonic() + seconds
        try:
            async for execution in self._submissions[number]:
                found.append(execution)
                if time.monotonic() >= end:
                    over = False
                    break
        except SandboxError as error:
            failure = error
        if over:
            self._submissions.pop(number, None)
        told, self._told = self._told, self._box.retries
        return NodeReply(tuple(found), over, failure, self._told - told)
