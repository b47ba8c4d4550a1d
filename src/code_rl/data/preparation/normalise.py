"""Stage `normalise`: turns every row of the source into a native problem with expected values,
uniform line ends and a unique id."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import aclosing

from code_rl.data.dataset import Dataset, Role, open_dataset
from code_rl.data.on_disk import READERS
from code_rl.data.preparation.workspace import Candidate, ProblemSummary, Workspace, make_entry
from code_rl.data.resolve import resolve_all
from code_rl.data.sources.records import Item, Skipped
from code_rl.grading import Problem
from code_rl.grading.sandbox import OnDemand
from code_rl.grading.values import ValueCodecError
from code_rl.util.data_files import sources_digest
from code_rl.util.errors import DataError
from code_rl.util.files import digest


def open_source(dataset: str, role: Role = "train") -> Dataset:
    """Return the data set named by `dataset`, read as in training; `role` chooses the split if the
    name does not.

    Raises ConfigError for an unknown name, split or revision, DataError for unusable files or no
    rows at all.
    """
    found = open_dataset(dataset, role)
    if next(found.items(), None) is None:
        raise DataError(f"dataset={dataset} holds no rows")
    return found


def store_key(dataset: Dataset) -> str:
    """Return the key of the normalized problems: a digest of the rows and of the code that reads
    and measures them."""
    return digest(
        sources_digest(*READERS, __name__, "code_rl.data.preparation.workspace"),
        dataset.fingerprint(),
    )


async def normalise(workspace: Workspace, on_row: Callable[[], None]) -> list[Candidate]:
    """Read the rows that are not yet in the store, in order. The references of several drafts run
    at once.

    Raises SandboxError if the executor fails on a draft: without its reference a row cannot be
    read.
    """
    store, supplied = workspace.store, set[str]()
    if not store.complete:
        rows = _watched(workspace.dataset.items(store.rows), supplied)
        executor = OnDemand(workspace.executor)
        async with aclosing(resolve_all(rows, executor)) as items:  # type: ignore[type-var]
            async for item in items:
                if isinstance(item, Problem) and store.has(item.id):
                    item = Skipped(item.id, "repeated_id", "the id came before")
                if isinstance(item, Skipped):
                    store.leave_out(item)
                else:
                    stated = item.compare.rule == "checker" and item.id not in supplied
                    item = tidy(item)
                    try:
                        entry, line = make_entry(item, len(store), stated_checker=stated)
                    except ValueCodecError as error:
                        store.leave_out(Skipped(item.id, "value_not_plain", str(error)))
                    else:
                        store.add(item, dataclasses.asdict(entry), line)
                on_row()
        store.finish()
    return [Candidate(ProblemSummary(**place.about)) for place in store.places]


def _watched(items: Iterator[Item], supplied: set[str]) -> Iterator[Item]:
    """Yield the items. Add to `supplied` the ids of problems whose checker came from a reader; only
    a finished row can have its own."""
    for item in items:
        if not isinstance(item, Problem | Skipped) and item.problem.compare.rule == "checker":
            supplied.add(item.problem.id)
        yield item


def tidy(problem: Problem) -> Problem:
    """Unify line ends in the statement and strip it; tests stay unchanged, byte for byte."""
    statement = problem.statement.replace("\r\n", "\n").replace("\r", "\n").strip()
    return (
        problem
        if statement == problem.statement
        else dataclasses.replace(problem, statement=statement)
    )
