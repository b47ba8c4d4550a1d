"""Which reader a raw row is for, told by its columns alone: no name of a data set is needed, and none is trusted.

A row that fits no shape is a `Skipped` with reason `unknown_shape` that names its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from code_rl.errors import DataError
from code_rl.problems.native import problem_from_json
from code_rl.problems.sources.competition import (
    Origin,
    read_apps,
    read_code_contests,
    read_deepcoder,
    read_nemo_gym,
    read_packed_tests,
    read_sandbox_mbpp,
    read_stdin_pairs,
)
from code_rl.problems.sources.humaneval import read_humaneval, read_humaneval_plus, read_humaneval_plus_origin
from code_rl.problems.sources.leetcode import read_leetcode
from code_rl.problems.sources.livecodebench import read_livecodebench
from code_rl.problems.sources.mbpp import read_mbpp, read_mbpp_plus, read_mbpp_plus_origin
from code_rl.problems.sources.records import Item, Row, RowError, Skipped
from code_rl.problems.sources.tabular import native_fields
from code_rl.problems.sources.verl import read_verl

ReadRow = Callable[[Row, Origin], Item]
ReadRows = Callable[[Iterable[Row]], Iterator[Item]]


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows that have `columns` (not None) and, where columns do not suffice, pass `test`."""

    name: str
    columns: frozenset[str]
    read: ReadRow
    test: Callable[[Row], bool] = lambda _: True

    def fits(self, row: Row) -> bool:
        """True when this shape's reader is the one for `row`."""
        return all(row.get(name) is not None for name in self.columns) and self.test(row)


def read_row(row: Row, origin: Origin) -> Item:
    """What the row is: whatever its reader makes of it, or a Skipped that says why nothing could be made."""
    shape = shape_of(row)
    if shape is None:
        columns = ", ".join(sorted(name for name, value in row.items() if value is not None))[:200]
        return Skipped(origin.row_id, "unknown_shape", f"columns {columns}")
    try:
        return shape.read(row, origin)
    except RowError as error:
        return Skipped(origin.row_id, error.reason, error.detail[:300])


def shape_of(row: Row) -> Shape | None:
    """The shape of a raw row; None when it is not known."""
    return next((shape for shape in SHAPES if shape.fits(row)), None)


def _each(reader: ReadRows) -> ReadRow:
    """A reader of streams, for one row."""
    return lambda row, _: next(iter(reader([row])))


def _native(row: Row, origin: Origin) -> Item:
    try:
        return problem_from_json(native_fields(row), origin.where)
    except DataError as error:
        raise RowError("bad_native_row", str(error)) from error


def _text_holds(name: str, *parts: str) -> Callable[[Row], bool]:
    def test(row: Row) -> bool:
        value = row.get(name)
        return isinstance(value, str) and all(part in value for part in parts)

    return test


def _unit_tests(row: Row) -> bool:
    tests: Any = row.get("verifier_metadata")
    return isinstance(tests, Mapping) and "unit_tests" in tests


def _shape(name: str, columns: str, read: ReadRow, test: Callable[[Row], bool] = lambda _: True) -> Shape:
    return Shape(name, frozenset(columns.split()), read, test)


NATIVE = "native"
TABLES = ("inputs = [",)
"""What EvalPlus's original format has in its tests, and HumanEval has not."""

SHAPES = (
    _shape(NATIVE, "id statement tests", _native),
    _shape("livecodebench", "question_content public_test_cases private_test_cases", _each(read_livecodebench)),
    _shape("leetcode", "task_id completion entry_point test", _each(read_leetcode)),
    _shape("humanevalplus", "task_id canonical_solution base_input prompt", _each(read_humaneval_plus), _text_holds("task_id", "HumanEval")),
    _shape("mbppplus", "task_id canonical_solution base_input assertion", _each(read_mbpp_plus)),
    _shape("humanevalplus-origin", "task_id canonical_solution prompt test", _each(read_humaneval_plus_origin), _text_holds("test", *TABLES)),
    _shape("humaneval", "task_id canonical_solution prompt test", _each(read_humaneval)),
    _shape("mbppplus-origin", "task_id code test_list test", _each(read_mbpp_plus_origin)),
    _shape("mbpp", "task_id code test_list", _each(read_mbpp)),
    _shape("code_contests", "description public_tests private_tests", read_code_contests),
    _shape("apps", "question input_output", read_apps),
    _shape("deepcoder", "problem tests", read_deepcoder),
    _shape("verl", "prompt reward_model", read_verl),
    _shape("nemo_gym", "responses_create_params verifier_metadata", read_nemo_gym, _unit_tests),
    _shape("sandboxfusion-mbpp", "content canonical_solution test_list", read_sandbox_mbpp),
    _shape("sandboxfusion-packed", "content labels test canonical_solution", read_packed_tests, _text_holds("content", "### Format:")),
    _shape("sandboxfusion-stdin", "content labels test", read_stdin_pairs, _text_holds("test", '"stdin"')),
)  # fmt: skip
