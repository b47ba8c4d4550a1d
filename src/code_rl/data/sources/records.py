"""Shared by all readers: the result types, and row access whose errors name the field.

A reader turns each raw row into a `Problem`, a `Draft` (its reference computes expected outputs
later) or an `Ambiguous` (its tests have several readings until a reference has run). A `RowError`
makes the row a `Skipped` with a reason code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from code_rl.grading import CallTest, Problem, TestCase
from code_rl.util.data_files import parse_json
from code_rl.util.errors import DataError

COMPLETE = "Complete the following function."
"""The statement of rows whose prompt is code."""
REQUEST = "Please complete the following python code precisely:"
"""The text before the code in LeetCodeDataset's older layout."""


T = TypeVar("T")
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """A row's origin: the set's name, the prefix of its ids, the position, and the position as
    text."""

    source: str
    prefix: str
    index: int
    where: str = "row"

    @property
    def row_id(self) -> str:
        """The id of a row without its own: the prefix and its position, from 0."""
        return f"{self.prefix}/{self.index}"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A row that cannot be represented faithfully as a `Problem`. `reason` is a code for counting,
    `detail` a short text for users."""

    row_id: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Draft:
    """A problem without tests: `resolve.with_expected` runs its first solution on `calls` to
    compute the expected values.

    `problem.tests` is empty. The first `public` calls become public tests. `abs_tol` is the set's
    own tolerance (0: none).
    """

    problem: Problem
    calls: tuple[tuple[Any, ...], ...]
    abs_tol: float = 0.0
    public: int = 0


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a row's tests: how arguments and results are unwrapped, and the resulting
    tests."""

    arguments: str
    result: str
    tests: tuple[CallTest, ...]

    @property
    def name(self) -> str:
        """`arguments/result`, for users and for `meta`."""
        return f"{self.arguments}/{self.result}"


@dataclass(frozen=True, slots=True)
class Ambiguous:
    """A problem whose call tests can be read in several ways: `resolve.resolve` runs its solutions
    to decide.

    `problem.tests` is empty. `tiers` are tried in order: first the readings that the set documents,
    then others that occur in it.
    """

    problem: Problem
    tiers: tuple[tuple[Reading, ...], ...]


Item = Problem | Draft | Ambiguous | Skipped
"""The result of one row."""


def problem_in(item: Problem | Draft | Ambiguous) -> Problem:
    """Return an item's problem, which in a Draft or an Ambiguous still lacks its tests."""
    return item if isinstance(item, Problem) else item.problem


def item_id(item: Item) -> str:
    """Return the id of any item: of its problem, or of a skipped row."""
    return item.row_id if isinstance(item, Skipped) else problem_in(item).id


class RowError(DataError):
    """A row lacks a field, or the field has another form than the data set documents."""

    def __init__(self, reason: str, detail: str = "") -> None:
        """`reason` is a code for counting, and `detail` a text for users; a Skipped gets both."""
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


Reader = Callable[[Row, Origin], T]
ROW_ID = "row_id"


def named(row_id: Reader[str]) -> Callable[[Reader[T]], Reader[T]]:
    """Decorate a reader that makes its own ids with `row_id`; a refused row is then reported under
    that id. The reader itself is returned."""

    def of(read: Reader[T]) -> Reader[T]:
        """Attach the function that names a row to its reader."""
        setattr(read, ROW_ID, row_id)
        return read

    return of


def stated_id(row: Row, *names: str) -> str:
    """Return, as text, the first text or number that is not blank among these fields of a row, or
    an empty text."""
    for value in map(row.get, names):
        if isinstance(value, str | int) and not isinstance(value, bool) and str(value).strip():
            return str(value)
    return ""


def make_problem(
    origin: Origin,
    row_id: object,
    statement: str,
    tests: Iterable[TestCase] = (),
    starter: str | None = None,
    **more: Any,
) -> Problem:
    """Return a problem of the set; `more` are further fields of Problem. A row without an id gets
    its position as id; blank starter code counts as none."""
    stated = str(row_id or "")
    name = stated if stated.strip() else origin.row_id
    starter = starter if starter and starter.strip() else None
    more = {"source": origin.source, **more}
    return Problem(name, statement, tuple(tests), starter, **more)


def field(row: Row, name: str, kind: type[T]) -> T:
    """Return `row[name]`, which must be of type `kind`. Raises RowError naming the field, if it is
    missing, None or of another type."""
    if row.get(name) is None:
        raise RowError("missing_field", name)
    value = row[name]
    if not isinstance(value, kind):
        raise RowError(
            "wrong_field_type", f"{name} is {type(value).__name__}, expected {kind.__name__}"
        )
    return value


def filled(row: Row, name: str) -> str:
    """Return `row[name]`, which must be a text that is not blank. Raises RowError otherwise."""
    text = field(row, name, str)
    if not text.strip():
        raise RowError("blank_statement", name)
    return text


def asked_by_user(prompt: Any) -> str:
    """Return the user's last message of a prompt, which is a text or a list of messages. Raises
    RowError if there is none, or it is blank."""
    messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
    said = [one.get("content") for one in messages if one.get("role") == "user"]
    if not said or not isinstance(said[-1], str) or not said[-1].strip():
        raise RowError("blank_statement", "prompt has no message of the user")
    return said[-1]


def number(row: Row, name: str) -> float:
    """Return `row[name]`, which must be a number, as a float. Raises RowError otherwise."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RowError("wrong_field_type", f"{name} is {type(value).__name__}, expected a number")
    return float(value)


def items(row: Row, name: str, kind: type[T]) -> list[T]:
    """Return `row[name]`, which must be a list of values of type `kind`. Raises RowError
    otherwise."""
    found = field(row, name, list)
    if not all(isinstance(item, kind) for item in found):
        raise RowError("wrong_field_type", f"{name} must be a list of {kind.__name__}")
    return found


def from_json(value: Any, name: str) -> Any:
    """Return `value`, parsed if it is text. Raises RowError (`not_json`), with the field's `name`,
    if it cannot be parsed."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except ValueError as error:
        raise RowError("not_json", f"{name}: {error}") from error
