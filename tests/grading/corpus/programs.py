"""The programs that `code-rl audit` ships, as the tests judge them: the verdicts that each deserves, and those that it got."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from code_rl.grading import Problem, Verdict, VerdictKind, judge_async
from code_rl.grading.audit import CorpusProgram, load_corpus
from code_rl.grading.sandbox import Executor

PASSED = frozenset({VerdictKind.PASSED})
STOPPED = frozenset({VerdictKind.TIME_LIMIT, VerdictKind.RUNTIME_ERROR})
FAILED = STOPPED | {
    VerdictKind.WRONG_ANSWER,
    VerdictKind.MEMORY_LIMIT,
    VerdictKind.OUTPUT_LIMIT,
    VerdictKind.COMPILE_ERROR,
}
"""A verdict about the program that pays nothing. `sandbox_error` is none: it would mask a cheat."""
ENDS_WRONG = ("sleeping_orphans", "stops_itself", "spins_in_turns", "clones_of_main")
"""Holders that may also end by themselves, with a wrong answer."""
ENTRIES = load_corpus().entries
BY_NAME = {entry.name: entry for entry in ENTRIES}
WALKS = {
    entry.name: entry.code.partition("def stolen(")[0]
    for entry in ENTRIES
    if entry.group == "searches memory for others" and not entry.problem.calls
}
"""Name -> the part of an exfiltrator that defines `blobs()`, which yields all that it could read."""
WALKER = WALKS["maps_string_at"].partition("def blobs")[0]
"""The part that all of them share."""


def of_class(*groups: str) -> list[CorpusProgram]:
    """The programs of some classes."""
    return [entry for entry in ENTRIES if entry.group in groups]


def of_kind(kind: str) -> list[CorpusProgram]:
    """The programs of one kind."""
    return [entry for entry in ENTRIES if entry.kind == kind]


def named(names: str) -> list[CorpusProgram]:
    """The programs with these names, which blanks separate."""
    return [BY_NAME[name] for name in names.split()]


def deserved(entry: CorpusProgram) -> frozenset[VerdictKind]:
    """The verdicts that a program may get."""
    if entry.kind in ("honest", "owner") or entry.name.startswith("forged_sig"):
        return PASSED
    if entry.kind == "trouble":
        return FAILED | PASSED
    return STOPPED if entry.group == "holds the grader" and entry.name not in ENDS_WRONG else FAILED


def cheat(name: str, code: str, problem: Problem) -> CorpusProgram:
    """A program that is in no file."""
    return CorpusProgram(name, "cheat", "", code, problem)


async def verdicts(entries: Iterable[CorpusProgram], executor: Executor, at_once: int = 4) -> list[Verdict]:
    """The judge's verdicts, `at_once` at a time."""
    slots = asyncio.Semaphore(at_once)

    async def judged(entry: CorpusProgram) -> Verdict:
        async with slots:
            return await judge_async(entry.problem, entry.code, executor)

    return list(await asyncio.gather(*map(judged, entries)))


def undeserved(entries: Iterable[CorpusProgram], found: Iterable[Verdict]) -> dict[str, str]:
    """Name -> verdict and reason, for the programs with an undeserved verdict."""
    return {
        entry.name: f"{verdict.kind.value}: {verdict.failure.message if verdict.failure else ''}"
        for entry, verdict in zip(entries, found, strict=True)
        if verdict.kind not in deserved(entry)
    }


async def misjudged(entries: Sequence[CorpusProgram], executor: Executor) -> dict[str, str]:
    """Judge the programs; `undeserved` of them."""
    return undeserved(entries, await verdicts(entries, executor))
