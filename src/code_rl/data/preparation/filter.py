"""Stages `filter` and `difficulty`: drop problems by their statement and sizes, and by how often a
model solves them, from the verdicts of an evaluation or of `code-rl judge`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path

from code_rl.data.preparation.settings import PrepareConfig
from code_rl.data.preparation.workspace import (
    Candidate,
    Decision,
    OnItem,
    ProblemSummary,
    Workspace,
    one_by_one,
)
from code_rl.grading import VerdictKind
from code_rl.util.data_files import read_rows
from code_rl.util.errors import ConfigError, DataError

_IMAGE = re.compile(
    r"!\[[^\]]*\]\([^)]*\)|<im(?:g|age)\b[^>]*>|\\includegraphics\b[^}]*}", re.IGNORECASE
)
_LINK = re.compile(rf"{_IMAGE.pattern}|\[[^\]]*\]\([^)]*\)|https?:\S+", re.IGNORECASE)
# From Codeforces' Russian rounds
_NO_STATEMENT = re.compile(r"\bstatement (?:is )?not available\b", re.IGNORECASE)
_INTERACTIVE = re.compile(
    r"\binteractive (?:problem|task)\b|\binteractor\b|\bfflush\b|\bstdout\.flush\b", re.IGNORECASE
)
_WORD = re.compile(r"[^\W\d_]+")
LEAST_WORDS = 4
VERDICTS = "verdicts.jsonl"


async def run_filter(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Return a decision on each candidate, in order: a problem is dropped if it is interactive or
    has an image, is too short, too long or too large, or has too few tests. Nothing runs."""
    return one_by_one(candidates, on_item, lambda one: _filtered(one.entry, workspace.config))


def _filtered(entry: ProblemSummary, config: PrepareConfig) -> Decision:
    """Return the decision by lengths, number of tests, size and phrases; the first reason found
    counts."""
    length = len(entry.statement) + len((entry.starter_code or "").strip())
    if not config.min_statement_chars <= length <= config.max_statement_chars:
        reason = "too_short" if length < config.min_statement_chars else "too_long"
        return Decision(reason, f"statement of {length} characters")
    words = islice(_WORD.finditer(_LINK.sub(" ", entry.text)), LEAST_WORDS)
    if sum(1 for _ in words) < LEAST_WORDS or _NO_STATEMENT.search(entry.text):
        return Decision(
            "no_statement", "the source has no text for this problem, or only a link to it"
        )
    if entry.tests < config.min_tests:
        return Decision("few_tests", f"{entry.tests} tests, {config.min_tests} wanted")
    if entry.size > config.max_row_mb * 1e6:
        return Decision("oversized", f"{entry.size / 1e6:.1f} MB of tests")
    for reason, pattern in (("image", _IMAGE), ("interactive", _INTERACTIVE)):
        if found := pattern.search(entry.statement):
            around = entry.statement[max(0, found.start() - 30) : found.end() + 30]
            return Decision(reason, " ".join(around.split()))
    return Decision()


async def run_difficulty(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Return a decision on each candidate, in order: its pass rate as metadata, and with
    `solved=drop` the extremes are dropped. A problem without a verdict is kept, without a rate.
    Raises as `read_pass_rates` does."""
    rates, drop = read_pass_rates(workspace.config), workspace.config.solved == "drop"

    def decide(candidate: Candidate) -> Decision:
        """Keep a problem with its pass rate; drop one that is never or always solved if `drop`."""
        passed, judged = rates.get(candidate.entry.id, (0, 0))
        if not judged:
            return Decision()
        if drop and passed in (0, judged):
            reason = "never_solved" if passed == 0 else "always_solved"
            return Decision(reason, f"{passed} of {judged} samples pass")
        rate = {"pass_rate": round(passed / judged, 4), "samples": judged}
        return Decision(metadata={"difficulty": rate})

    return one_by_one(candidates, on_item, decide)


def read_pass_rates(config: PrepareConfig) -> Mapping[str, tuple[int, int]]:
    """Return passed and judged samples by problem id from `pass_rates=`, a file of verdicts or an
    evaluation's folder, without greedy samples and those without a verdict.

    Raises ConfigError if there is no such file, DataError for other rows.
    """
    given = Path(str(config.pass_rates)).expanduser()
    file = given / VERDICTS if given.is_dir() else given
    if not file.is_file():
        raise ConfigError(
            f"pass_rates={config.pass_rates}: there is no {file}; give the out= of `code-rl eval` "
            "or of `code-rl judge`"
        )
    passed, judged = Counter[str](), Counter[str]()
    for where, row in read_rows(str(file)):
        try:
            name, kind = str(row["problem_id"]), VerdictKind(row["verdict"])
        except (KeyError, ValueError) as error:
            raise DataError(f"{where}: a verdict needs problem_id and verdict: {error}") from error
        if row.get("mode") != "greedy" and not kind.undecided:
            passed[name] += kind is VerdictKind.PASSED
            judged[name] += 1
    return {name: (passed[name], count) for name, count in judged.items()}
