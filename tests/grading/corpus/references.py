"""The real sets through readers and judge: which references pass, fail or are left out."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from code_rl.data.resolve import resolve
from code_rl.data.sources.records import Item, Origin, Row, Skipped
from code_rl.data.sources.shapes import read_row
from code_rl.grading import Problem, Verdict, VerdictKind, judge_async
from code_rl.grading.sandbox import Executor
from tests.grading.corpus.reading import read_rows
from tests.grading.corpus.rooms import data_file

PATIENT_CPU_S = 90.0


@dataclass(frozen=True, slots=True)
class Source:
    """One file, the number of its rows, and the ids that are known not to give a passing reference."""

    name: str
    file: str
    rows: int
    skipped: frozenset[str] = frozenset()
    bad: frozenset[str] = frozenset()


def _ids(prefix: str, *numbers: int) -> frozenset[str]:
    return frozenset(f"{prefix}/{number}" for number in numbers)


SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        Source(
            "humaneval",
            "humaneval/HumanEval.jsonl.gz",
            164,
            skipped=_ids("HumanEval", 32, 38, 44, 50, 53, 151),
        ),
        Source(
            "humanevalplus",
            "humanevalplus/HumanEvalPlus.jsonl.gz",
            164,
            bad=_ids("HumanEval", 32),
        ),
        Source("humanevalplus-mini", "humanevalplus/HumanEvalPlus-Mini.jsonl.gz", 164),
        Source(
            "humanevalplus-origin",
            "humanevalplus/HumanEvalPlus-OriginFmt.jsonl.gz",
            164,
            skipped=_ids("HumanEval", 32),
        ),
        Source("mbpp", "mbpp/mbpp.jsonl", 974, skipped=_ids("Mbpp", 367, 533, 596, 601, 927)),
        Source("mbpp-sanitized", "mbpp/mbpp_sanitized.jsonl", 427, skipped=_ids("Mbpp", 596)),
        Source("mbppplus", "mbppplus/MbppPlus.jsonl.gz", 378),
        Source("mbppplus-origin", "mbppplus/MbppPlus-OriginFmt.jsonl.gz", 378),
        Source(
            "leetcode-v0.2.0-train",
            "leetcode/LeetCodeDataset-v0.2.0-train.jsonl.gz",
            1890,
            bad=frozenset({"word-ladder-ii"}),
        ),
        Source("leetcode-v0.2.0-test", "leetcode/LeetCodeDataset-v0.2.0-test.jsonl.gz", 200),
        Source("leetcode-v0.3.1-test", "leetcode/LeetCodeDataset-v0.3.1-test.jsonl.gz", 228),
    )
}


@dataclass(slots=True)
class Report:
    """The outcome of each row: `counts` by verdict or reason, ids of the `failed` and `skipped`, and who needed a larger limit."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    slow: list[str] = field(default_factory=list)

    def add(self, item_id: str, verdict: Verdict | Skipped) -> None:
        """Count one row."""
        if isinstance(verdict, Skipped):
            self.counts[f"skipped:{verdict.reason}"] += 1
            self.skipped[item_id] = f"{verdict.reason}: {verdict.detail}"
            return
        self.counts[verdict.kind.value] += 1
        if not verdict.correct:
            message = verdict.failure.message if verdict.failure else ""
            self.failed[item_id] = f"{verdict.kind.value} after {verdict.passed} of {verdict.total}: {message}"


def read_source(source: Source) -> list[Item]:
    """All items of a source; skips the test where the file is absent."""
    return _read(read_rows(data_file(source.file)))


def _read(rows: Iterable[Row]) -> list[Item]:
    return [read_row(row, Origin("set", "row", index)) for index, row in enumerate(rows)]


def read_sample(source: Source, count: int, seed: int = 2) -> list[Item]:
    """The items of a seeded sample of a source's rows: to read them all takes seconds. Skips the test where the file is absent."""
    rows = list(read_rows(data_file(source.file)))
    return _read(random.Random(seed).sample(rows, min(count, len(rows))))


async def judge_references(items: Iterable[Item], executor: Executor, at_once: int = 4) -> Report:
    """Judge every item's own reference; a time-out is tried again alone with a larger limit."""
    report = Report()
    waiting = iter(items)
    late: list[Problem] = []

    async def work() -> None:
        for item in waiting:
            ready = await resolve(item, executor)
            if isinstance(ready, Skipped):
                report.add(ready.row_id, ready)
                continue
            verdict = await judge_async(ready, ready.solutions[0], executor)
            if verdict.kind is VerdictKind.TIME_LIMIT:
                late.append(ready)
            else:
                report.add(ready.id, verdict)

    await asyncio.gather(*(work() for _ in range(at_once)))
    for problem in late:
        report.slow.append(problem.id)
        report.add(
            problem.id, await judge_async(replace(problem, time_limit_s=PATIENT_CPU_S), problem.solutions[0], executor)
        )
    return report
