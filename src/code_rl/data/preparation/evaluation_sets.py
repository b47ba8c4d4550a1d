"""Evaluation sets in the form that `decontaminate` needs: a text and ids for each raw row. Prompts
without tests are enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from code_rl.data.dataset import Source
from code_rl.data.load import given_as
from code_rl.data.preparation.normalise import open_source
from code_rl.data.preparation.workspace import names_in, problem_text
from code_rl.util.errors import DataError

STATEMENT_FIELDS = (
    "statement",
    "question_content",
    "problem_description",
    "problem_statement",
    "question",
    "problem",
    "prompt",
    "description",
    "text",
    "content",
    "query",
    "messages",
    "conversations",
    "instruction",
    "complete_prompt",
    "instruct_prompt",
)
"""Fields that may describe a row's task. All that a row has are joined to one text."""
NO_TASK = frozenset({"assistant", "gpt", "tool"})
"""Speakers of a chat whose turns are answers."""
LEAST_ROWS = 8
"""In a set of at least this many rows, a text in more than half of them is not a statement."""


@dataclass(frozen=True, slots=True)
class EvaluationProblem:
    """One problem of an evaluation set. `ids` are its ids, slugs and titles as given."""

    set_name: str
    id: str
    text: str
    ids: tuple[str, ...]


def evaluation_problems(name: str) -> list[EvaluationProblem]:
    """Return the problems of the set `name`, which is any `dataset=`.

    Raises DataError if a row has no statement, ConfigError if the set does not exist.
    """
    with given_as("decontaminate"):
        sources = open_source(name, "test").sources
    return [problem for source in sources for problem in _of_source(name, source)]


def _of_source(name: str, source: Source) -> list[EvaluationProblem]:
    found = [_problem(name, row, where) for where, row in source.rows()]
    unread = [exam.id for exam in found if not exam.text.strip()]
    if unread:
        raise DataError(
            f"decontaminate={name}: {len(unread)} of {len(found)} rows have no statement "
            f"({', '.join(unread[:3])}); give it as one of {', '.join(STATEMENT_FIELDS)}"
        )
    text, count = Counter(exam.text for exam in found).most_common(1)[0]
    if len(found) >= LEAST_ROWS and 2 * count > len(found):
        raise DataError(
            f"decontaminate={name}: {count} of {len(found)} rows have one text, {text[:60]!r}…, "
            "which tells no problem from another; give each problem's own text as `statement`"
        )
    return found


def _problem(name: str, row: Mapping[str, Any] | DataError, where: str) -> EvaluationProblem:
    if isinstance(row, DataError):
        raise row
    meta = row.get("meta")
    ids = names_in({**meta, **row} if isinstance(meta, Mapping) else row)
    told = "\n".join(told for field in STATEMENT_FIELDS for told in _told(row.get(field)))
    return EvaluationProblem(
        name, ids[0] if ids else where, problem_text(told, row.get("starter_code")), ids
    )


def _told(value: object) -> Iterator[str]:
    """Yield the texts in a field: one text, or the turns of a chat and their parts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _told(one)
    elif isinstance(value, Mapping) and value.get("role", value.get("from")) not in NO_TASK:
        for field in ("content", "text", "value"):
            yield from _told(value.get(field))
