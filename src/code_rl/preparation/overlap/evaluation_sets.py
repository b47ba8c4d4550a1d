"""Evaluation sets as `decontaminate` compares them: statements, ids and function names of rows of any shape.

An evaluation set need not be trainable: prompts without tests are enough, so every text of a row may be its task, but for those whose field says that they
are none (tests, solutions, answers), code, and what many rows say alike. The readers of known shapes are asked where no field is named like a statement.
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
from code_rl.loading.dataset import MANIFEST
from code_rl.preparation.normalise import open_source
from code_rl.preparation.overlap.deduplicate import SHINGLE
from code_rl.preparation.overlap.sharing import GRAM
from code_rl.preparation.overlap.text import Hashes, among, grams, words
from code_rl.problems.files import DATA_SUFFIXES, file_sha256, is_data_file, stream_rows
from code_rl.problems.problem import Problem
from code_rl.problems.sources.records import Ambiguous, Draft, Origin, Skipped
from code_rl.problems.sources.shapes import read_row

STATEMENT_FIELDS = frozenset({
    "statement", "question_content", "problem_description", "problem_statement", "question", "problem", "prompt", "description", "text", "content", "query", "messages",
    "conversations", "instruction", "input", "body", "complete_prompt", "instruct_prompt",
})  # fmt: skip
"""A text in a field of such a name, or within one, may be a task of a few words; in any other it needs some length."""
_NO_TASK = re.compile(
    r"(?:^|_)(?:tests?|test_?cases?|cases|asserts?|assertions?|contract|solutions?|answers?|outputs?|expected|canonical|reference|completions?|responses?|generat(?:ed|ions?)"
    r"|inferences?|predictions?|programs?|code|imports?|setup|editorial|hints?|rationale|reasoning|thinking|cot|license|citation|assistant|gpt|(?:base|plus|sample|public|private|raw)_inputs?)(?:_|$)"
)
"""Names, in snake case, of fields and speakers whose texts are no tasks."""
_INSTRUCTS = re.compile(r"instruct|prompt|system|user|human")
_PROSE = re.compile(r"[^\W\d_]{2,}")
_CODE = re.compile(
    r"(?:(?:def|class|for|while|if|elif|else|try|except|with|return|import|from|assert|print|public|private|static|using)\b.*[:;(){}\w]|#include.*|.*[;{}]|[\w.\[\], ]+[-+*/|&]?=[^=].*|[\w.]+\(.*\))"
)
MOST_CHARACTERS = 200_000
"""No longer text is a statement."""
ID_FIELDS = ("id", "question_id", "task_id", "problem_id", "name", "slug", "title", "question_title", "url", "link")
LEAST_CHARACTERS = 4
_FUNCTION = re.compile(r"^\s*(?:async )?def (\w+)\s*\(", re.MULTILINE)
WITHIN = 0.8
"""A text that has so many of its 5-grams in another of the row is a part of it."""
LEAST_ALIKE, LEAST_ROWS = 8, 3
"""So many rows of an evaluation set with one text, more than half of it, have a field that says the same of all; of a smaller one all rows, if it has so many."""
LEAST_OFTEN, LEAST_TEXTS = 1 / 20, 1 / 3
"""An instruction that so many of the rows have, beside other texts, is one of several wordings; a file with fewer texts for its rows was not read by its tasks."""
Told = Mapping[tuple[str, ...], Sequence[str]]
"""The texts of a row by the names of the fields that hold them, turn by turn of a speaker."""
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
        items = open_source(name, "test").items()
        yield from _told_apart(name, [_exam_of(name, item) for item in items if not isinstance(item, Skipped)])
        return
    unread, count = [], 0
    for file in files:
        found: list[tuple[EvaluationProblem, Told]] = []
        for number, row in enumerate(stream_rows(file), start=1):
            count += 1
            told = _told(row)
            exam = _exam(name, row, told, file, number)
            if exam is None:
                unread.append(f"{file.name}, row {number}")
            else:
                found.append((exam, told))
        frames = _frames([told for _, told in found])
        yield from _told_apart(name, [_with_texts(exam, told, frames) for exam, told in found])
    if unread or not count:
        lack = f"{len(unread)} of {count} rows have no statement ({', '.join(unread[:3])})"
        looked = (
            f"looked for texts of {GRAM} words in all fields but those of tests, solutions and answers, for shorter ones in fields named "
            "like a statement (prompt, question, statement, …), and for the formats that dataset= reads"
        )
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


def _exam(set_name: str, row: Mapping[str, Any], told: Told, file: Path, number: int) -> EvaluationProblem | None:
    named = any(not STATEMENT_FIELDS.isdisjoint(path) for path in told)
    text = max(map("\n".join, told.values()), key=len, default="")
    names = tuple(dict.fromkeys(str(row[field]) for field in ID_FIELDS if isinstance(row.get(field), str | int)))
    known = None
    if not named or len(text.strip()) < LEAST_CHARACTERS or not any(map(CERTAIN.fullmatch, names_of(names, ()))):
        item = read_row(row, Origin(file.stem, "", number, f"{file.name}, row {number}"))
        known = None if isinstance(item, Skipped) else _exam_of(set_name, item)
        if known is not None and known.id.startswith("/"):  # made up for a row without one: no name
            known = replace(known, id=f"{file.name}:{number}", names=known.names[1:])
    if len(text.strip()) < LEAST_CHARACTERS:
        return known
    functions = [row[field] for field in ("fn_name", "entry_point") if isinstance(row.get(field), str)]
    functions += _FUNCTION.findall("\n".join([str(row.get("starter_code") or ""), *itertools.chain(*told.values())]))
    if known is not None:
        names, functions = tuple(dict.fromkeys((*names, *known.names))), [*functions, *known.functions]
        text = text if named else known.text
    plain = dict.fromkeys(name.rpartition(".")[2] for name in functions if not name.startswith("__"))
    return EvaluationProblem(set_name, names[0] if names else f"{file.name}:{number}", text, names, tuple(plain))


def _told(row: Mapping[str, Any]) -> Told:
    """The texts of a row that may be its task."""
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for path, text in _texts(row, ()):
        found[path].append(text)
    return {
        path: turns
        for path, turns in found.items()
        if sum(map(len, turns)) <= MOST_CHARACTERS
        and (not STATEMENT_FIELDS.isdisjoint(path) or _is_prose("\n".join(turns)))
    }


def _texts(value: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one, path)
    elif isinstance(value, Mapping):
        speaker = next((value[name] for name in ("role", "from") if isinstance(value.get(name), str)), "")
        for name, held in value.items():
            names = [re.sub(r"(?<=[a-z0-9])(?=[A-Z])|\W+", "_", one).lower() for one in (speaker, str(name)) if one]
            if name not in ("role", "from") and not any(map(_NO_TASK.search, names)):
                yield from _texts(held, (*path, *names))


def _is_prose(text: str) -> bool:
    return _plain_words(text) >= GRAM and not _is_code(text)


def _is_code(text: str) -> bool:
    lines = [line for line in map(str.strip, text.splitlines()) if line]
    return 2 * sum(_CODE.fullmatch(line) is not None for line in lines) > len(lines)


def _plain_words(text: str) -> int:
    return sum(1 for _ in _PROSE.finditer(text))


def _frames(rows: Sequence[Told]) -> set[str]:
    """What is said around tasks: one text over most rows, an instruction in one of a few wordings, each beside texts that differ, or a few words beside several."""
    apart = {frozenset(itertools.chain(*told.values())) for told in rows}
    short = {
        turn for turn, count in Counter(itertools.chain(*apart)).items() if count > 1 and _plain_words(turn) < GRAM
    }
    times = Counter(turn for told in rows for turn in set(itertools.chain(*told.values())))
    least = max(LEAST_ROWS, min(LEAST_ALIKE, len(rows)), LEAST_OFTEN * len(rows))
    often = {turn for turn, count in times.items() if count >= least}
    beside: dict[str, set[int]] = defaultdict(set)
    for told in rows:
        for path, turns in told.items():
            for turn in often.intersection(turns) if _INSTRUCTS.search(path[-1]) else ():
                rest = tuple(one for said in told.values() for one in said if one != turn and _is_prose(one))
                beside[turn].update([hash(rest)] if rest else ())
    return short | {turn for turn in often if 2 * times[turn] > len(rows) or 2 * len(beside[turn]) > times[turn]}


def _with_texts(exam: EvaluationProblem, told: Told, frames: set[str]) -> EvaluationProblem:
    """With the longest of the texts of its row, but for `frames` and for code beside prose, and the others that are no part of it."""
    texts = {"\n".join(turn for turn in turns if turn not in frames) for turns in told.values()}
    texts |= {exam.text} - set(map("\n".join, told.values()))  # what a reader of known shapes found
    texts = {text for text in texts if len(text.strip()) >= LEAST_CHARACTERS}
    if any(map(_is_prose, texts)):
        texts = {text for text in texts if not _is_code(text)}
    if not texts:
        return exam
    first, *others = sorted(texts, key=lambda text: (-_plain_words(text), -len(text), text))
    known = grams(words(first), SHINGLE)
    return replace(exam, text=first, others=tuple(text for text in others if _share_within(text, known) < WITHIN))


def _share_within(text: str, known: Hashes) -> float:
    own = grams(words(text), SHINGLE)
    return float(among(own, known).mean()) if len(own) else 0.0


def _exam_of(set_name: str, item: Problem | Draft | Ambiguous) -> EvaluationProblem:
    problem = item if isinstance(item, Problem) else item.problem
    functions = (problem.fn_name,) if problem.fn_name else ()
    text = "\n".join(filter(None, (problem.statement, problem.starter_code)))
    named = [str(problem.meta[key]) for key in ID_FIELDS if isinstance(problem.meta.get(key), str | int)]
    return EvaluationProblem(set_name, problem.id, text, (problem.id, *named), functions)


def _told_apart(name: str, exams: list[EvaluationProblem]) -> list[EvaluationProblem]:
    """The problems of a file. Raises DataError where few texts stand for many rows: then it is no statement that was read."""
    plain = [re.sub(r"[\W\d_]+", " ", exam.text) for exam in exams]
    text, count = Counter(plain).most_common(1)[0] if exams else ("", 0)
    texts = 1 if 2 * count > len(exams) else len(set(plain))
    if len(exams) < LEAST_ALIKE or texts >= LEAST_TEXTS * len(exams):
        return exams
    rows, said = (count, "one text") if texts == 1 else (len(exams), f"{texts} texts, one of them")
    raise DataError(
        f"decontaminate={name}: {rows} of {len(exams)} rows have {said}, {text[:60]!r}…, which tells no problem from another; "
        "give a file with each problem once, its own text as `statement`"
    )


def names_of(given: Iterable[str], functions: Iterable[str]) -> list[str]:
    """Names in one spelling with their kind: `id` as given, `slug` of titles, slugs and addresses, `function` where it is distinctive."""
    given = tuple(given)
    found = [f"id {name.strip().lower()}" for name in given if name.strip()]
    slugs = (title.rstrip("/").rpartition("/")[2] if "://" in title else title for title in given)
    slugs = (re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-") for slug in slugs)
    found += [f"slug {slug}" for slug in slugs if slug.count("-") >= 2]
    found += [f"function {name}" for name in functions if _DISTINCTIVE.fullmatch(name)]
    return found
