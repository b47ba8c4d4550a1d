"""Stage `normalise`: turns every row of the source into a native problem with expected values,
uniform line ends and a unique id."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Mapping
from typing import Any

from code_rl.data.dataset import Dataset, Role, open_dataset
from code_rl.data.on_disk import READERS
from code_rl.data.preparation.workspace import (
    Candidate,
    OnItem,
    ProblemSummary,
    Workspace,
    summarize,
)
from code_rl.data.resolve import resolve_all
from code_rl.data.sources.records import Item, Skipped, problem_in
from code_rl.grading import Problem
from code_rl.grading.sandbox import OnDemand
from code_rl.util.concurrency import closing
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
    """Return the key of the normalized problems: a digest of the rows, of the programs' language
    (None: each problem's own), and of the code that reads and measures them. Another key makes the
    store anew."""
    return digest(
        sources_digest(*READERS, __name__, "code_rl.data.preparation.workspace"),
        dataset.fingerprint(),
        language,
    )


async def normalise(workspace: Workspace, on_row: OnItem) -> list[Candidate]:
    """Read the rows that are not yet in the store, in order, and return all its problems as
    candidates. The references of several drafts run at once; `on_row` is called for each row that
    is read.

    Raises SandboxError if the executor fails on a draft: without its reference a row cannot be
    read. Rows stored before stay.
    """
    store, language = workspace.store, workspace.config.language

    def about(problem: Problem, line: bytes) -> Mapping[str, Any]:
        """Return the summary that the store keeps with a problem, as JSON data."""
        return dataclasses.asdict(summarize(problem, len(store), line))

    async def tidied() -> AsyncIterator[Problem | Skipped]:
        """Yield each row, in order, as a tidied problem with an id of its own, or skipped, and call
        `on_row` after each."""
        rows = (in_language(item, language) for item in workspace.dataset.items(store.rows))
        async with closing(resolve_all(rows, OnDemand(workspace.executor))) as items:
            async for item in items:
                if isinstance(item, Problem) and store.has(item.id):
                    item = Skipped(item.id, "repeated_id", "the id came before")
                yield tidy(item) if isinstance(item, Problem) else item
                on_row()

    if not store.complete:
        await store.fill(tidied(), about)
    return [Candidate(ProblemSummary(**place.about)) for place in store.places]


def in_language(item: Item, language: str | None) -> Item:
    """Return a row's item for programs of `language` (None: its own), or a Skipped (`only_python`)
    if it can have none."""
    if isinstance(item, Skipped):
        return item
    problem = problem_in(item)
    try:
        other = problem.in_language(language)
    except DataError as error:
        return Skipped(problem.id, "only_python", str(error))
    return item if other is problem else other


def tidy(problem: Problem) -> Problem:
    """Return the problem with unified line ends in its statement, stripped; tests stay unchanged,
    byte for byte."""
    statement = problem.statement.replace("\r\n", "\n").replace("\r", "\n").strip()
    return dataclasses.replace(problem, statement=statement)
