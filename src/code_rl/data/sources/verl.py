"""verl's Parquet rows: `prompt` (a chat) and `reward_model.ground_truth` (JSON); and the prompts of
Code-R1's 12K (ganler/code-r1-12k).

The ground truth is tests of any shape of `testcases`, or Code-R1's `{"functional": source}`: Python
that asserts a function's results, as LeetCode's `check(Solution().method)` or TACO's two tables and
a loop. The source is read, never run.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from typing import Any

from code_rl.data.sources.asserts import fold, read_statements
from code_rl.data.sources.leetcode import check_tests
from code_rl.data.sources.records import (
    REQUEST,
    Ambiguous,
    Origin,
    Row,
    RowError,
    asked_by_user,
    field,
    from_json,
    make_problem,
    named,
)
from code_rl.data.sources.testcases import (
    ALLCLOSE,
    CALL_PRELUDE,
    solutions,
    with_calls,
    with_tests_of,
)
from code_rl.grading import CallTest, Compare, Problem

NODE_PRELUDE = """\
class ListNode:
    def __init__(self, val=0, next=None):
        self.val, self.next = val, next
class TreeNode:
    def __init__(self, val=0, left=None, right=None):
        self.val, self.left, self.right = val, left, right
"""

# Exactly the prompt of the published rows, which models were trained on.
CODE_R1_SYSTEM = (
    "You are a helpful programming assistant. The user will ask you a question and you as the "
    "assistant solve it. The assistant first thinks how to solve the task through reasoning and "
    "then provides the user with the final answer. The reasoning process and answer are enclosed "
    "within <think>...</think> and <answer>...</answer> tags, respectively."
)
_LEETCODE = (
    "Please solve the programming task below using a self-contained code snippet in a "
    "markdown code block.\n\n"
)
_TACO = "Solve the programming task below in a Python markdown code block.\n"
TACO_TOL = 1e-5
"""The tolerance between floats in the loop over TACO's tables."""

_STARTER = "Also feel free to reuse/extend the following starter code:"


def code_r1_question(statement: str, starter_code: str | None) -> str:
    """Return the user's message for a problem, exactly as the published rows have it. A LeetCode
    problem asks to complete a class; any other may offer starter code (None: it does not)."""
    block = f"\n```python\n{starter_code}\n```"
    if starter_code and "class Solution:" in starter_code:
        return f"{_LEETCODE}{statement}\n{REQUEST}{block}"
    return f"{_TACO}{statement}" + (f"\n{_STARTER}{block}" if starter_code else "")


@named(lambda _, origin: origin.row_id)
def read_verl(row: Row, origin: Origin) -> Problem | Ambiguous:
    """Read a row whose ground truth is tests; its id is its position. Raises RowError `not_tests`
    for answers (of mathematics, for example) and for programs that cannot be read."""
    truth = field(row, "reward_model", dict).get("ground_truth")
    about = row.get("extra_info")
    extra: Mapping[str, Any] = about if isinstance(about, Mapping) else {}
    try:
        tests = from_json(truth, "ground_truth")
    except RowError as error:
        raise RowError("not_tests", error.detail) from error
    statement, starter = _without_template(asked_by_user(row["prompt"]))
    known = extra.get("reference") or extra.get("solutions")
    draft = make_problem(
        origin,
        None,  # `extra_info.index` is unique only within each of the joined data sets
        statement,
        starter=starter,
        solutions=solutions(known),
        source=str(row.get("data_source") or origin.source),
        compare=ALLCLOSE,
        meta={"dataset": extra["dataset"]} if isinstance(extra.get("dataset"), str) else {},
    )
    if isinstance(tests, dict) and isinstance(tests.get("functional"), str):
        return _functional(draft, tests["functional"])
    if not isinstance(tests, list | dict) or (
        isinstance(tests, dict) and not {"inputs", "input"} & tests.keys()
    ):
        raise RowError("not_tests", f"reward_model.ground_truth holds {str(tests)[:80]!r}")
    return with_tests_of(draft, tests)


def _without_template(text: str) -> tuple[str, str | None]:
    """Return the statement and starter code (None: there is none) in a user's message, or the whole
    message if Code-R1 did not write it."""
    for opening, request in ((_LEETCODE, REQUEST), (_TACO, _STARTER)):
        if text.startswith(opening):
            statement, _, code = text.removeprefix(opening).partition(f"\n{request}\n```python\n")
            return statement, code.rpartition("\n```")[0] or None
    return text.strip(), None


def _functional(draft: Problem, source: str) -> Problem:
    """Return the draft with the tests in the asserts of `check`, or in the tables `_inputs` and
    `_outputs`, whose loop calls `name(*i)` and expects `o` or `o[0]`. Raises RowError, with the
    reason `not_tests` for a source of any other form."""
    body, tables = read_statements(source), dict[str, Any]()
    for part in body:
        match part:
            case ast.Expr(value=ast.Call(func=ast.Name(id="check"), args=[entry])) if (
                part is body[-1]
            ):
                known = dataclasses.replace(
                    draft, meta={**draft.meta, "preamble": CALL_PRELUDE + NODE_PRELUDE}
                )
                return check_tests(known, source, ast.unparse(entry))
            case ast.Assign(targets=[ast.Name(id="_inputs" | "_outputs" as name)], value=value):
                tables[name] = fold(value)
            case ast.For(
                body=[ast.Assert(test=ast.Call(args=[ast.Call(func=ast.Name(id=called)), wanted]))]
            ) if part is body[-1]:
                pairs = _pairs(tables, first=isinstance(wanted, ast.Subscript))
                tests = tuple(CallTest(args, value) for args, value in pairs)
                rule = Compare("lcb", TACO_TOL, TACO_TOL, exact_integers=True)
                return dataclasses.replace(with_calls(draft, called, tests), compare=rule)
    raise RowError("not_tests", source.strip().rpartition("\n")[2][:120])


def _pairs(tables: Mapping[str, Any], *, first: bool) -> list[tuple[Any, Any]]:
    """Return arguments and expected value of each test; with `first` the value is the first item of
    the output. Raises RowError if the tables are missing or differ in length."""
    try:
        pairs = list(zip(tables["_inputs"], tables["_outputs"], strict=True))
        return [(tuple(args), wanted[0] if first else wanted) for args, wanted in pairs]
    except (TypeError, LookupError, ValueError) as error:
        raise RowError(
            "bad_tests", f"_inputs and _outputs must be lists of one length: {error}"
        ) from error
