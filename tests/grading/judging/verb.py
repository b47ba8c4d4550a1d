"""The verb `judge` with an executor of a test's."""

from __future__ import annotations

from typing import Any

from code_rl.evaluation.programs import Judged, check_programs, judge_programs, open_problems
from code_rl.grading.sandbox.executor import Executor


async def judge_files(problems: str, programs: str, out: str, executor: Executor, **options: Any) -> Judged:
    """What the verb does with an executor of the test's."""
    store = await open_problems(problems, executor, lambda _: None)
    check_programs(programs, store)
    return await judge_programs(store, programs, out, executor, **options)
