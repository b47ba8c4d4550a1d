"""LeetCodeDataset, both layouts (v0.2.0 with `meta` and `query`, v0.3.1 with
`problem_description`): raw row to problem.

The row's `prompt` (imports, ListNode and TreeNode) is the preamble. Tests are the literal asserts
of `check(candidate)`. Node arguments and results become `LinkedList` and `BinaryTree` values.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from code_rl.data.sources import asserts
from code_rl.data.sources.records import REQUEST, Origin, Row, RowError, field
from code_rl.grading import Compare, Problem
from code_rl.grading.values import BinaryTree, LinkedList

LEETCODE_ABS_TOL = 1e-5
"""LeetCode's documented tolerance for problems whose answer is a float."""


def read_leetcode(row: Row, _origin: Origin) -> Problem:
    """Read a LeetCodeDataset row of either layout. Raises RowError for missing or malformed fields
    and for unknown asserts."""
    date: str | None = None
    named: tuple[str, ...] = ("question_id", "difficulty")
    if "problem_description" in row:
        statement, starter = (
            field(row, "problem_description", str),
            field(row, "starter_code", str).rstrip(),
        )
        date, about, named = field(row, "estimated_date", str), row, (*named, "tags")
    # `query` without its request. Unlike `meta`, it omits the examples, which are the tests
    else:
        statement, request, _ = field(row, "query", str).partition(REQUEST)
        if not request:
            raise RowError("unknown_query_shape", "the request for code is missing")
        about = field(row, "meta", dict)
        statement, starter = statement.strip(), field(about, "lang_code", str)
    meta = {name: about[name] for name in named if name in about}
    draft = Problem(
        id=field(row, "task_id", str),
        statement=statement,
        tests=(),
        starter_code=starter,
        solutions=(field(row, "completion", str),),
        source="leetcode",
        date=date,
        meta={**meta, "preamble": field(row, "prompt", str)},
    )
    return check_tests(draft, field(row, "test", str), field(row, "entry_point", str))


def check_tests(draft: Problem, source: str, entry: str) -> Problem:
    """Return `draft` with the asserts of `check(candidate)` in `source` as tests; `entry` is the
    candidate, `Solution().method`. Floats are compared within 1e-5. Raises RowError for any other
    form."""
    builders = {**asserts.BUILDERS, "list_node": linked_list, "tree_node": binary_tree}
    reader = asserts.AssertReader("candidate", builders=builders)
    stated = asserts.read_asserts(reader, asserts.check_body(source))
    owner, dot, method = entry.partition(".")
    if owner != "Solution()" or not dot or not method.isidentifier():
        raise RowError("unknown_entry_point", entry)
    floats = any(asserts.holds_float(test.expected) for test, _ in stated)
    rule = Compare("python", abs_tol=LEETCODE_ABS_TOL if floats else 0.0, exact_integers=floats)
    return asserts.asserted(dataclasses.replace(draft, fn_name=method), stated, rule)


def linked_list(values: list[Any]) -> LinkedList | None:
    """Return the value of a LeetCode list of nodes, or None without values."""
    return LinkedList(tuple(values)) if values else None


def binary_tree(values: list[Any]) -> BinaryTree | None:
    """Return a LeetCode tree in level order, in its canonical form: no trailing None, no children
    of missing nodes."""
    if not values:
        return None
    kept: list[Any] = [values[0]]
    places, position = 1, 1
    while places and position < len(values):
        children = values[position : position + 2 * places]
        kept.extend(children)
        places = sum(child is not None for child in children)
        position += len(children)
    while kept[-1] is None:
        kept.pop()
    return BinaryTree(tuple(kept))
