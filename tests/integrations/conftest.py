"""A sandbox that fails, behind the function that every framework calls."""

from __future__ import annotations

import pytest

from code_rl import Verdict
from code_rl.integrations import rows

LOST = Verdict.restore(
    {
        "kind": "sandbox_error",
        "passed": 0,
        "total": 2,
        "rule": "lcb",
        "failure": {"test": 0, "public": True, "message": "a worker died"},
    }
)


@pytest.fixture
def broken(monkeypatch):
    """A sandbox that fails `left` times, then judges."""
    left = [10**9]
    judge = getattr(rows, "judge_async")  # noqa: B009 - imported there

    async def fails(problem, code):
        left[0] -= 1
        return LOST if left[0] >= 0 else await judge(problem, code)

    monkeypatch.setattr(rows, "judge_async", fails)
    return left
