"""What a stage decided about each item, on disk as it decides: a cut loses at most the item in hand.

A record is found again by the content hash of everything that its decision depends on, so that a rerun with other data or other
settings reuses exactly what still holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from code_rl.errors import ConfigError
from code_rl.preparation.normalise import Source
from code_rl.preparation.settings import PrepareConfig
from code_rl.preparation.store import Entry, Store
from code_rl.problems.native import format_fields, format_problem
from code_rl.problems.problem import Problem
from code_rl.runs.files import sync_directory
from code_rl.sandbox.executor import Executor


@dataclass(frozen=True, slots=True)
class Decision:
    """A stage's word on one item. `reason` is a code to count by (empty when kept), `detail` a short text for people.

    `card` is what the stage adds to the problem's data card; `notes` what later stages need and the card does not.
    """

    keep: bool
    reason: str = ""
    detail: str = ""
    card: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


KEEP = Decision(keep=True)


def drop(reason: str, detail: str = "", **notes: Any) -> Decision:
    """A decision to drop."""
    return Decision(keep=False, reason=reason, detail=detail, notes=notes)


def content_key(*parts: object) -> str:
    """A hash of JSON-able parts; equal parts give equal keys."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


class Ledger:
    """Decisions by key in an append-only file. A torn last line is forgotten; everything before it stands."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[str, Decision] = {}
        self._stream = _open_whole_lines(path, self._read)

    def get(self, key: str) -> Decision | None:
        """The decision stored under `key`."""
        return self._records.get(key)

    def put(self, key: str, decision: Decision) -> None:
        """Store a decision; it survives a kill of this process once this returns."""
        self._records[key] = decision
        self._stream.write(_line(key, decision))
        self._stream.flush()

    def close(self, wanted: Iterable[str]) -> None:
        """Keep only the records under the keys `wanted`, in that order, on disk, and close."""
        self._stream.close()
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        with temporary.open("wb") as stream:
            for key in wanted:
                if key in self._records:
                    stream.write(_line(key, self._records[key]))
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(self._path)
        sync_directory(self._path.parent)

    def abandon(self) -> None:
        """Close without rewriting: what was stored stays."""
        self._stream.close()

    def _read(self, line: bytes) -> bool:
        try:
            row = json.loads(line)
            key = row.pop("key")
            self._records[key] = Decision(**row)
        except (ValueError, TypeError, KeyError):
            return False
        return True


def _line(key: str, decision: Decision) -> bytes:
    row: dict[str, Any] = {"key": key, "keep": decision.keep}
    for name in ("reason", "detail", "card", "notes"):
        value = getattr(decision, name)
        if value:
            row[name] = value
    return json.dumps(row, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _open_whole_lines(path: Path, accept: Any) -> IO[bytes]:
    """Open for appending after the last line that is whole and that `accept` reads; what follows it is cut off."""
    end = 0
    if path.exists():
        with path.open("rb") as stream:
            for line in stream:
                if not line.endswith(b"\n") or not accept(line):
                    break
                end += len(line)
        os.truncate(path, end)
    return path.open("ab")


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

            where = self.config.executor
            where = where if where != "auto" else os.environ.get("SANDBOX_URL") or "embedded"
            self._executor = connect_executor(where, isolation=self.config.isolation)
        return self._executor

    async def check_executor(self) -> None:
        """Refuse an executor that cannot be had or does not answer, before time is spent on the stages before verify."""
        check = getattr(self.executor(), "check", None)
        if check is not None:
            await check()

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
