"""Mutants of the HumanEval+ and MBPP+ references, and the judge's verdicts on those that the sets' own tests kill."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from code_rl.data.preparation.wrong_programs import mutants
from code_rl.data.resolve import with_expected
from code_rl.data.sources.mbpp import FOUND_VIEWS, SET_VIEWS
from code_rl.data.sources.records import Draft
from code_rl.grading import Problem, judge_async
from code_rl.grading.sandbox import Executor
from tests.grading.corpus.oracle import KILLED, SURVIVED, Question, fates
from tests.grading.corpus.references import SOURCES, read_source

TIME_LIMIT_S = 2.0


@dataclass(slots=True)
class Tally:
    """`paid`: killed by the set's tests and passed by us (must stay empty). `stricter`: survivors that we fail."""

    fates: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    paid: list[str] = field(default_factory=list)
    stricter: list[str] = field(default_factory=list)
    undecided_passes: list[str] = field(default_factory=list)
    references_lost: list[str] = field(default_factory=list)


def drafts() -> list[Draft]:
    """Every problem of HumanEval+ and MBPP+ whose expected values come from a reference."""
    items = [item for name in ("humanevalplus", "mbppplus") for item in read_source(SOURCES[name])]
    return [item for item in items if isinstance(item, Draft)]


def question(draft: Draft, count: int) -> Question:
    """The reference itself first, then up to `count` mutants of it."""
    name = str(draft.problem.fn_name)
    view = ""
    if draft.problem.compare.checker:
        view = "root"
    elif draft.problem.source == "mbppplus" and name in SET_VIEWS:
        view = "set"
    elif draft.problem.source == "mbppplus" and name in FOUND_VIEWS:
        view = "found"
    reference = draft.problem.solutions[0]
    programs = (reference, *mutants(reference, count, draft.problem.id))
    return Question(reference, name, draft.calls, programs, draft.abs_tol, view)


async def judge_mutants(chosen: Iterable[Draft], count: int, executor: Executor, at_once: int = 3) -> Tally:
    """Ask the plain run and the judge about every mutant of every chosen problem."""
    tally = Tally()
    waiting = iter(chosen)

    async def work() -> None:
        for draft in waiting:
            problem = await with_expected(draft, executor)
            if isinstance(problem, Problem):
                await _ask(replace(problem, time_limit_s=TIME_LIMIT_S), question(draft, count), executor, tally)

    await asyncio.gather(*(work() for _ in range(at_once)))
    return tally


async def _ask(problem: Problem, asked: Question, executor: Executor, tally: Tally) -> None:
    answers = await asyncio.to_thread(fates, asked)
    if answers[0] != SURVIVED:
        tally.references_lost.append(f"{problem.id}: {answers[0]}")
    for number, (source, fate) in enumerate(zip(asked.mutants[1:], answers[1:], strict=True)):
        verdict = await judge_async(problem, source, executor)
        tally.fates[fate] += 1
        tally.verdicts[verdict.kind.value] += 1
        name = f"{problem.id} mutant {number}"
        if verdict.correct and fate == KILLED:
            tally.paid.append(f"{name}\n{source}")
        elif verdict.correct and fate != SURVIVED:
            tally.undecided_passes.append(name)
        elif fate == SURVIVED and not verdict.correct:
            tally.stricter.append(f"{name}: {verdict.kind.value} {verdict.failure.message if verdict.failure else ''}")
