"""Stage `filter`: drops problems by their statement and sizes only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice

from code_rl.data.preparation.decisions import Decision, OnItem, one_by_one
from code_rl.data.preparation.ngrams import problem_text
from code_rl.data.preparation.settings import PrepareConfig
from code_rl.data.preparation.workspace import Candidate, ProblemSummary, Workspace

_IMAGE = re.compile(
    r"!\[[^\]]*\]\([^)]*\)|<im(?:g|age)\b[^>]*>|\\includegraphics\b[^}]*}", re.IGNORECASE
)
_LINK = re.compile(rf"{_IMAGE.pattern}|\[[^\]]*\]\([^)]*\)|https?:\S+", re.IGNORECASE)
_NO_STATEMENT = re.compile(
    r"\bstatement (?:is )?not available\b", re.IGNORECASE
)  # from Codeforces' Russian rounds
_INTERACTIVE = re.compile(
    r"\binteractive (?:problem|task)\b|\binteractor\b|\bfflush\b|\bstdout\.flush\b", re.IGNORECASE
)
_WORD = re.compile(r"[^\W\d_]+")
LEAST_WORDS = 4


async def run_filter(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Decide by statement and sizes."""
    return one_by_one(candidates, on_item, lambda one: filter_entry(one.entry, workspace.config))


def filter_entry(entry: ProblemSummary, config: PrepareConfig) -> Decision:
    """Drop a problem that is interactive or has an image, is too short, too long or too large, or
    has too few tests."""
    length = len(entry.statement) + len((entry.starter_code or "").strip())
    if not config.min_statement_chars <= length <= config.max_statement_chars:
        reason = "too_short" if length < config.min_statement_chars else "too_long"
        return Decision(reason, f"statement of {length} characters")
    text = problem_text(entry.statement, entry.starter_code)
    words = islice(_WORD.finditer(_LINK.sub(" ", text)), LEAST_WORDS)
    if sum(1 for _ in words) < LEAST_WORDS or _NO_STATEMENT.search(text):
        return Decision(
            "no_statement", "the source has no text for this problem, or only a link to it"
        )
    if entry.tests < config.min_tests:
        return Decision("few_tests", f"{entry.tests} tests, {config.min_tests} wanted")
    if entry.size > config.max_row_mb * 1e6:
        return Decision("oversized", f"{entry.size / 1e6:.1f} MB of tests")
    for reason, pattern in (("image", _IMAGE), ("interactive", _INTERACTIVE)):
        if found := pattern.search(entry.statement):
            return Decision(reason, _around(entry.statement, found))
    return Decision()


def _around(text: str, match: re.Match[str]) -> str:
    start, end = max(0, match.start() - 30), match.end() + 30
    return " ".join(text[start:end].split())
