"""Problems kept on disk for random access: one compressed record each, and an index. Memory is that of the problems in use, however large the set.

A pack is a folder `problems.bin` + `index.json`, made once per data set and source of the readers in the cache (`CODE_RL_CACHE`, else
`~/.cache/code-rl`), whole or not at all.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from code_rl.errors import DataError
from code_rl.problems.native import format_problem, parse_problem
from code_rl.problems.order import Selected
from code_rl.problems.problem import Problem
from code_rl.problems.sources.records import Skipped

EXAMPLES = 3
_RECORDS, _INDEX = "problems.bin", "index.json"


@dataclass(frozen=True, slots=True)
class Left:
    """Rows that gave no problem: how many by reason, and a few examples of each."""

    counts: Mapping[str, int] = field(default_factory=dict)
    examples: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(f"{count} {reason}" for reason, count in sorted(self.counts.items()))


class PackedProblems(Sequence[Problem]):
    """The problems of a pack by position, and how many tests each has. Reads one record at each access; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        try:
            index = json.loads((folder / _INDEX).read_bytes())
            self._places: list[tuple[int, int]] = [(offset, length) for offset, length in index["places"]]
            self.test_counts: list[int] = index["tests"]
            self._file = os.open(folder / _RECORDS, os.O_RDONLY)
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder}: the kept problems cannot be read ({error}); delete that folder") from error
        self.folder = folder
        self.left = Left(index["left"], index["examples"])

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Problem]: ...
    def __getitem__(self, index: int | slice) -> Problem | Sequence[Problem]:
        if isinstance(index, slice):
            return Selected(self, range(len(self))[index])
        offset, length = self._places[index]
        try:
            line = zlib.decompress(os.pread(self._file, length, offset))
        except zlib.error as error:
            raise DataError(f"{self.folder}: record {index} is damaged ({error}); delete that folder") from error
        return parse_problem(line, f"{self.folder}, record {index}")

    def __len__(self) -> int:
        return len(self._places)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._file)


async def write_pack(folder: Path, items: AsyncIterator[Problem | Skipped], about: Mapping[str, Any]) -> PackedProblems:
    """Write a pack of the problems among `items` and open it. A repeated id is left out and counted (`duplicate_id`).

    Raises DataError when the folder cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            await _write(unfinished, items, about)
            with suppress(OSError):  # another run may have finished the same pack first
                os.rename(unfinished, folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error.strerror}); set CODE_RL_CACHE to a folder with room"
        ) from error
    return PackedProblems(folder)


async def _write(folder: Path, items: AsyncIterator[Problem | Skipped], about: Mapping[str, Any]) -> None:
    places: list[tuple[int, int]] = []
    tests: list[int] = []
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    seen: set[str] = set()
    offset = 0
    with (folder / _RECORDS).open("wb") as stream:
        async for item in items:
            if isinstance(item, Problem) and item.id in seen:
                item = Skipped(item.id, "duplicate_id", "an earlier row has this id")
            if isinstance(item, Skipped):
                counts[item.reason] += 1
                shown = examples.setdefault(item.reason, [])
                if len(shown) < EXAMPLES:
                    shown.append(f"{item.row_id}: {item.detail}"[:300])
                continue
            seen.add(item.id)
            record = zlib.compress(format_problem(item).encode("ascii"), 1)
            stream.write(record)
            places.append((offset, len(record)))
            tests.append(len(item.tests))
            offset += len(record)
        stream.flush()
        os.fsync(stream.fileno())
    index = {"about": about, "left": counts, "examples": examples, "places": places, "tests": tests}
    (folder / _INDEX).write_text(json.dumps(index), encoding="ascii")
