"""A test as text, for people and for policies. Whoever shows it to a policy passes public tests only."""

from __future__ import annotations

from dataclasses import dataclass

from code_rl.problems.problem import CallTest, SequenceTest, StdinTest, TestCase
from code_rl.problems.values import dumps


@dataclass(frozen=True, slots=True)
class ShownTest:
    """What a program is given, and what it should answer; long texts are cut."""

    given: str
    expected: str


def shown_test(test: TestCase, fn_name: str | None, most: int) -> ShownTest:
    """`test` in at most `most` characters a side."""
    given = test.input if isinstance(test, StdinTest) else _call(test, fn_name)
    expected = test.expected if isinstance(test, StdinTest) else _expected(test)
    return ShownTest(given[:most], expected[:most])


def _call(test: CallTest | SequenceTest, fn_name: str | None) -> str:
    if isinstance(test, SequenceTest):
        return "; ".join(f"{name}({', '.join(map(dumps, args))})" for name, args in test.calls)
    named = [f"{name}={dumps(value)}" for name, value in test.kwargs.items()]
    return f"{test.fn_name or fn_name}({', '.join([*map(dumps, test.args), *named])})"


def _expected(test: CallTest | SequenceTest) -> str:
    if isinstance(test, CallTest) and test.raises is not None:
        return f"raises {test.raises}"
    return dumps(list(test.expected) if isinstance(test, SequenceTest) else test.expected)
