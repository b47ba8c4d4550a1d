"""The stages' shared state: summaries of problems, the store, and an executor that starts on
demand."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from code_rl.data.dataset import Dataset
from code_rl.data.on_disk import ProblemStore
from code_rl.data.preparation.decisions import Decisions, OnItem
from code_rl.data.preparation.settings import STAGES, PrepareConfig
from code_rl.grading import Problem, StdinTest, TestCase
from code_rl.grading.native import format_problem
from code_rl.grading.sandbox import Executor
from code_rl.grading.values import ENVELOPE, dumps
from code_rl.util.data_files import sources_digest
from code_rl.util.errors import ConfigError
from code_rl.util.files import KeyedLog, check_out, digest, only_writer

WORK, REPORT = "work", "report.json"
NAME_KEYS = (
    "title",
    "question_title",
    "slug",
    "question_id",
    "contest_id",
    "task_id",
    "name",
    "url",
)
MAX_HASHED_TESTS = 64


@dataclass(frozen=True, slots=True)
class ProblemSummary:
    """A problem as the static stages see it: its text and sizes, without its tests.

    `digest` is the content hash of the whole problem, `place` its position in the store, and
    `length` the bytes of its line. `sizes` are the bytes of each test (input and expected output),
    `public` the indices of public tests, and `test_hashes` short hashes of the first tests' inputs
    and expected outputs. `called` has its id and the names that the source gave it.
    `stated_checker` is True if the data itself has the checker.
    """

    id: str
    digest: str
    place: int
    length: int
    statement: str
    starter_code: str | None
    source: str
    rule: str
    solutions: int
    sizes: Sequence[int]
    public: Sequence[int]
    test_hashes: Sequence[tuple[str, str]]
    called: Sequence[str]
    stated_checker: bool

    @property
    def tests(self) -> int:
        """The number of tests."""
        return len(self.sizes)


_OF_PROBLEM = ("id", "statement", "starter_code", "source")


def make_entry(
    problem: Problem, place: int, *, stated_checker: bool = False
) -> tuple[ProblemSummary, bytes]:
    """Return the summary of a problem, which is at `place` in its store, and its native line."""
    line = format_problem(problem).encode("ascii")
    measured = [measure(test, index < MAX_HASHED_TESTS) for index, test in enumerate(problem.tests)]
    entry = ProblemSummary(
        **{name: getattr(problem, name) for name in _OF_PROBLEM},
        digest=hashlib.blake2b(line, digest_size=16).hexdigest(),
        place=place,
        length=len(line),
        rule=problem.compare.rule,
        solutions=len(problem.solutions),
        sizes=[size for size, _ in measured],
        public=[index for index, test in enumerate(problem.tests) if test.public],
        test_hashes=[pair for _, pair in measured[:MAX_HASHED_TESTS]],
        called=[
            problem.id,
            *(
                str(problem.meta[key])
                for key in NAME_KEYS
                if isinstance(problem.meta.get(key), str | int)
            ),
        ],
        stated_checker=stated_checker,
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
    """A problem that every stage so far kept: its summary, its metadata, and notes for later
    stages."""

    entry: ProblemSummary
    metadata: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


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

    @contextlib.contextmanager
    def verifying(self, candidates: Sequence[Candidate], on_item: OnItem) -> Iterator[Decisions]:
        """Give the decisions of stage `verify`, including those stored by an earlier run. If the
        block ends without an error, only the rows of these candidates are kept.

        A decision depends on the stage's settings, on the code of the stage and of grading, and on
        the problem.
        """
        shared = [
            sources_digest("code_rl.data.preparation.verification", "code_rl.grading"),
            *(getattr(self.config, name) for name in STAGES["verify"].settings),
        ]
        keys = [digest(shared, one.entry.digest, one.entry.stated_checker) for one in candidates]
        log = KeyedLog[str](self.work / "verify.jsonl", itemgetter("key"))
        with contextlib.closing(log):
            yield Decisions(candidates, keys, log, on_item)
            log.rewrite(keys)

    def load(self, candidate: Candidate) -> Problem:
        """Return the problem as the stages so far left it: its tests, its limit, and metadata in
        `meta`."""
        problem = self.store[candidate.entry.place]
        kept = candidate.notes.get("tests")
        tests = problem.tests if kept is None else tuple(problem.tests[index] for index in kept)
        metadata = {"prepare": candidate.metadata} if candidate.metadata else {}
        limit = float(candidate.notes.get("time_limit_s", problem.time_limit_s))
        return replace(problem, tests=tests, time_limit_s=limit, meta={**problem.meta, **metadata})
