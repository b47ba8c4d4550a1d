"""Runs corpus entries in a room and reports those that got a verdict that they may not get."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from code_rl.grading.judging import judge_async
from code_rl.grading.sandbox.executor import Executor
from tests.grading.corpus.entries import Entry


async def misjudged(entries: Iterable[Entry], executor: Executor, at_once: int = 4) -> dict[str, str]:
    """Entry name -> verdict and reason, for the entries whose verdict is not allowed."""
    places = asyncio.Semaphore(at_once)

    async def check(entry: Entry) -> tuple[str, str] | None:
        async with places:
            verdict = await judge_async(entry.problem, entry.code, executor)
        if verdict.kind in entry.allowed:
            return None
        return entry.name, f"{verdict.kind.value}: {verdict.failure.message if verdict.failure else ''}"

    found = await asyncio.gather(*map(check, entries))
    return dict(pair for pair in found if pair is not None)
