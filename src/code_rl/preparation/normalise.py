"""The seam to the readers: one data set as a stream of items, with what is needed to say where it came from and to go on after a cut."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from code_rl.errors import DataError
from code_rl.preparation.store import Store
from code_rl.problems.files import file_sha256
from code_rl.problems.problem import Problem
from code_rl.problems.settle import settle_all
from code_rl.problems.sources.records import Item, Skipped
from code_rl.sandbox.executor import Execution, Executor, Job, closing

BUILTIN = "builtin"


@dataclass(frozen=True, slots=True)
class Source:
    """A data set. `read(skip)` gives its items without the first `skip`, the same in every reading.

    `fingerprint` changes whenever the rows do; `provenance` is what a manifest says of it (JSON data).
    """

    fingerprint: str
    provenance: Any
    read: Callable[[int], Iterator[Item]] = field(repr=False)


def open_source(dataset: str, role: str = "train") -> Source:
    """The source named by `dataset`, as training reads it; `role` decides the split where the name does not.

    Raises ConfigError for an unknown name, split or revision, DataError for unusable files or no rows at all.
    """
    if dataset == BUILTIN:
        return _builtin()
    from code_rl.problems.dataset import open_dataset

    found = open_dataset(dataset, "test" if role == "test" else "train")
    if next(found.items(), None) is None:
        raise DataError(f"dataset={dataset} holds no rows")
    return Source(found.fingerprint(), [_portable(part) for part in found.provenance()], found.items)


def _builtin() -> Source:
    from code_rl import __version__
    from code_rl.problems.builtin import BuiltinTrainSet

    name = f"builtin {__version__}"
    return Source(
        name, [{"name": BUILTIN, "revision": __version__}], lambda skip: islice(BuiltinTrainSet(), skip, None)
    )


def _portable(part: dict[str, Any]) -> dict[str, Any]:
    """Local files by name and hash: where they lay on this machine is nobody's business."""
    files = [
        {"name": Path(file["path"]).name, "bytes": file["bytes"], "sha256": file_sha256(Path(file["path"]))}
        for file in part["files"]
    ]
    return {**part, "files": files}


NORMALISERS = tuple(f"code_rl.preparation.{name}" for name in ("normalise", "store"))
"""What, beside the readers, decides what is kept of a row."""


@dataclasses.dataclass(frozen=True, slots=True)
class _OnDemand:
    """An executor that starts when its first job comes: most sources need none."""

    start: Callable[[], Executor]

    @property
    def description(self) -> str:
        return self.start().description

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        async with closing(self.start().run(job)) as executions:
            async for execution in executions:
                yield execution

    async def aclose(self) -> None:
        """Whoever made the executor closes it."""


async def normalise(source: Source, store: Store, executor: Callable[[], Executor], on_row: Callable[[], None]) -> None:
    """Read what of `source` is not yet in `store`, in order; references of drafts run several at a time.

    Raises SandboxError when the executor fails on a draft: without its reference a row cannot be read.
    """
    if store.found.complete:
        return
    seen = {entry.id for entry in store.found.entries}
    supplied: set[str] = set()
    rows = _watched(source.read(store.found.rows), supplied)
    async with aclosing(settle_all(rows, _OnDemand(executor))) as items:  # type: ignore[type-var]
        async for item in items:
            if isinstance(item, Problem) and item.id in seen:
                item = Skipped(item.id, "repeated_id", "the id came before")
            if isinstance(item, Skipped):
                store.leave_out(item)
            else:
                seen.add(item.id)
                store.add(tidy(item), stated_checker=item.compare.rule == "checker" and item.id not in supplied)
            on_row()
    store.finish()


def _watched(items: Iterator[Item], supplied: set[str]) -> Iterator[Item]:
    """The items; ids of those whose checker a reader supplied are noted: only a finished row can bring a checker of its own."""
    for item in items:
        if not isinstance(item, Problem | Skipped) and item.problem.compare.rule == "checker":
            supplied.add(item.problem.id)
        yield item


def tidy(problem: Problem) -> Problem:
    """One spelling of line ends and no white space around the statement; tests stay as they are, byte for byte."""
    statement = problem.statement.replace("\r\n", "\n").replace("\r", "\n").strip()
    return problem if statement == problem.statement else dataclasses.replace(problem, statement=statement)
