"""What the stages share: settings, the store of problems, the ledgers, one executor that starts when it is first needed."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from code_rl.errors import ConfigError
from code_rl.preparation.entries import Entry
from code_rl.preparation.ledger import Ledger
from code_rl.preparation.settings import PrepareConfig
from code_rl.preparation.source import Source
from code_rl.preparation.store import Store
from code_rl.problems.native import format_fields, format_problem
from code_rl.problems.problem import Problem
from code_rl.sandbox.executor import Executor

WORK = "work"
BYTES_IN_FLIGHT = 192 << 20


@dataclass(slots=True)
class Survivor:
    """A problem that every stage so far kept: its entry, its data card, and notes for later stages."""

    entry: Entry
    card: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


def check_folder(config: PrepareConfig) -> None:
    """Raise ConfigError when `out` is a file, cannot be made, or holds something else than an earlier prepare."""
    out = Path(config.out).expanduser()
    if out.exists() and not out.is_dir():
        raise ConfigError(f"out={out} is a file; give a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / WORK / "lock").is_file():
        raise ConfigError(f"out={out} is not empty and holds no earlier prepare; choose another folder")
    parent = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(parent, os.W_OK):
        raise ConfigError(f"out={out} cannot be written: {parent} is read-only; choose another folder")


class Bench:
    """Open it in a `with`: it holds a lock on the folder, so that two runs cannot write there at once."""

    def __init__(self, config: PrepareConfig, source: Source, store_key: str) -> None:
        self.config = config
        self.source = source
        self.out = Path(config.out).expanduser()
        self.work = self.out / WORK
        self._store_key = store_key
        self._executor: Executor | None = None

    def __enter__(self) -> Bench:
        self.work.mkdir(parents=True, exist_ok=True)
        self._lock = (self.work / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError(
                f"out={self.out} is in use by another prepare; wait for it or choose another folder"
            ) from None
        self.store = Store(self.work, self._store_key)
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
        self._lock.close()

    def executor(self) -> Executor:
        """The executor, started when first asked for. Raises ConfigError or IsolationError when it cannot be had."""
        if self._executor is None:
            from code_rl.sandbox.connect import connect_executor

            self._executor = connect_executor(self.config.executor, isolation=self.config.isolation)
        return self._executor

    async def check_executor(self) -> None:
        """Refuse an executor that cannot be had or does not answer, before time is spent on the stages before verify."""
        from code_rl.sandbox.connect import check_executor

        await check_executor(self.executor())

    async def aclose(self) -> None:
        """Stop the executor."""
        if self._executor is not None:
            await self._executor.aclose()
            self._executor = None

    @contextlib.contextmanager
    def ledger(self, stage: str, keys: list[str]) -> Iterator[Ledger]:
        """The ledger of a stage; a stage that ends well leaves the records under `keys` and no others."""
        ledger = Ledger(self.work / f"{stage}.jsonl")
        try:
            yield ledger
        except BaseException:
            ledger.abandon()
            raise
        ledger.close(keys)

    def load(self, survivor: Survivor) -> Problem:
        """The problem as it stands after the stages so far: its tests and its limit, its card in `meta`."""
        problem = self.store.load(survivor.entry)
        tests = problem.tests
        kept = survivor.notes.get("tests")
        if kept is not None:
            tests = tuple(tests[index] for index in kept)
        limit, meta = _as_it_stands(survivor, problem.time_limit_s, problem.meta)
        return dataclasses.replace(problem, tests=tests, time_limit_s=limit, meta=meta)

    def line(self, survivor: Survivor) -> bytes:
        """`load` as a line of a native file. Where every test stays, the tests are copied and never parsed: they are most of the bytes."""
        if survivor.notes.get("tests") is not None or not survivor.entry.head:
            return format_problem(self.load(survivor)).encode("ascii") + b"\n"
        head, fields = self.store.halves(survivor.entry)
        limit, meta = _as_it_stands(survivor, fields["time_limit_s"], fields["meta"])
        rest = format_fields({**fields, "time_limit_s": limit, "meta": meta})
        return head + b"," + rest[1:].encode("ascii") + b"\n"


def _as_it_stands(survivor: Survivor, limit: float, meta: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
    """CPU limit and `meta` of a problem after the stages so far."""
    card = {**meta, "prepare": survivor.card} if survivor.card else meta
    return float(survivor.notes.get("time_limit_s", limit)), card


class ByteBudget:
    """Lets work begin while the bytes in flight stay within a budget; one piece larger than it goes alone."""

    def __init__(self, total: int = BYTES_IN_FLIGHT) -> None:
        self._total = total
        self._used = 0
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Hold `size` bytes while the block runs."""
        size = min(size, self._total)
        async with self._changed:
            await self._changed.wait_for(lambda: self._used + size <= self._total)
            self._used += size
        try:
            yield
        finally:
            self._used -= size
            async with self._changed:
                self._changed.notify_all()


OnItem = Callable[[], None]
"""Called once for each item that a stage has decided."""
