"""Problems on disk for random access: one compressed record each, and an index.

A store is a folder with `problems.bin` and `index.jsonl`, both appended row by row, so that an
interruption costs one row. Its key covers everything that determines the problems (the source's
rows, the readers' code); another key makes another store. Stores of data sets and benchmarks are in
the cache (`CODE_RL_CACHE`, else `~/.cache/code-rl`); the store of `code-rl prepare` is in its
folder.
"""

from __future__ import annotations

import json
import os
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import AsyncFileLock

from code_rl.data.order import Indexed, keys_of
from code_rl.data.sources.records import Skipped
from code_rl.grading import Problem
from code_rl.grading.native import check_problem, format_problem, parse_problem
from code_rl.grading.values import ValueCodecError
from code_rl.util.concurrency import closing
from code_rl.util.data_files import cache_folder, sources_digest
from code_rl.util.errors import DataError
from code_rl.util.files import sized_lines

READERS = ("code_rl.data", "code_rl.grading", "code_rl.util.data_files")
"""The modules whose code determines the problems."""

RECORDS, INDEX = "problems.bin", "index.jsonl"
Items = Callable[[int], AsyncIterator[Problem | Skipped]]
"""A function from a row position to the items of the source's rows from there on."""
About = Callable[[Problem, bytes], Mapping[str, Any]]
"""A function from a problem and its native line to notes about it (JSON data)."""


@dataclass(frozen=True, slots=True)
class ProblemLocation:
    """The position of a problem's record, and its reader's notes (JSON data)."""

    id: str
    offset: int
    length: int
    about: Mapping[str, Any]
    text: str
    """The digest of its statement."""
    tests: int


