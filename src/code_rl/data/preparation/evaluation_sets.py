"""Evaluation sets in the form that `decontaminate` needs: a text and ids for each row. Prompts
without tests are enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_rl.data.dataset import MANIFEST
from code_rl.data.preparation.ngrams import problem_text
from code_rl.data.preparation.normalise import open_source
from code_rl.data.sources.records import Skipped
from code_rl.grading import Problem
from code_rl.util.data_files import DATA_SUFFIXES, is_data_file, stream_rows
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
ID_FIELDS = ("id", "question_id", "task_id", "problem_id", "slug", "title", "question_title", "url")
NO_TASK = frozenset({"assistant", "gpt", "tool"})
"""Speakers of a chat whose turns are answers."""
LEAST_ROWS = 8
"""In a file of at least this many rows, a text in more than half of them is not a statement."""


@dataclass(frozen=True, slots=True)
class EvaluationProblem:
    """One problem of an evaluation set. `ids` are its ids, slugs and titles as given."""

    set_name: str
    id: str
    text: str
    ids: tuple[str, ...]


def evaluation_problems(name: str) -> Iterator[EvaluationProblem]:
    """Yield the problems of the set `name`: a file, a folder of files, or any `dataset=`.

    Raises DataError if a row has no statement, ConfigError if the set does not exist.
    """
    files = _files(name)
    if files is None:
        for item in open_source(name, "test").items():
            if not isinstance(item, Skipped):
                problem = item if isinstance(item, Problem) else item.problem
                text = problem_text(problem.statement, problem.starter_code)
                yield EvaluationProblem(name, problem.id, text, (problem.id, *_ids(problem.meta)))
        return
    for file in files:
        yield from _of_file(name, file)


def _files(name: str) -> list[Path] | None:
    """Return the files of a set that is given as a file or folder, or None for any other
    `dataset=`."""
    path = Path(name)
    if not path.exists() or (path / MANIFEST).is_file():
        return None
    files = (
        [path]
        if path.is_file()
        else sorted(file for file in path.rglob("*") if is_data_file(file.name))
    )
    if not files or not all(is_data_file(file.name) for file in files):
        raise DataError(f"decontaminate={path}: no data file there ({', '.join(DATA_SUFFIXES)})")
    return files


def _of_file(name: str, file: Path) -> list[EvaluationProblem]:
    found = [
        _problem(name, row, file, number) for number, row in enumerate(stream_rows(file), start=1)
    ]
    unread = [exam.id for exam in found if not exam.text.strip()]
    if unread or not found:
        raise DataError(
            f"decontaminate={name}: {len(unread)} of {len(found)} rows of {file.name} have no "
            f"statement ({', '.join(unread[:3])}); give it as one of {', '.join(STATEMENT_FIELDS)}"
        )
    text, count = Counter(exam.text for exam in found).most_common(1)[0]
    if len(found) >= LEAST_ROWS and 2 * count > len(found):
        raise DataError(
            f"decontaminate={name}: {count} of {len(found)} rows of {file.name} have one text, "
            f"{text[:60]!r}…, which "
            "tells no problem from another; give each problem's own text as `statement`"
        )
    return found


def _problem(name: str, row: Mapping[str, Any], file: Path, number: int) -> EvaluationProblem:
    ids = _ids(row)
    text = "\n".join(told for field in STATEMENT_FIELDS for told in _told(row.get(field)))
    return EvaluationProblem(name, ids[0] if ids else f"{file.name}:{number}", text, ids)


def _ids(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            str(row[field]) for field in ID_FIELDS if isinstance(row.get(field), str | int)
        )
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
