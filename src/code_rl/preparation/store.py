"""The normalised problems on disk: whole lines in `problems.jsonl`, their measures in `index.jsonl`, both appended row by row."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from code_rl.problems.files import read_object
from code_rl.problems.native import format_halves, parse_problem
from code_rl.problems.problem import CallTest, Problem, StdinTest, TestCase
from code_rl.problems.sources.records import Skipped
from code_rl.problems.values import dumps

NAME_KEYS = ("title", "question_title", "slug", "question_id", "contest_id", "task_id", "name", "url")


@dataclass(frozen=True, slots=True)
class Entry:
    """`digest` is the content hash of the whole problem; `offset` and `length` say where its line is in `problems.jsonl`.

    `sizes` are bytes of each test (input and expected), `public` the indices of public tests, `test_hashes` short hashes of the first
    tests' inputs and expected outputs, `names` the ids and titles that the source gave, `arguments` the names of a call's arguments.
    `stated_checker` is true when the data itself brought the checker. `head` is where in its line the tests end (0: not known).
    """

    id: str
    digest: str
    offset: int
    length: int
    statement: str
    starter_code: str | None
    fn_name: str | None
    source: str
    date: str | None
    time_limit_s: float
    rule: str
    solutions: int
    sizes: tuple[int, ...]
    public: tuple[int, ...]
    test_hashes: tuple[tuple[str, str], ...]
    names: Mapping[str, str]
    arguments: tuple[str, ...]
    stated_checker: bool = False
    head: int = 0

    @property
    def tests(self) -> int:
        """How many tests there are."""
        return len(self.sizes)


MAX_HASHED_TESTS = 64


def make_entry(problem: Problem, line: bytes, offset: int, *, stated_checker: bool, head: int = 0) -> Entry:
    """Measure a problem whose native line is `line`, at `offset`."""
    measured = [_measure(test, index < MAX_HASHED_TESTS) for index, test in enumerate(problem.tests)]
    return Entry(
        id=problem.id,
        digest=hashlib.blake2b(line, digest_size=16).hexdigest(),
        offset=offset,
        length=len(line),
        statement=problem.statement,
        starter_code=problem.starter_code,
        fn_name=problem.fn_name,
        source=problem.source,
        date=problem.date,
        time_limit_s=problem.time_limit_s,
        rule=problem.compare.rule,
        solutions=len(problem.solutions),
        sizes=tuple(size for size, _ in measured),
        public=tuple(index for index, test in enumerate(problem.tests) if test.public),
        test_hashes=tuple(pair for _, pair in measured[:MAX_HASHED_TESTS]),
        names={key: str(problem.meta[key]) for key in NAME_KEYS if isinstance(problem.meta.get(key), str | int)},
        arguments=tuple(problem.tests[0].kwargs) if isinstance(problem.tests[0], CallTest) else (),
        stated_checker=stated_checker,
        head=head,
    )


def _measure(test: TestCase, hashed: bool) -> tuple[int, tuple[str, str]]:
    """Bytes of input and expected output as text, and a short hash of each. Names of arguments do not count."""
    if isinstance(test, StdinTest):
        given, expected = test.input, test.expected
    else:
        given, expected = dumps([*test.args, *test.kwargs.values()]), dumps(test.expected)
    size = _utf8_size(given) + _utf8_size(expected)
    return size, (_short_hash(given.strip()), _short_hash(expected.strip())) if hashed else ("", "")


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def entry_to_json(entry: Entry) -> str:
    """One line of `index.jsonl`, without the line end."""
    row = {name: getattr(entry, name) for name in _FIELDS}
    return json.dumps(row, ensure_ascii=True, separators=(",", ":"))


def entry_from_json(row: Mapping[str, Any]) -> Entry:
    """Inverse of `entry_to_json`, from the parsed object. Raises TypeError or KeyError for another shape."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    values["test_hashes"] = tuple((given, whole) for given, whole in values["test_hashes"])
    return Entry(**values)


_FIELDS = tuple(field.name for field in dataclasses.fields(Entry))


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
