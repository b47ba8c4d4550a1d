"""The record of this folder's corpora, the rooms where each runs, and the sandbox's verdicts on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import dedent

import pytest

from code_rl.grading.judging import judge_async
from code_rl.grading.problem import Problem
from code_rl.grading.sandbox.executor import Executor
from code_rl.grading.verdict import Verdict, VerdictKind
from tests.grading.corpus.entries import FAILED, PASSED
from tests.grading.corpus.rooms import CONFINED, FUSION

CONFINING = (*CONFINED, FUSION)
UNPAID = FAILED
"""Any verdict about the program that pays nothing."""
ABOUT = FAILED | PASSED
"""Any verdict about the program: it has answered rightly before it made trouble, so that it may also be paid."""
SAMPLES = [
    pytest.param("full", True, id="full-sample"),
    pytest.param("landlock", True, id="landlock-sample", marks=pytest.mark.slow),
    *(pytest.param(name, False, id=name, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]) for name in CONFINING),
]
"""Rooms, and whether only the entries marked `quick` run there."""


@dataclass(frozen=True, slots=True)
class Entry:
    """`tries` says in one line what the program is after; `allowed` are the verdicts that it deserves in `rooms`."""

    name: str
    tries: str
    code: str
    problem: Problem
    allowed: frozenset[VerdictKind]
    rooms: tuple[str, ...] = CONFINING
    quick: bool = False


def source(*parts: str) -> str:
    """One program of several texts, each freed of its own indentation."""
    return "\n".join(dedent(part).strip("\n") for part in parts) + "\n"


def chosen(entries: Iterable[Entry], name: str, sample: bool) -> list[Entry]:
    """The entries for the room `name`."""
    return [entry for entry in entries if name in entry.rooms and (entry.quick or not sample)]


async def verdicts(entries: Sequence[Entry], executor: Executor, at_once: int) -> list[Verdict]:
    """The judge's verdicts, `at_once` at a time."""
    places = asyncio.Semaphore(at_once)

    async def one(entry: Entry) -> Verdict:
        async with places:
            return await judge_async(entry.problem, entry.code, executor)

    return list(await asyncio.gather(*map(one, entries)))


def misjudged(entries: Sequence[Entry], found: Sequence[Verdict]) -> dict[str, str]:
    """Entry name -> verdict and reason, for the entries that did not get what they deserve."""
    return {
        entry.name: f"{verdict.kind.value}: {verdict.failure.message if verdict.failure else ''}"
        for entry, verdict in zip(entries, found, strict=True)
        if verdict.kind not in entry.allowed
    }
