"""Evaluation sets as `decontaminate` compares them: statements, ids and function names of rows of any shape.

An evaluation set need not be trainable: prompts without tests are enough, so rows are read by the names of their fields first, and by the readers of
known shapes where those name no text.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from code_rl.errors import DataError
from code_rl.preparation.normalise import open_source
from code_rl.preparation.overlap.deduplicate import SHINGLE
from code_rl.preparation.overlap.sharing import GRAM
from code_rl.preparation.overlap.text import Hashes, among, grams, words
from code_rl.problems.dataset import MANIFEST
from code_rl.problems.files import DATA_SUFFIXES, file_sha256, is_data_file, stream_rows
from code_rl.problems.problem import Problem
from code_rl.problems.sources.records import Ambiguous, Draft, Origin, Skipped
from code_rl.problems.sources.shapes import read_row

STATEMENT_FIELDS = (
    "statement", "question_content", "problem_description", "question", "problem", "prompt", "description", "text", "content", "query", "messages", "conversations", "instruction", "complete_prompt",
)  # fmt: skip
ID_FIELDS = ("id", "question_id", "task_id", "problem_id", "name", "slug", "title", "question_title", "url", "link")
LEAST_CHARACTERS = 4
_FUNCTION = re.compile(r"^\s*(?:async )?def (\w+)\s*\(", re.MULTILINE)
WITHIN = 0.8
"""A text that has so many of its 5-grams in another of the row is a part of it."""
LEAST_ALIKE = 8
"""So many rows of an evaluation set with one text, more than half of it, have a field that says the same of all."""
_DISTINCTIVE = re.compile(r"[a-z]+(?:[A-Z][a-z0-9]*){2,}|[a-z]+(?:_[a-z0-9]+){2,}")
CERTAIN = re.compile(
    r"id (?:(?:abc|arc|agc)\d{3}_[a-z]\d?|(?:humaneval|mbpp)/\d+)|slug [a-z]+(?:-[a-z]+){2,}(?:-[ivx0-9]+)?"
)
"""Ids and slugs that are names of one problem the world over."""


@dataclass(frozen=True, slots=True)
class EvaluationProblem:
    """One problem of an evaluation set. `names` are its ids, slugs and titles as given, `functions` what it asks to define, `others` further texts of its row."""

    set_name: str
    id: str
    text: str
    names: tuple[str, ...]
    functions: tuple[str, ...]
    others: tuple[str, ...] = ()


def evaluation_problems(name: str) -> Iterator[EvaluationProblem]:
    """The problems of the set `name`: a file, a folder of files, or any `dataset=`.

    Raises DataError when a row has no statement, ConfigError when there is no such set.
    """
    files = _files(name)
    if files is None:
        for item in open_source(name, "test"):
            if not isinstance(item, Skipped):
                yield _exam_of(name, item)
        return
    unread, count = [], 0
    for file in files:
        found: list[tuple[EvaluationProblem, list[list[str]]]] = []
        for number, row in enumerate(stream_rows(file), start=1):
            count += 1
            told = [turns for field in STATEMENT_FIELDS for turns in _told(row.get(field))]
            exam = _exam(name, row, told, file, number)
            if exam is None:
                unread.append(f"{file.name}, row {number}")
            else:
                found.append((exam, told))
        seen = Counter(itertools.chain.from_iterable({turn for turns in told for turn in turns} for _, told in found))
        constant = {turn for turn, times in seen.items() if times >= LEAST_ALIKE and 2 * times > len(found)}
        yield from (_with_texts(exam, told, constant) for exam, told in found)
    if unread or not count:
        lack = f"{len(unread)} of {count} rows have no statement ({', '.join(unread[:3])})"
        looked = f"looked for {', '.join(STATEMENT_FIELDS)} and for the formats that dataset= reads"
        raise DataError(f"decontaminate={name}: {lack}; {looked}; repair or remove them")


def evaluation_set_hash(name: str) -> str:
    """Changes whenever the rows of the set do."""
    files = _files(name)
    return open_source(name, "test").fingerprint() if files is None else " ".join(map(file_sha256, files))


def _files(name: str) -> list[Path] | None:
    """The files of a set that is given as a file or folder; None for any other `dataset=`."""
    path = Path(name)
    if not path.exists() or (path / MANIFEST).is_file():
        return None
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if is_data_file(file.name))
    if not files or not all(is_data_file(file.name) for file in files):
        raise DataError(f"decontaminate={path}: no data file there ({', '.join(DATA_SUFFIXES)})")
    return files


def _exam(
    set_name: str, row: Mapping[str, Any], told: Sequence[Sequence[str]], file: Path, number: int
) -> EvaluationProblem | None:
    text = max(map("\n".join, told), key=len, default="")
    names = tuple(dict.fromkeys(str(row[field]) for field in ID_FIELDS if isinstance(row.get(field), str | int)))
    known = None
    if len(text.strip()) < LEAST_CHARACTERS or not any(map(CERTAIN.fullmatch, names_of(names, ()))):
        item = read_row(row, Origin(file.stem, "", number, f"{file.name}, row {number}"))
        known = None if isinstance(item, Skipped) else _exam_of(set_name, item)
        if known is not None and known.id.startswith("/"):  # made up for a row without one: no name
            known = replace(known, id=f"{file.name}:{number}", names=known.names[1:])
    if len(text.strip()) < LEAST_CHARACTERS:
        return known
    functions = [row[field] for field in ("fn_name", "entry_point") if isinstance(row.get(field), str)]
    functions += _FUNCTION.findall("\n".join([str(row.get("starter_code") or ""), *itertools.chain(*told)]))
    if known is not None:
        names, functions = tuple(dict.fromkeys((*names, *known.names))), [*functions, *known.functions]
    plain = dict.fromkeys(name.rpartition(".")[2] for name in functions if not name.startswith("__"))
    return EvaluationProblem(set_name, names[0] if names else f"{file.name}:{number}", text, names, tuple(plain))


def _told(value: object) -> list[list[str]]:
    """The texts of a field: a text, one in parts, or what each speaker of a chat says, turn by turn."""
    if not isinstance(value, list):
        return [[value]] if isinstance(value, str) else []
    said: dict[str, list[str]] = defaultdict(list)
    for turn in value:
        of = turn if isinstance(turn, Mapping) else {"text": turn}
        content = next((of[key] for key in ("content", "value", "text") if key in of), None)
        said[str(of.get("role", of.get("from", "")))] += itertools.chain.from_iterable(_told(content))
    return list(said.values())


def _with_texts(exam: EvaluationProblem, told: Sequence[Sequence[str]], constant: set[str]) -> EvaluationProblem:
    """With the longest of the texts of its row, but for what is `constant` over the rows, and others that have enough words and are no part of it."""
    texts = {"\n".join(turn for turn in turns if turn not in constant) for turns in told}
    first, *others = sorted(texts, key=lambda text: (-len(text), text)) or [""]
    if len(first.strip()) < LEAST_CHARACTERS:
        return exam
    known = grams(words(first), SHINGLE)
    told_anew = (text for text in others if len(words(text)) >= GRAM and _share_within(text, known) < WITHIN)
    return replace(exam, text=first, others=tuple(told_anew))


def _share_within(text: str, known: Hashes) -> float:
    return float(among(grams(words(text), SHINGLE), known).mean())


def _exam_of(set_name: str, item: Problem | Draft | Ambiguous) -> EvaluationProblem:
    problem = item if isinstance(item, Problem) else item.problem
    functions = (problem.fn_name,) if problem.fn_name else ()
    text = "\n".join(filter(None, (problem.statement, problem.starter_code)))
    named = [str(problem.meta[key]) for key in ID_FIELDS if isinstance(problem.meta.get(key), str | int)]
    return EvaluationProblem(set_name, problem.id, text, (problem.id, *named), functions)


def told_apart(name: str, exams: list[EvaluationProblem]) -> list[EvaluationProblem]:
    """The problems of a set. Raises DataError where most have one text: then it is no statement that was read."""
    most, count = Counter(exam.text for exam in exams).most_common(1)[0] if exams else ("", 0)
    if count >= LEAST_ALIKE and 2 * count > len(exams):
        raise DataError(
            f"decontaminate={name}: {count} of {len(exams)} rows have one text, {most[:60]!r}…, which tells no problem from another; "
            "give a file with each problem's own text as `statement`"
        )
    return exams


def names_of(given: Iterable[str], functions: Iterable[str]) -> list[str]:
    """Names in one spelling with their kind: `id` as given, `slug` of titles, slugs and addresses, `function` where it is distinctive."""
    given = tuple(given)
    found = [f"id {name.strip().lower()}" for name in given if name.strip()]
    slugs = (title.rstrip("/").rpartition("/")[2] if "://" in title else title for title in given)
    slugs = (re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-") for slug in slugs)
    found += [f"slug {slug}" for slug in slugs if slug.count("-") >= 2]
    found += [f"function {name}" for name in functions if _DISTINCTIVE.fullmatch(name)]
    return found
