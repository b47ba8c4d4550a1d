"""The evaluation sets to decontaminate against: statements, ids and function names of rows of any shape.

An evaluation set need not be trainable: prompts without tests are enough, so rows are read by the names of their fields alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from code_rl.errors import DataError
from code_rl.preparation.source import open_source
from code_rl.problems.files import DATA_SUFFIXES, file_sha256, is_data_file, stream_rows
from code_rl.problems.problem import Problem
from code_rl.problems.sources.records import Skipped

STATEMENT_FIELDS = (
    "statement", "question_content", "problem_description", "question", "problem", "prompt", "description", "text", "content", "query",
)  # fmt: skip
ID_FIELDS = ("id", "question_id", "task_id", "problem_id", "name", "slug", "title", "question_title", "url", "link")
_FUNCTION = re.compile(r"^\s*(?:async )?def (\w+)\s*\(", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Exam:
    """One problem of an evaluation set. `names` are its ids, slugs and titles as given, `functions` what it asks to define."""

    set_name: str
    id: str
    text: str
    names: tuple[str, ...]
    functions: tuple[str, ...]


def read_exams(name: str) -> Iterator[Exam]:
    """The problems of the set `name`: a file, a folder of files, or any `dataset=`.

    Raises DataError when no row has a statement, ConfigError when there is no such set.
    """
    path = Path(name)
    if not path.exists() or (path / "manifest.json").is_file():
        yield from _from_source(name)
        return
    found = 0
    for file in _files(path):
        for number, row in enumerate(stream_rows(file), start=1):
            exam = _exam(name, row, f"{file.name}:{number}")
            if exam is not None:
                found += 1
                yield exam
    if not found:
        raise DataError(f"decontaminate={name}: no row has a statement; looked for {', '.join(STATEMENT_FIELDS)}")


def exams_fingerprint(name: str) -> str:
    """Changes whenever the rows of the set do."""
    path = Path(name)
    if not path.exists() or (path / "manifest.json").is_file():
        return open_source(name, "test").fingerprint
    return " ".join(file_sha256(file) for file in _files(path))


def _files(path: Path) -> list[Path]:
    files = [path] if path.is_file() else sorted(file for file in path.iterdir() if is_data_file(file.name))
    if not files or not all(is_data_file(file.name) for file in files):
        raise DataError(f"decontaminate={path}: no data file there ({', '.join(DATA_SUFFIXES)})")
    return files


def _exam(set_name: str, row: Mapping[str, Any], place: str) -> Exam | None:
    text = next(
        (row[field] for field in STATEMENT_FIELDS if isinstance(row.get(field), str) and row[field].strip()), None
    )
    if text is None:
        return None
    names = tuple(dict.fromkeys(str(row[field]) for field in ID_FIELDS if isinstance(row.get(field), str | int)))
    functions = [row[field] for field in ("fn_name", "entry_point") if isinstance(row.get(field), str)]
    functions += _FUNCTION.findall(str(row.get("starter_code") or ""))
    functions += _FUNCTION.findall(text)
    return Exam(set_name, names[0] if names else place, text, names, _function_names(functions))


def _function_names(found: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.rpartition(".")[2] for name in found if not name.startswith("__")))


def _from_source(name: str) -> Iterator[Exam]:
    for item in open_source(name, "test").read(0):
        if not isinstance(item, Skipped):
            problem = item if isinstance(item, Problem) else item.problem
            functions = (problem.fn_name,) if problem.fn_name else ()
            text = "\n".join(filter(None, (problem.statement, problem.starter_code)))
            names = (
                problem.id,
                *(str(problem.meta[key]) for key in ID_FIELDS if isinstance(problem.meta.get(key), str | int)),
            )
            yield Exam(name, problem.id, text, names, functions)
