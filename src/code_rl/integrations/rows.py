"""A problem as a row of data, and an answer to such a row as a verdict, for all frameworks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from code_rl.grading import Problem, Verdict, extract_code, judge_async
from code_rl.grading.native import format_problem, parse_problem
from code_rl.policy.prompt_templates import PromptTemplate, livecodebench
from code_rl.util.errors import DataError

_KEPT = 64
"""The number of problems that stay parsed, since the answers of a group arrive together."""


def to_row(problem: Problem, template: PromptTemplate = livecodebench) -> dict[str, Any]:
    """Return `prompt` (the opening messages by `template`) and `problem` (its native JSON as text,
    which every table format keeps unchanged). The tests in it are only for the reward; the policy
    must not see them."""
    return {"prompt": template(problem.view()), "problem": format_problem(problem)}


async def verdict_of(problem: str, answer: str | Sequence[Mapping[str, Any]]) -> Verdict:
    """Return the verdict on the last fenced block of an answer: a text, or messages whose last is
    the answer (none: an answer without a program). `problem` is that of `to_row`. It is judged in
    the process's own sandbox.

    If `verdict.undecided`, nothing is known about the program; a reward of 0 would call it wrong.
    Raises DataError for a row without a problem.
    """
    if not isinstance(problem, str):
        raise DataError(
            f"problem={problem!r:.80} is no text; make rows with code_rl.integrations.rows.to_row"
        )
    text = answer if isinstance(answer, str) else _content(answer[-1]) if answer else ""
    parsed = _parsed(problem)
    return await judge_async(parsed, extract_code(text, parsed.language))


def _content(message: Mapping[str, Any]) -> str:
    """Return a message's text: "" without one (as beside a tool call), one text, or the text of its
    parts."""
    content = message.get("content") or ""
    return (
        content if isinstance(content, str) else "".join(part.get("text") or "" for part in content)
    )


def why(verdict: Verdict) -> str:
    """Return the reason for a missing verdict as text, for a message; `verdict` is undecided."""
    return f"{verdict.kind}: {verdict.failure.message if verdict.failure else 'no reason given'}"


@lru_cache(_KEPT)
def _parsed(problem: str) -> Problem:
    """Return the problem of a row's native JSON; the last 64 stay parsed. Raises DataError for
    anything else."""
    return parse_problem(problem.encode("utf-8", "surrogatepass"), "the row's problem")
