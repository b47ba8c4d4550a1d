"""Chooses the reader of a raw row by its columns only, never by a data set's name.

To add a shape, write a function from a row and its origin to a `Problem` (or `Draft`, or
`Ambiguous`), and list it here. A row without a known shape is a `Skipped` with reason
`unknown_shape` and its columns. A row that lacks one field of the native format is read by the
native reader, whose error names the field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from code_rl.data.sources import (
    competition,
    humaneval,
    leetcode,
    livecodebench,
    mbpp,
    verl,
)
from code_rl.data.sources.native import read_native
from code_rl.data.sources.records import (
    ROW_ID,
    Item,
    Origin,
    Reader,
    Row,
    RowError,
    Skipped,
    stated_id,
)
from code_rl.grading.native import REQUIRED
from code_rl.util.errors import DataError

ReadRow = Reader[Item]


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows that have `columns` (not None) and, if columns do not suffice, pass `test`."""

    name: str
    columns: frozenset[str]
    read: ReadRow
    test: Callable[[Row], bool] = lambda _: True

    def fits(self, row: Row) -> bool:
        """Return True if this shape's reader applies to `row`."""
        return all(row.get(name) is not None for name in self.columns) and self.test(row)


def read_row(row: Row | DataError, origin: Origin) -> Item:
    """Return the row's item, or a Skipped with the reason: `unreadable_row` for an error in its
    place, `unknown_shape`, or the reader's. Never raises for a faulty row."""
    if isinstance(row, DataError):
        return Skipped(origin.row_id, UNREADABLE, str(row))
    shape = shape_of(row)
    if shape is not None:
        return read_as(shape.read, row, origin)
    columns = ", ".join(sorted(name for name, value in row.items() if value is not None))[:200]
    return Skipped(
        origin.row_id,
        "unknown_shape",
        f"{origin.where}: no known format has the columns {columns}; ours has id, statement, tests",
    )


def read_as(read: ReadRow, row: Row, origin: Origin) -> Item:
    """Return the item that `read` makes of the row; a refused row is a Skipped with the refusal's
    reason, and one on which `read` fails is `malformed_row`."""
    try:
        try:
            return read(row, origin)
        except RecursionError as error:
            raise RowError("value_not_plain", str(error)) from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            detail = f"{origin.where}: {type(error).__name__}: {error}"
            raise RowError("malformed_row", detail) from error
    except RowError as error:
        row_id = getattr(read, ROW_ID, _row_id)
        return Skipped(row_id(row, origin), error.reason, error.detail[:300])


def _row_id(row: Row, origin: Origin) -> str:
    """Return the id that a row states, else its position in the set."""
    return stated_id(row, "task_id", "question_id", "id") or origin.row_id


def shape_of(row: Row) -> Shape | None:
    """Return the first shape of SHAPES that fits a raw row, or None. A row that lacks one field of
    the native format counts as native, if nothing else fits."""
    almost_native = sum(row.get(name) is not None for name in REQUIRED) >= len(REQUIRED) - 1
    return next(
        (shape for shape in SHAPES if shape.fits(row)), SHAPES[0] if almost_native else None
    )


def _text_holds(name: str, *parts: str) -> Callable[[Row], bool]:
    """Return a test of rows: True if a field is text that has all `parts`."""

    def test(row: Row) -> bool:
        """Return True if the row's field is text that has all parts."""
        value = row.get(name)
        return isinstance(value, str) and all(part in value for part in parts)

    return test


def _shape(
    name: str, columns: str, read: ReadRow, test: Callable[[Row], bool] = lambda _: True
) -> Shape:
    """Return the shape of rows with these columns, separated by blanks, that pass `test` (default:
    all)."""
    return Shape(name, frozenset(columns.split()), read, test)


NATIVE, UNREADABLE = "native", "unreadable_row"
_TABLES = _text_holds("test", "inputs = [")
"""A text that EvalPlus's original format has and HumanEval's tests do not."""

SHAPES = (
    _shape(NATIVE, " ".join(REQUIRED), read_native),
    _shape(
        "livecodebench",
        "question_content public_test_cases private_test_cases",
        livecodebench.read_livecodebench,
    ),
    _shape("leetcode", "task_id completion entry_point test", leetcode.read_leetcode),
    _shape(
        "humanevalplus",
        "task_id canonical_solution base_input prompt",
        humaneval.read_humaneval_plus,
        _text_holds("task_id", "HumanEval"),
    ),
    _shape("mbppplus", "task_id canonical_solution base_input assertion", mbpp.read_mbpp_plus),
    _shape(
        "humanevalplus-origin",
        "task_id canonical_solution prompt test",
        humaneval.read_humaneval_plus_origin,
        _TABLES,
    ),
    _shape("humaneval", "task_id canonical_solution prompt test", humaneval.read_humaneval),
    _shape("mbppplus-origin", "task_id code test_list test", mbpp.read_mbpp_plus_origin),
    _shape("mbpp", "task_id code test_list", mbpp.read_mbpp),
    _shape(
        "code_contests", "description public_tests private_tests", competition.read_code_contests
    ),
    _shape("open-r1", "description examples official_tests", competition.read_open_r1),
    _shape("nemo-gym", "responses_create_params verifier_metadata", competition.read_nemo_gym),
    _shape("verl", "prompt reward_model", verl.read_verl),
    _shape("apps", "question input_output", competition.read_apps),
    _shape("deepcoder", "problem tests", competition.read_deepcoder),
    _shape("acecode", "question test_cases", mbpp.read_acecode),
    _shape("evolvecoder", "question tests", mbpp.read_acecode),
)
