"""False negatives of ours: the share of each set's own accepted solutions that our default rule refuses, by kind.

    python benchmarks/false_negatives.py sets=a.jsonl,b.jsonl.gz [solutions=3] [limit=N] [seconds=S] [out=FILE]

A set is anything that `dataset=` takes. An accepted solution that fails is a false negative of ours, an error of the set
(a wrong solution, a wrong or outdated expected output), or a limit set for another language; read the listed ones to tell which.
Sets whose expected values are computed from the reference (HumanEval+, MBPP+) can show little: their reference passes by
construction. Prints a Markdown table and every refusal; `out` gets both as JSON lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import chz

from code_rl.cli.main import run_script
from code_rl.data.dataset import open_dataset
from code_rl.data.resolve import resolve_all
from code_rl.grading import Problem, Verdict, judge_async
from code_rl.grading.sandbox import Executor, connect_executor
from code_rl.util.concurrency import default_concurrency, gather_or_cancel
from code_rl.util.rates import Rate


@chz.chz
class FalseNegativesConfig:
    """Settings of the table."""

    sets: str = chz.field(doc="Data sets, comma-separated: files, folders or names, as train's dataset=.")
    solutions: int = chz.field(default=3, doc="Accepted solutions of each problem to judge, the first ones.")
    limit: int = chz.field(default=0, doc="Problems of each set with a solution (0: all).")
    seconds: float = chz.field(default=math.inf, doc="Begin no further program of a set after this many seconds.")
    executor: str = chz.field(default="embedded", doc="As judge's executor=.")
    out: str | None = chz.field(default=None, doc="JSON lines file for the rows and refusals.")


@dataclass(frozen=True, slots=True)
class Refusal:
    """An accepted solution that was not paid: its verdict, the first failing test, and the judge's message."""

    set: str
    problem: str
    solution: int
    verdict: str
    test: int
    message: str


@dataclass(frozen=True, slots=True)
class SetRow:
    """One set: its problems with solutions, the share of solutions refused, and counts by verdict."""

    set: str
    unread: dict[str, int]
    refused: Rate
    verdicts: dict[str, int]
    undecided: int
    unjudged: int
    refusals: tuple[Refusal, ...]

    def markdown(self) -> str:
        """The set's row of the table."""
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.verdicts.items())) or "none"
        return (
            f"| {self.set} | {self.refused.problems} | {self.refused} | {kinds} | {self.undecided} | {self.unjudged} |"
        )


HEAD = "| set | problems | accepted solutions refused [95%, over problems] | of those, by verdict | no verdict | not begun |"


async def problems_of(name: str, limit: int, executor: Executor) -> tuple[list[Problem], Counter[str]]:
    """The first problems with solutions, and the rows that were not read, by reason."""
    found: list[Problem] = []
    unread = Counter[str]()
    async with contextlib.aclosing(resolve_all(open_dataset(name).items(), executor)) as items:  # type: ignore[type-var]
        async for item in items:
            if not isinstance(item, Problem):
                unread[item.reason] += 1
            elif item.solutions:
                found.append(item)
                if len(found) == limit:
                    break
    return found, unread


async def measured(config: FalseNegativesConfig, name: str, executor: Executor) -> SetRow:
    """Judge the accepted solutions of one set."""
    problems, unread = await problems_of(name, config.limit, executor)
    until = time.monotonic() + config.seconds
    places = asyncio.Semaphore(default_concurrency(executor.slots))

    async def one(problem: Problem, code: str) -> Verdict | None:
        async with places:
            return None if time.monotonic() > until else await judge_async(problem, code, executor)

    tasks = [
        (problem, number, code)
        for problem in problems
        for number, code in enumerate(problem.solutions[: config.solutions])
    ]
    verdicts = await gather_or_cancel(one(problem, code) for problem, _, code in tasks)
    judged = [
        (problem, number, verdict)
        for (problem, number, _), verdict in zip(tasks, verdicts, strict=True)
        if verdict is not None
    ]
    label = Path(name).name
    decided = [each for each in judged if not each[2].undecided]
    refusals = [refusal(label, *each) for each in decided if not each[2].correct]
    return SetRow(
        label,
        dict(unread),
        Rate(len(refusals), len(decided), len({problem.id for problem, _, _ in decided})),
        dict(Counter(each.verdict for each in refusals)),
        len(judged) - len(decided),
        len(tasks) - len(judged),
        tuple(refusals),
    )


def refusal(label: str, problem: Problem, number: int, verdict: Verdict) -> Refusal:
    """A refused solution as a record. The hidden test's message is the judge's short one."""
    test, message = (verdict.failure.test, verdict.failure.message) if verdict.failure else (0, "")
    return Refusal(label, problem.id, number, verdict.kind.value, test, " ".join(message.split())[:160])


async def table(config: FalseNegativesConfig, names: Sequence[str]) -> list[SetRow]:
    """The rows of all sets, printed as they are made."""
    rows = []
    async with contextlib.aclosing(connect_executor(config.executor)) as executor:
        print(HEAD, "|---|---|---|---|---|---|", sep="\n", flush=True)
        for name in names:
            rows.append(await measured(config, name, executor))
            print(rows[-1].markdown(), flush=True)
    return rows


def record(row: SetRow) -> dict[str, Any]:
    """The row as JSON data."""
    return asdict(row) | {"interval": row.refused.ends}


def main(config: FalseNegativesConfig) -> int:
    """Print the table and the refusals."""
    rows = asyncio.run(table(config, [name.strip() for name in config.sets.split(",")]))
    print()
    for row in rows:
        if row.unread:
            print(f"- {row.set}: rows not read: {row.unread}")
        for each in row.refusals:
            print(
                f"- {each.set} {each.problem}, solution {each.solution}: {each.verdict} at test {each.test}: {each.message}"
            )
    if config.out is not None:
        Path(config.out).write_text("".join(json.dumps(record(row)) + "\n" for row in rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    run_script(FalseNegativesConfig, main, __doc__)
