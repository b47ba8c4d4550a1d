"""LiveCodeBench's prompts and test format, and the course's harness for a Sandbox Fusion server."""

import inspect

from code_rl.data.sources.testcases import normalize_tests
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
