"""Stage `normalise`: turns every row of the source into a native problem with expected values,
uniform line ends and a unique id."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
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


def store_key(dataset: Dataset, language: str | None) -> str:
    """Return the key of the normalized problems: a digest of the rows, of the programs' language,
    and of the code that reads and measures them."""
    return digest(
        sources_digest(*READERS, __name__, "code_rl.data.preparation.workspace"),
        dataset.fingerprint(),
        language,
    )


async def normalise(workspace: Workspace, on_row: Callable[[], None]) -> list[Candidate]:
    """Read the rows that are not yet in the store, in order. The references of several drafts run
    at once.

    Raises SandboxError if the executor fails on a draft: without its reference a row cannot be
    read.
    """
    store = workspace.store
    if not store.complete:
        language = workspace.config.language
        rows = (in_language(item, language) for item in workspace.dataset.items(store.rows))
        executor = OnDemand(workspace.executor)
        async with aclosing(resolve_all(rows, executor)) as items:  # type: ignore[type-var]
            async for item in items:
                if isinstance(item, Problem) and store.has(item.id):
                    item = Skipped(item.id, "repeated_id", "the id came before")
                if isinstance(item, Skipped):
                    store.leave_out(item)
                else:
                    item = tidy(item)
                    try:
                        entry, line = make_entry(item, len(store))
                    except ValueCodecError as error:
                        store.leave_out(Skipped(item.id, "value_not_plain", str(error)))
                    else:
                        store.add(item, dataclasses.asdict(entry), line)
                on_row()
        store.finish()
    return [Candidate(ProblemSummary(**place.about)) for place in store.places]


def in_language(item: Item, language: str | None) -> Item:
    """Return a row's item for programs of `language` (None: its own), or the reason why it can have
    none."""
    if isinstance(item, Skipped):
        return item
    problem = item if isinstance(item, Problem) else item.problem
    try:
        other = problem.in_language(language)
    except DataError as error:
        return Skipped(problem.id, "only_python", str(error))
    return item if other is problem else other


def tidy(problem: Problem) -> Problem:
    """Unify line ends in the statement and strip it; tests stay unchanged, byte for byte."""
    statement = problem.statement.replace("\r\n", "\n").replace("\r", "\n").strip()
    return (
        problem
        if statement == problem.statement
        else dataclasses.replace(problem, statement=statement)
    )
