"""The stages' shared state: summaries of problems, decisions on them, the store, and an executor
that starts on demand."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from code_rl.data.dataset import Dataset
from code_rl.data.load import with_most_tests
from code_rl.data.on_disk import ProblemStore
from code_rl.data.preparation.settings import PrepareConfig
from code_rl.grading import Problem, StdinTest, TestCase
from code_rl.grading.sandbox import Executor, connect_executor
from code_rl.grading.values import ENVELOPE, dumps
from code_rl.util.concurrency import gather_or_cancel
from code_rl.util.files import only_writer

WORK = "work"
MAX_HASHED_TESTS = 64
BYTES_IN_FLIGHT = 192 << 20
NAME_FIELDS = (
    "id",
    "question_id",
    "task_id",
    "problem_id",
    "slug",
    "title",
    "question_title",
    "name",
    "url",
)

OnItem = Callable[[], None]
"""Called once for each decided item."""
Verdicts = Mapping[str, Mapping[str, int]]
"""Counts by verdict of each kind of program that was judged for a problem."""


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
    solutions: int
    tests: int
    size: int
    test_hashes: Sequence[tuple[str, str]]
    called: Sequence[str]

    @property
    def text(self) -> str:
        """The text of the task: the statement, and starter code with a docstring or comments."""
        return problem_text(self.statement, self.starter_code)


@dataclass(frozen=True, slots=True)
class Decision:
    """A stage's decision on one problem: kept if `reason`, a code for counting, is empty. `detail`
    is a short text for users.

    `metadata` is added to the problem's `meta.prepare`, and `time_limit_s` replaces its limit.
    `programs` are the verdicts of stage `verify`, `overlap` the sets that have the problem.
    """

    reason: str = ""
    detail: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    time_limit_s: float | None = None
    programs: Verdicts = field(default_factory=dict)
    overlap: tuple[str, ...] = ()

    @property
    def keep(self) -> bool:
        """True if the problem is kept."""
        return not self.reason


@dataclass(slots=True)
class Candidate:
    """A problem that every stage so far kept: its summary, its metadata, and its time limit (None:
    that of the source)."""

    entry: ProblemSummary
    metadata: dict[str, Any] = field(default_factory=dict)
    time_limit_s: float | None = None


def one_by_one(
    candidates: Sequence[Candidate], on_item: OnItem, decide: Callable[[Candidate], Decision]
) -> list[Decision]:
    """Return `decide` of each candidate, in order; `on_item` is called after each."""
    made = []
    for candidate in candidates:
        made.append(decide(candidate))
        on_item()
    return made


async def at_once(
    candidates: Sequence[Candidate], decide: Callable[[Candidate], Awaitable[None]], places: int
) -> None:
    """Call `decide` for all candidates, `places` at once, within a budget of bytes, and wait for
    all. They start in order. The first error cancels the others and is raised."""
    queue, held, changed = iter(candidates), 0, asyncio.Condition()

    async def work() -> None:
        """Call `decide` for candidates of the shared queue until it is empty. Each waits until the
        lines of all in work have at most BYTES_IN_FLIGHT bytes; a larger one runs alone."""
        nonlocal held
        for candidate in queue:
            size = min(candidate.entry.length, BYTES_IN_FLIGHT)  # a larger one runs alone
            async with changed:
                while held + size > BYTES_IN_FLIGHT:
                    await changed.wait()
                held += size
            await decide(candidate)
            async with changed:
                held -= size
                changed.notify_all()

    await gather_or_cancel(work() for _ in range(min(places, len(candidates))))


def summarize(problem: Problem, place: int, line: bytes) -> ProblemSummary:
    """Return the summary of a problem, which is at `place` in its store; `line` is its native line.
    Stores contain summaries, and `store_key` covers this code."""
    texts = list(map(_texts, problem.tests))
    return ProblemSummary(
        id=problem.id,
        digest=hashlib.blake2b(line, digest_size=16).hexdigest(),
        place=place,
        length=len(line),
        statement=problem.statement,
        starter_code=problem.starter_code,
        solutions=len(problem.solutions),
        tests=len(texts),
        size=sum(_utf8_size(text) for pair in texts for text in pair),
        test_hashes=[
            (_short_hash(given), _short_hash(expected))
            for given, expected in texts[:MAX_HASHED_TESTS]
        ],
        called=names_in({**problem.meta, "id": problem.id}),
    )


def _texts(test: TestCase) -> tuple[str, str]:
    """Return input and expected output as text, without the names of arguments."""
    if isinstance(test, StdinTest):
        return test.input, test.expected
    given = dumps([*test.args, *test.kwargs.values()], -ENVELOPE)
    return given, dumps(test.expected, -ENVELOPE)


def _utf8_size(text: str) -> int:
    """Return the size of a text in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _short_hash(text: str) -> str:
    """Return a hash of a text without surrounding blanks, 16 hex digits. Stored summaries contain
    it."""
    data = text.strip().encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def problem_text(statement: str, starter_code: str | None) -> str:
    """Return the text of the task: the statement, and the starter code if it has a docstring or
    comments."""
    if starter_code and any(mark in starter_code for mark in ('"""', "'''", "#")):
        return f"{statement}\n{starter_code}"
    return statement


def names_in(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the ids, titles and other names in a row's fields, those of NAME_FIELDS in their
    order, each once, as text."""
    found = (row.get(field) for field in NAME_FIELDS)
    return tuple(dict.fromkeys(str(name) for name in found if isinstance(name, str | int)))


class Workspace:
    """Use it as a context manager: it makes and locks the working folder, so that two runs cannot
    write there at once, and opens `store`."""

    def __init__(self, config: PrepareConfig, dataset: Dataset, store_key: str) -> None:
        """Write nothing yet. `store_key` is that of `normalise.store_key`; a store of another key
        is made anew."""
        self.config = config
        self.dataset = dataset
        self.out = Path(config.out).expanduser()
        self.work = self.out / WORK
        self._store_key = store_key
        self._executor: Executor | None = None
        self._locks = contextlib.ExitStack()

    def __enter__(self) -> Workspace:
        """Make and lock the working folder, and open its store. Raises ConfigError if another run
        has the lock, and OSError."""
        self.work.mkdir(parents=True, exist_ok=True)
        self._locks.enter_context(only_writer(self.work / "lock", f"out={self.out}"))
        self.store = ProblemStore(self.work, self._store_key)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store and release the lock. The executor is stopped by `aclose`."""
        self.store.close()
        self._locks.close()

    def executor(self) -> Executor:
        """Return the executor, started on first use. Raises ConfigError or IsolationError if it is
        not available."""
        if self._executor is None:
            self._executor = connect_executor(**self.config.connection)
        return self._executor

    async def aclose(self) -> None:
        """Stop the executor, if it was started. Idempotent."""
        if self._executor is not None:
            await self._executor.aclose()
            self._executor = None

    def load(self, candidate: Candidate) -> Problem:
        """Return the problem as it is written: at most `max_tests` tests, the limit of its
        reference, and the candidate's metadata in `meta["prepare"]`. It is read from the store."""
        problem = with_most_tests(self.store[candidate.entry.place], self.config.max_tests)
        metadata = {"prepare": candidate.metadata} if candidate.metadata else {}
        limit = candidate.time_limit_s or problem.time_limit_s
        return replace(problem, time_limit_s=limit, meta={**problem.meta, **metadata})
