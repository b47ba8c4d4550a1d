"""The normalised problems on disk: whole lines in `problems.jsonl`, their measures in `index.jsonl`, both appended row by row."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from code_rl.preparation.entries import Entry, entry_from_json, entry_to_json, make_entry
from code_rl.problems.files import read_object
from code_rl.problems.native import format_halves, parse_problem
from code_rl.problems.problem import Problem
from code_rl.problems.sources.records import Skipped

PAYLOAD = "problems.jsonl"
INDEX = "index.jsonl"


@dataclass(slots=True)
class Normalised:
    """What normalising gave so far: `entries` in source order, the rows left out, and whether the source was read to its end."""

    entries: list[Entry]
    skipped: list[Skipped]
    rows: int = 0
    complete: bool = False


class Store:
    """The normalised problems of one source. `key` names source and settings; files made under another key are replaced."""

    def __init__(self, folder: Path, key: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._payload_path, self._index_path = folder / PAYLOAD, folder / INDEX
        self.found = Normalised([], [])
        end, payload_end = self._read_index(key)
        if end == 0:
            self._index_path.write_text(json.dumps({"key": key}) + "\n", encoding="ascii")
            self._payload_path.write_bytes(b"")
        else:
            os.truncate(self._index_path, end)
            os.truncate(self._payload_path, payload_end)
        self._payload: IO[bytes] = self._payload_path.open("ab+")
        self._index: IO[bytes] = self._index_path.open("ab")
        self._end = payload_end

    def add(self, problem: Problem, *, stated_checker: bool) -> Entry:
        """Append one problem; it survives a kill of this process once this returns."""
        head, tail = format_halves(problem)
        line = f"{head},{tail}\n".encode("ascii")
        entry = make_entry(problem, line, self._end, stated_checker=stated_checker, head=len(head))
        self._payload.write(line)
        self._payload.flush()
        self._end += len(line)
        self.found.entries.append(entry)
        self._note(entry_to_json(entry))
        return entry

    def leave_out(self, skipped: Skipped) -> None:
        """Note one row that gives no problem."""
        self.found.skipped.append(skipped)
        self._note(json.dumps({"skipped": [skipped.row_id, skipped.reason, skipped.detail]}))

    def finish(self) -> None:
        """Everything was read; make it durable."""
        if not self.found.complete:
            os.fsync(self._payload.fileno())
            self._index.write(b'{"complete":true}\n')
            self._index.flush()
            os.fsync(self._index.fileno())
            self.found.complete = True

    def load(self, entry: Entry) -> Problem:
        """The whole problem of an entry."""
        return parse_problem(self.line(entry), self._where(entry))

    def line(self, entry: Entry) -> bytes:
        """The line of an entry, with its end."""
        return os.pread(self._payload.fileno(), entry.length, entry.offset)

    def halves(self, entry: Entry) -> tuple[bytes, dict[str, Any]]:
        """The line of an entry up to its tests, as it is, and the fields behind them. `entry.head` must be known."""
        line = self.line(entry)
        return line[: entry.head], read_object(b"{" + line[entry.head + 1 :], self._where(entry))

    def _where(self, entry: Entry) -> str:
        return f"{self._payload_path}, byte {entry.offset}"

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._payload.close()
        self._index.close()

    def _note(self, text: str) -> None:
        self._index.write(text.encode("ascii") + b"\n")
        self._index.flush()
        self.found.rows += 1

    def _read_index(self, key: str) -> tuple[int, int]:
        """Take over what an earlier process left under the same key; returns how far index and payload are whole."""
        if not self._index_path.exists() or not self._payload_path.exists():
            return 0, 0
        end = payload_end = 0
        size = self._payload_path.stat().st_size
        for number, (line, row) in enumerate(_whole_rows(self._index_path)):
            if number == 0:
                if row != {"key": key}:
                    return 0, 0
            elif not self._take(row, size):
                break
            end += len(line)
        if self.found.entries:
            payload_end = self.found.entries[-1].offset + self.found.entries[-1].length
        return end, payload_end

    def _take(self, row: Mapping[str, Any], size: int) -> bool:
        if row == {"complete": True}:
            self.found.complete = True
            return True
        if "skipped" in row:
            self.found.skipped.append(Skipped(*row["skipped"]))
        else:
            entry = entry_from_json(row)
            if entry.offset + entry.length > size:
                return False
            self.found.entries.append(entry)
        self.found.rows += 1
        return True


def _whole_rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    with path.open("rb") as stream:
        for line in stream:
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
            except ValueError:
                return
            yield line, row
