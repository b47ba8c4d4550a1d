"""One normalised problem as the static stages see it: its text and its measures, without its tests."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from code_rl.problems.problem import CallTest, Problem, StdinTest, TestCase
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
