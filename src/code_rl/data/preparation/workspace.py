"""The stages' shared state: summaries of problems, the store, and an executor that starts on
demand."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from code_rl.data.dataset import Dataset
from code_rl.data.load import with_most_tests
from code_rl.data.on_disk import ProblemStore
from code_rl.data.preparation.ngrams import names_in
from code_rl.data.preparation.settings import PrepareConfig
from code_rl.grading import Problem, StdinTest, TestCase
from code_rl.grading.native import format_problem
from code_rl.grading.sandbox import Executor
from code_rl.grading.values import ENVELOPE, dumps
from code_rl.util.errors import ConfigError
from code_rl.util.files import check_out, only_writer

WORK = "work"
MAX_HASHED_TESTS = 64


@dataclass(frozen=True, slots=True)
class ProblemSummary:
    """A problem as the static stages see it: its text and sizes, without its tests.

    `digest` is the content hash of the whole problem, `place` its position in the store, and
    `length` the bytes of its line. `tests` is the number of tests, `size` their bytes (inputs and
    expected outputs), and `test_hashes` short hashes of the first tests' inputs and expected
    outputs. `called` has its id and the names that the source gave it.
    """

    id: str
    digest: str
    place: int
    length: int
    statement: str
    starter_code: str | None
    source: str
    solutions: int
    tests: int
    size: int
    test_hashes: Sequence[tuple[str, str]]
    called: Sequence[str]


_OF_PROBLEM = ("id", "statement", "starter_code", "source")


def make_entry(problem: Problem, place: int) -> tuple[ProblemSummary, bytes]:
    """Return the summary of a problem, which is at `place` in its store, and its native line."""
    line = format_problem(problem).encode("ascii")
    measured = [measure(test, index < MAX_HASHED_TESTS) for index, test in enumerate(problem.tests)]
    entry = ProblemSummary(
        **{name: getattr(problem, name) for name in _OF_PROBLEM},
        digest=hashlib.blake2b(line, digest_size=16).hexdigest(),
        place=place,
        length=len(line),
        solutions=len(problem.solutions),
        tests=len(measured),
        size=sum(size for size, _ in measured),
        test_hashes=[pair for _, pair in measured[:MAX_HASHED_TESTS]],
        called=names_in({**problem.meta, "id": problem.id}),
    )
    return entry, line


def measure(test: TestCase, hashed: bool) -> tuple[int, tuple[str, str]]:
    """Return the bytes of input and expected output as text, and a short hash of each. Names of
    arguments do not count."""
    if isinstance(test, StdinTest):
        given, expected = test.input, test.expected
    else:
        given = dumps([*test.args, *test.kwargs.values()], -ENVELOPE)
        expected = dumps(test.expected, -ENVELOPE)
    size = _utf8_size(given) + _utf8_size(expected)
    return size, (_short_hash(given.strip()), _short_hash(expected.strip())) if hashed else ("", "")


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


@dataclass(slots=True)
class Candidate:
    """A problem that every stage so far kept: its summary, its metadata, and its time limit (None:
    that of the source)."""

    entry: ProblemSummary
    metadata: dict[str, Any] = field(default_factory=dict)
    time_limit_s: float | None = None


def check_folder(config: PrepareConfig) -> None:
    """Raise ConfigError if `out` is a file, cannot be made, or holds anything but an earlier
    prepare."""
    out = Path(config.out).expanduser()
    check_out(out, lambda folder: (folder / WORK / "lock").is_file(), "earlier prepare")
    parent = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not os.access(parent, os.W_OK):
        raise ConfigError(
            f"out={out} cannot be written: {parent} is read-only; choose another folder"
        )


class Workspace:
    """Use it as a context manager: it locks the folder, so that two runs cannot write there at
    once."""

    def __init__(self, config: PrepareConfig, dataset: Dataset, store_key: str) -> None:
        self.config = config
        self.dataset = dataset
        self.out = Path(config.out).expanduser()
        self.work = self.out / WORK
        self._store_key = store_key
        self._executor: Executor | None = None
        self._locks = contextlib.ExitStack()

    def __enter__(self) -> Workspace:
        self.work.mkdir(parents=True, exist_ok=True)
        self._locks.enter_context(only_writer(self.work / "lock", f"out={self.out}"))
        self.store = ProblemStore(self.work, self._store_key)
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
        self._locks.close()

    def executor(self) -> Executor:
        """The executor, started on first use. Raises ConfigError or IsolationError if it is not
        available."""
        if self._executor is None:
            from code_rl.grading.sandbox import connect_executor

            self._executor = connect_executor(**self.config.connection)
        return self._executor

    async def aclose(self) -> None:
        """Stop the executor."""
        if self._executor is not None:
            await self._executor.aclose()
            self._executor = None

    def load(self, candidate: Candidate) -> Problem:
        """Return the problem as it is written: at most `max_tests` tests, the limit of its
        reference, and metadata in `meta`."""
        problem = with_most_tests(self.store[candidate.entry.place], self.config.max_tests)
        metadata = {"prepare": candidate.metadata} if candidate.metadata else {}
        limit = candidate.time_limit_s or problem.time_limit_s
        return replace(problem, time_limit_s=limit, meta={**problem.meta, **metadata})