class ProblemStore(Indexed[Problem]):
    """The problems by position and by id. `skipped` has the rows without a problem; `complete` is
    True if the source was read to its end.

    Each access reads one record; several threads may read.
    """

    def __init__(self, folder: Path, key: str) -> None:
        """Read the index that an earlier process stored in `folder` under the same `key`; another
        key's is ignored, and overwritten by the first write. Nothing is written yet. Raises
        DataError for a damaged index."""
        self.folder, self.key = folder, key
        self.places: list[ProblemLocation] = []
        self.skipped: list[Skipped] = []
        self.complete = False
        self._place_of: dict[str, int] = {}
        self._last: Problem | None = None
        self._reading: int | None = None
        self._writing: tuple[IO[bytes], IO[bytes]] | None = None
        self._whole = self._read_index()

    def at(self, position: int) -> Problem:
        """Return the problem at a position, read and parsed each time. Raises DataError, naming the
        folder to delete, if its record is damaged."""
        place, where = self.places[position], f"{self.folder}, record {position}"
        if self._reading is None:
            self._reading = os.open(self.folder / RECORDS, os.O_RDONLY)
        try:
            line = zlib.decompress(os.pread(self._reading, place.length, place.offset))
        except zlib.error as error:
            raise DataError(f"{where} is damaged ({error}); delete that folder") from error
        return parse_problem(line, where)

    def __len__(self) -> int:
        return len(self.places)

    def has(self, problem_id: str) -> bool:
        """Return True if a problem has this id."""
        return problem_id in self._place_of

    def get(self, problem_id: str) -> Problem:
        """Return the problem with this id. The last one is cached. Raises KeyError for an unknown
        id, DataError for a damaged record."""
        last = self._last
        if last is None or last.id != problem_id:
            last = self._last = self.at(self._place_of[problem_id])
        return last

    @property
    def keys(self) -> list[tuple[str, str]]:
        """The `keys_of` each problem, by position, without reading any."""
        return [(place.id, place.text) for place in self.places]

    @property
    def rows(self) -> int:
        """The number of rows of the source that were processed, with or without a problem: an
        interrupted store goes on there."""
        return len(self.places) + len(self.skipped)

    def left_out(self) -> dict[str, int]:
        """Return the number of rows without a problem, by reason, sorted."""
        return dict(sorted(Counter(one.reason for one in self.skipped).items()))

    async def fill(self, items: AsyncIterator[Problem | Skipped], about: About) -> None:
        """Store the results of the remaining rows of the source, in order, then `finish`. `items`
        begins after the first `rows` rows. A problem with a repeated id is left out
        (`duplicate_id`)."""
        async with closing(items) as rows:
            async for item in rows:
                if isinstance(item, Problem) and self.has(item.id):
                    again = f"row {self.rows + 1} has the id {item.id!r} of an earlier row"
                    item = Skipped(item.id, "duplicate_id", again)
                if isinstance(item, Skipped):
                    self.leave_out(item)
                else:
                    self.add(item, about)
        self.finish()

    def add(self, problem: Problem, about: About = lambda *_: {}) -> None:
        """Append one problem, with the notes `about` it (default: none), or leave it out if it
        could not be judged, or its values cannot be written. Its id is new (`has`).

        Once this returns, the record survives a kill of this process. Raises OSError.
        """
        try:
            check_problem(problem, f"problem {problem.id!r}")
            line = format_problem(problem).encode("ascii")
            notes = about(problem, line)
        except (DataError, ValueCodecError) as error:
            reason = "malformed_row" if isinstance(error, DataError) else "value_not_plain"
            self.leave_out(Skipped(problem.id, reason, str(error)))
            return
        records, _ = self._writers()
        record = zlib.compress(line, 1)
        row = {
            "id": problem.id,
            "at": [self._end, len(record)],
            "text": keys_of(problem)[1],
            "tests": len(problem.tests),
        }
        row |= {"about": notes} if notes else {}
        records.write(record)
        records.flush()
        self._note(row)
        self._take(row)

    def leave_out(self, skipped: Skipped) -> None:
        """Record a row without a problem, on disk too. It counts as one of `rows`."""
        self._note({"skipped": [skipped.row_id, skipped.reason, skipped.detail]})
        self.skipped.append(skipped)

    def finish(self) -> None:
        """Mark the store as complete and make it durable (fsync). No row may be added afterwards.
        Idempotent."""
        if not self.complete:
            records, index = self._writers()
            os.fsync(records.fileno())
            self._note({"complete": True})
            os.fsync(index.fileno())
            self.complete = True

    def close(self) -> None:
        """Close the files; a later access opens them again. Idempotent."""
        for stream in self._writing or ():
            stream.close()
        if self._reading is not None:
            os.close(self._reading)
        self._reading = self._writing = None

    def __del__(self) -> None:
        """Close the files; errors are ignored."""
        with suppress(AttributeError, OSError):
            self.close()

    @property
    def _end(self) -> int:
        """The offset behind the last problem, in bytes."""
        return self.places[-1].offset + self.places[-1].length if self.places else 0

    def _take(self, row: Mapping[str, Any]) -> None:
        """Add a line of the index to the locations in memory. Nothing is written."""
        name, about, (offset, length) = row["id"], row.get("about", {}), row["at"]
        self._place_of[name] = len(self.places)
        self.places.append(ProblemLocation(name, offset, length, about, row["text"], row["tests"]))

    def _note(self, row: Mapping[str, Any]) -> None:
        """Append a line to the index file, and flush it. It makes the record that was written
        before it valid, so it comes after that. Raises OSError."""
        _, index = self._writers()
        index.write(json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n")
        index.flush()

    def _writers(self) -> tuple[IO[bytes], IO[bytes]]:
        """Return the files of records and index, opened for appending the first time; an incomplete
        record at the end is removed, and another key's content too. Raises OSError."""
        if self._writing is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            records, index = (self.folder / RECORDS).open("ab"), (self.folder / INDEX).open("ab")
            records.truncate(self._end)
            index.truncate(self._whole)
            self._writing = records, index
            if not self._whole:
                self._note({"key": self.key})
        return self._writing

    def _read_index(self) -> int:
        """Read the rows that an earlier process stored under the same key; return the bytes of the
        intact part, 0 for another key. A row whose record is incomplete ends it."""
        whole = 0
        with suppress(FileNotFoundError):
            size = (self.folder / RECORDS).stat().st_size
            for number, (length, row) in enumerate(sized_lines(self.folder / INDEX)):
                if number == 0 and row != {"key": self.key}:
                    return 0
                if "skipped" in row:
                    self.skipped.append(Skipped(*row["skipped"]))
                elif "id" in row:
                    if sum(row["at"]) > size:
                        break
                    self._take(row)
                self.complete = row == {"complete": True}
                whole += length
        return whole


async def cached_store(
    name: str, items: Items, about: Callable[[Problem], Mapping[str, Any]], *modules: str
) -> ProblemStore:
    """Return the store `name` of the cache, made from `items` the first time. An interrupted one is
    continued; a second process waits.

    It is made again if the readers or `modules` have changed, in another folder. `about` gives the
    notes kept with each problem. Raises DataError if the store cannot be written.
    """
    key = sources_digest(*READERS, *modules)
    folder = cache_folder() / "problems" / f"{name}-{key[:16]}"
    store = ProblemStore(folder, key)
    if store.complete:
        return store
    try:
        folder.mkdir(parents=True, exist_ok=True)
        async with AsyncFileLock(folder / "lock"):
            store = ProblemStore(folder, key)
            if not store.complete:
                await store.fill(items(store.rows), lambda problem, _: about(problem))
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error.strerror}); set CODE_RL_CACHE to a folder with "
            "room"
        ) from error
    return store
