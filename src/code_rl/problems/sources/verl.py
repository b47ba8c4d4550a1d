"""verl's rows (`prompt`, `reward_model.ground_truth`) as Code-R1 publishes its 12K (ganler/code-r1-12k), and how Code-R1 asks.

`ground_truth` is JSON: `{"inputs", "outputs"}` for programs that read stdin, or `{"functional": source}`, Python that asserts what a function of the
program gives: LeetCode's `check(Solution().method)`, or TACO's two tables and a loop. The source is read, never run.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Mapping
from typing import Any

from code_rl.problems.problem import CallTest, Compare, Problem
from code_rl.problems.sources.competition import Origin
from code_rl.problems.sources.leetcode import REQUEST, check_tests
from code_rl.problems.sources.literals import Folder, NotLiteralError
from code_rl.problems.sources.prelude import CALL_PRELUDE, NODE_PRELUDE
from code_rl.problems.sources.rawtests import finish, from_json, starter_for
from code_rl.problems.sources.records import Row, RowError, Unsettled, field

# The wording of the published rows, to the letter: what a model trained on them has seen.
CODE_R1_SYSTEM = (
    "You are a helpful programming assistant. The user will ask you a question and you as the assistant solve it. "
    "The assistant first thinks how to solve the task through reasoning and then provides the user with the final answer. "
    "The reasoning process and answer are enclosed within <think>...</think> and <answer>...</answer> tags, respectively."
)
_LEETCODE = "Please solve the programming task below using a self-contained code snippet in a markdown code block.\n\n"
_TACO = "Solve the programming task below in a Python markdown code block.\n"
TACO_TOL = 1e-5
"""What the loop over TACO's tables allows between floats."""

_STARTER = "Also feel free to reuse/extend the following starter code:"


def code_r1_question(statement: str, starter_code: str | None) -> str:
    """The user's message for a problem: a LeetCode one is to complete a class, any other may start from its starter code."""
    block = f"\n```python\n{starter_code}\n```"
    if starter_code and "class Solution:" in starter_code:
        return f"{_LEETCODE}{statement}\n{REQUEST}{block}"
    return f"{_TACO}{statement}" + (f"\n{_STARTER}{block}" if starter_code else "")


def read_verl(row: Row, origin: Origin) -> Problem | Unsettled:
    """One row. Raises RowError for rewards of another style and for tests that are no data."""
    truth = from_json(field(row, "reward_model", dict).get("ground_truth"), "ground_truth")
    if not isinstance(truth, Mapping):
        raise RowError(
            "not_code", "reward_model.ground_truth must be a JSON object with inputs and outputs, or functional"
        )
    statement, starter = _asked(_user_message(row))
    known = row.get("extra_info")
    extra: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
    reference = extra.get("reference")
    draft = Problem(
        id=origin.row_id,
        statement=statement,
        tests=(),
        starter_code=starter,
        solutions=(reference,) if isinstance(reference, str) and reference.strip() else (),
        source=origin.source,
        meta={"dataset": extra["dataset"]} if isinstance(extra.get("dataset"), str) else {},
    )
    if "functional" in truth:
        return _functional(draft, str(truth["functional"]))
    if "inputs" not in truth:
        raise RowError("unknown_tests", f"ground_truth has {', '.join(sorted(map(str, truth)))[:120]}")
    return finish(draft, dict(truth))


def _user_message(row: Row) -> str:
    messages = row.get("prompt")
    said = [message for message in messages or () if isinstance(message, Mapping) and message.get("role") == "user"]
    if not isinstance(messages, list) or len(said) != 1:
        raise RowError("wrong_field_type", "prompt must be a list of messages with one of the user's")
    text = field(said[0], "content", str)
    if not text.strip():
        raise RowError("blank_statement", "prompt")
    return text


def _asked(text: str) -> tuple[str, str | None]:
    """Statement and starter code of a user's message; of one that Code-R1 did not word, the message itself."""
    for opening, request in ((_LEETCODE, REQUEST), (_TACO, _STARTER)):
        if text.startswith(opening):
            statement, _, code = text.removeprefix(opening).partition(f"\n{request}\n```python\n")
            return statement, code.rpartition("\n```")[0] or None
    return text, None


def _functional(draft: Problem, source: str) -> Problem:
    """Tests from the asserts of `check`, or from the tables `_inputs` and `_outputs`."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RowError("test_is_not_python", str(error)) from error
    match body[-1] if body else None:
        case ast.Expr(value=ast.Call(func=ast.Name(id="check"), args=[entry])):
            known = dataclasses.replace(draft, meta={**draft.meta, "preamble": CALL_PRELUDE + NODE_PRELUDE})
            return check_tests(known, source, ast.unparse(entry))
        case ast.For():
            return _tabled(draft, body)
    raise RowError("unknown_tests", source.strip().rpartition("\n")[2][:120])


def _tabled(draft: Problem, body: list[ast.stmt]) -> Problem:
    """Tests from `_inputs` and `_outputs`; the loop after them calls `name(*i)` and wants `o`, or `o[0]`."""
    tables: dict[str, Any] = {}
    for part in body:
        match part:
            case ast.Assign(targets=[ast.Name(id="_inputs" | "_outputs" as name)], value=value):
                tables[name] = _folded(value)
            case ast.For(body=[ast.Assert(test=ast.Call(args=[ast.Call(func=ast.Name(id=called)), wanted]))]):
                pairs = _pairs(tables, first=isinstance(wanted, ast.Subscript))
                tests = tuple(CallTest(tuple(args), value) for args, value in pairs)
                starter = starter_for(called, draft.starter_code, draft.solutions, len(tests[0].args))
                meta = {**draft.meta, "preamble": CALL_PRELUDE}
                rule = Compare("float", TACO_TOL, TACO_TOL)
                return dataclasses.replace(
                    draft, tests=tests, fn_name=called, starter_code=starter, compare=rule, meta=meta
                )
    raise RowError("unknown_tests", "no loop that compares a call of the program's function")


def _folded(value: ast.expr) -> Any:
    try:
        return Folder().fold(value)
    except NotLiteralError as error:
        raise RowError("value_is_not_a_literal", str(error)) from error


def _pairs(tables: Mapping[str, Any], *, first: bool) -> list[tuple[Any, Any]]:
    """Arguments and what is wanted, of each test."""
    inputs, outputs = tables.get("_inputs"), tables.get("_outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise RowError("bad_tests", "_inputs and _outputs must be lists of one length, at least 1")
    if not all(isinstance(args, list | tuple) for args in inputs):
        raise RowError("bad_tests", "an entry of _inputs is no list of arguments")
    try:
        return [(args, output[0] if first else output) for args, output in zip(inputs, outputs, strict=True)]
    except (TypeError, LookupError) as error:
        raise RowError("bad_tests", f"an output without a first item: {error}") from error
