"""LiveCodeBench's prompts and test format, and the course's harness for a Sandbox Fusion server."""

from __future__ import annotations

import inspect
from typing import Any

from code_rl.data.sources import testcases
from code_rl.grading.problem import Problem, TestCase
from code_rl.grading.sandbox.fusion import course
from code_rl.grading.sandbox.fusion.course import TEST_CODE
from code_rl.policy.prompt_templates import (
    LCB_SYSTEM_MESSAGE_GENERIC,
    fetch_live_code_bench_system_prompt,
)

TEST_UTIL = inspect.getsource(course)

__all__ = [
    "LCB_SYSTEM_MESSAGE_GENERIC",
    "TEST_CODE",
    "TEST_UTIL",
    "fetch_live_code_bench_system_prompt",
    "normalize_tests",
]


def normalize_tests(raw_tests: Any, metadata: Any = None) -> list[dict[str, Any]]:
    """Return tests as LiveCodeBench rows, in order: `{"input", "output", "testtype", "metadata"}`,
    all texts.

    `raw_tests` are a `Problem`, its tests, or rows of any shape that
    `code_rl.data.sources.testcases` reads, for which `metadata` (None: none) names the function; no
    tests give no rows. Raises DataError for tests that such rows cannot hold.
    """
    tests, fn_name = raw_tests, None
    if isinstance(raw_tests, Problem):
        tests, fn_name = raw_tests.tests, raw_tests.fn_name
    if not tests or tests == "[]":
        return []
    if are_typed(tests):
        return [testcases.to_row(test, getattr(test, "fn_name", None) or fn_name) for test in tests]
    return testcases.normalize_tests(tests, metadata)


def are_typed(tests: Any) -> bool:
    """Return True for a list or tuple of a `Problem`'s tests, at least one."""
    return (
        isinstance(tests, list | tuple)
        and bool(tests)
        and all(isinstance(test, TestCase) for test in tests)
    )
