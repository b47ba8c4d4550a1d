"""Problems and programs in the forms that other people's graders read."""

from __future__ import annotations

import json
from typing import Any

from code_rl.grading.native import format_problem
from code_rl.grading.problem import CallTest, Problem, StdinTest


def completion(code: str) -> str:
    """Return a model's answer that contains this program."""
    return f"Here is my solution.\n\n```python\n{code.strip(chr(10))}\n```\n"


def is_plain(problem: Problem, takes: str) -> bool:
    """Return True if every grader supports the problem's tests: stdin and output, or one call with
    positional JSON arguments and a JSON value, under the rule `lcb`. `takes` is the form that this
    grader accepts: `stdin`, `call` or `all`."""
    wanted = takes in ("all", "call" if problem.calls else "stdin")
    return wanted and problem.compare.rule == "lcb" and all(_plain(test) for test in problem.tests)


def _plain(test: Any) -> bool:
    """Return True if any grader could be given the test: stdin, or a call with positional arguments
    and an expected value, all of JSON's types (a tuple counts as a list)."""
    if isinstance(test, StdinTest):
        return True
    return (
        isinstance(test, CallTest)
        and test.raises is None
        and not test.kwargs
        and _is_json([test.args, test.expected])
    )


def _is_json(value: Any) -> bool:
    """Return True if a value is unchanged by a round trip through JSON, except that tuples become
    lists. A NaN is not: it differs from itself."""
    try:
        return bool(json.loads(json.dumps(value)) == _tuples_as_lists(value))
    except (TypeError, ValueError):
        return False


def _tuples_as_lists(value: Any) -> Any:
    """Return the value with every tuple in it as a list, at any depth of lists, tuples and dict
    values. Dict keys stay as they are."""
    if isinstance(value, list | tuple):
        return [_tuples_as_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: _tuples_as_lists(item) for key, item in value.items()}
    return value


def shapes(problem: Problem, code: str) -> dict[str, Any]:
    """Return a program and its problem's tests under the names used by data set columns and
    `ground_truth`. Foreign graders read these keys, so none may be renamed. The problem must be
    `is_plain`.

    `inputs` are texts, or lists of arguments for call tests; `outputs` are texts or values. The
    `lcb_…` keys have arguments and values as JSON text, one argument a line. `asserts` is empty for
    stdin tests.
    """
    calls = [test for test in problem.tests if isinstance(test, CallTest)]
    stdin = [test for test in problem.tests if isinstance(test, StdinTest)]
    named = {"fn_name": problem.fn_name} if calls else {}
    inputs: list[Any] = [test.input for test in stdin] or [
        _tuples_as_lists(test.args) for test in calls
    ]
    outputs: list[Any] = [test.expected for test in stdin or calls]
    # LiveCodeBench's texts: one JSON value a line.
    lines = inputs if stdin else ["\n".join(map(json.dumps, given)) for given in inputs]
    values = outputs if stdin else list(map(json.dumps, outputs))
    kind = "functional" if calls else "stdin"
    return {
        "code": code,
        "completion": completion(code),
        "native": format_problem(problem),
        "statement": problem.statement,
        "fn_name": problem.fn_name,
        "time_limit_s": problem.time_limit_s,
        "memory_limit_mb": problem.memory_limit_mb,
        "inputs": inputs,
        "outputs": outputs,
        "lcb_input_output": {"inputs": lines, "outputs": values, **named},
        "lcb_tests": [
            {"input": given, "output": wanted, "testtype": kind}
            for given, wanted in zip(lines, values, strict=True)
        ],
        "asserts": [
            f"assert {problem.fn_name}({', '.join(map(repr, test.args))}) == {test.expected!r}"
            for test in calls
        ],
    }
