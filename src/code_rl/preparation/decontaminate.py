"""The evaluation sets to decontaminate against: statements, ids and function names of rows of any shape.

An evaluation set need not be trainable: prompts without tests are enough, so rows are read by the names of their fields alone.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from code_rl.errors import DataError
from code_rl.preparation.bench import Bench, Entry, Survivor
from code_rl.preparation.deduplicate import MOST_CANDIDATES, SHINGLE
from code_rl.preparation.ledger import KEEP, Decision, OnItem, content_key, drop
from code_rl.preparation.normalise import open_source
from code_rl.preparation.text import (
    Hashes,
    Numbers,
    among,
    jaccard,
    numbers,
    other_numbers,
    problem_text,
    runs,
    token_hashes,
    words,
)
from code_rl.problems.dataset import MANIFEST
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
    files = _files(name)
    if files is None:
        yield from _from_source(name)
        return
    found = 0
    for file in files:
        for number, row in enumerate(stream_rows(file), start=1):
            exam = _exam(name, row, f"{file.name}:{number}")
            if exam is not None:
                found += 1
                yield exam
    if not found:
        raise DataError(f"decontaminate={name}: no row has a statement; looked for {', '.join(STATEMENT_FIELDS)}")


def exams_fingerprint(name: str) -> str:
    """Changes whenever the rows of the set do."""
    files = _files(name)
    return open_source(name, "test").fingerprint() if files is None else " ".join(map(file_sha256, files))


def _files(name: str) -> list[Path] | None:
    """The files of a set that is given as a file or folder; None for any other `dataset=`."""
    path = Path(name)
    if not path.exists() or (path / MANIFEST).is_file():
        return None
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
    plain = dict.fromkeys(name.rpartition(".")[2] for name in functions if not name.startswith("__"))
    return Exam(set_name, names[0] if names else place, text, names, tuple(plain))


def _from_source(name: str) -> Iterator[Exam]:
    for item in open_source(name, "test"):
        if not isinstance(item, Skipped):
            problem = item if isinstance(item, Problem) else item.problem
            functions = (problem.fn_name,) if problem.fn_name else ()
            text = "\n".join(filter(None, (problem.statement, problem.starter_code)))
            named = [str(problem.meta[key]) for key in ID_FIELDS if isinstance(problem.meta.get(key), str | int)]
            yield Exam(name, problem.id, text, (problem.id, *named), functions)


GRAM = 13
BOILERPLATE = (3, 6)
"""A 13-gram in so many distinct problems of one side is boilerplate: a twentieth of them, within these bounds."""
SAME_PROBLEM = 0.6
"""Two texts whose 5-grams are so much alike, no number standing for another, tell one problem (Jaccard)."""
SKETCH = 16
"""The smallest 5-gram hashes of a text, by which its like are found: two texts just alike enough share about ten."""
SHARED_SKETCH = 4
MOST_ALIKE = 64
LEAST_GRAMS = 3
"""With fewer telling 13-grams on either side, only an equal text counts."""
WHOLE = 0.85
"""So large a share of a text is no boilerplate, in however many problems it is found: numbers of a leak were changed."""
LEAST_WHOLE_GRAMS = 40
MOSTLY_BOILERPLATE = 0.5
NEARLY_ALL = 0.95
"""Where less than half of a text tells, the few telling 13-grams must agree: a family of problems differs in a number or a word."""
NAME_CONTAINMENT = 0.3
"""A shared name that may be chance needs this much shared text beside it."""
_DISTINCTIVE = re.compile(r"[a-z]+(?:[A-Z][a-z0-9]*){2,}|[a-z]+(?:_[a-z0-9]+){2,}")
_CERTAIN = re.compile(
    r"id (?:(?:abc|arc|agc)\d{3}_[a-z]\d?|(?:humaneval|mbpp)/\d+)|slug [a-z]+(?:-[a-z]+){2,}(?:-[ivx0-9]+)?"
)
"""Ids and slugs that are names of one problem the world over."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A problem, the evaluation problem that it overlaps with, and why. `containment` is the larger of both shares of 13-grams."""

    id: str
    set: str
    exam: str
    why: str
    containment: float


class Decontaminator:
    """Holds the evaluation sets; what tells are the 13-grams that are not boilerplate."""

    def __init__(self, exams: Iterable[Exam], entries: Sequence[Entry], containment: float) -> None:
        self._containment = containment
        self._exams = list(dict.fromkeys(exams))
        texts, frequent = _measured([exam.text for exam in self._exams])
        own, own_frequent = _measured([problem_text(entry.statement, entry.starter_code) for entry in entries])
        self._own = {entry.digest: found for entry, found in zip(entries, own, strict=True)}
        self._stop = np.union1d(frequent, own_frequent)
        self._telling = [int(np.count_nonzero(~among(text, self._stop))) for text in texts]
        every = np.concatenate([*texts, np.empty(0, dtype=np.uint64)])
        self._sizes = np.array([len(text) for text in texts], dtype=np.int64)
        owner = np.repeat(np.arange(len(texts)), self._sizes)
        order = np.argsort(every, kind="stable")
        self._every, self._owner = every[order], owner[order]
        self._named: dict[str, list[int]] = defaultdict(list)
        self._whole: dict[bytes, int] = {}
        for number, exam in enumerate(self._exams):
            for name in _names(exam.names, exam.functions):
                self._named[name].append(number)
            self._whole.setdefault(texts[number].tobytes(), number)

    def find(self, entry: Entry) -> Pair | None:
        """The evaluation problem that `entry`, one of those given, overlaps with most, or None."""
        whole = self._own[entry.digest]
        own = whole[~among(whole, self._stop)]
        equal = self._whole.get(whole.tobytes())
        if equal is not None and len(whole):
            return self._pair(entry, equal, "equal text", 1.0)
        shares_E = self._common(own) / np.maximum(1, np.minimum(len(own), self._telling))
        best = int(np.argmax(shares_E)) if len(shares_E) else None
        if best is not None and shares_E[best] >= self._wanted(best, whole, own):
            return self._pair(entry, best, "shared text", float(shares_E[best]))
        whole_E = self._common(whole) / np.maximum(LEAST_WHOLE_GRAMS, np.minimum(len(whole), self._sizes))
        if best is not None and whole_E.max() >= max(WHOLE, self._containment):
            return self._pair(entry, int(np.argmax(whole_E)), "shared text", float(whole_E.max()))
        for name in _names((entry.id, *entry.names.values()), (entry.fn_name,) if entry.fn_name else ()):
            for number in self._named.get(name, ()):
                if shares_E[number] >= NAME_CONTAINMENT or _CERTAIN.fullmatch(name):
                    return self._pair(entry, number, name, float(shares_E[number]))
        return None

    def _wanted(self, number: int, whole: Hashes, own: Hashes) -> float:
        """The containment from which an overlap with an evaluation problem counts; above 1 where too little of either text tells."""
        telling = self._telling[number]
        if min(len(own), telling) < LEAST_GRAMS:
            return 2.0
        share = min(len(own) / len(whole), telling / self._sizes[number])
        return max(self._containment, NEARLY_ALL) if share < MOSTLY_BOILERPLATE else self._containment

    def _common(self, own: Hashes) -> npt.NDArray[np.int64]:
        """For each evaluation problem how many of the 13-grams `own` it has."""
        starts, ends = (np.searchsorted(self._every, own, side=side) for side in ("left", "right"))
        found = [self._owner[start:end] for start, end in zip(starts, ends, strict=True) if start < end]
        return np.bincount(np.concatenate([*found, np.empty(0, dtype=np.int64)]), minlength=len(self._exams))

    def _pair(self, entry: Entry, number: int, why: str, containment: float) -> Pair:
        exam = self._exams[number]
        return Pair(entry.id, exam.set_name, exam.id, why, round(containment, 3))


async def run_decontaminate(bench: Bench, survivors: Sequence[Survivor], on_item: OnItem) -> list[Decision]:
    """Problems that overlap with the named evaluation sets go."""
    sets = bench.config.evaluation_sets
    entries = [survivor.entry for survivor in survivors]
    rest = content_key(sets, [exams_fingerprint(name) for name in sets], [entry.digest for entry in entries])
    modules = ("deduplicate", "text")
    with bench.deciding("decontaminate", modules, survivors, on_item, lambda s: (rest, s.entry.digest)) as decisions:
        if decisions.waiting:
            exams = [exam for name in sets for exam in read_exams(name)]
            found = Decontaminator(exams, entries, bench.config.containment)
            decisions.one_by_one(lambda one: _decide(found.find(one.entry)))
        return decisions.made


def _decide(pair: Pair | None) -> Decision:
    if pair is None:
        return KEEP
    detail = f"{pair.exam} of {pair.set}: {pair.why}, {100 * pair.containment:.0f}% of 13-grams"
    return drop("contaminated", detail, pair=asdict(pair))


def _measured(texts: Sequence[str]) -> tuple[list[Hashes], Hashes]:
    """The 13-grams of each text, and those that many of the distinct problems among the texts share."""
    hashed = [token_hashes(words(text)) for text in texts]
    grams_of = [runs(hashes, GRAM) for hashes in hashed]
    tellings: dict[int, list[Hashes]] = defaultdict(list)
    for problem, found in zip(distinct(texts, hashed), grams_of, strict=True):
        tellings[problem].append(found)
    if not tellings:
        return grams_of, np.empty(0, dtype=np.uint64)
    values, counts = np.unique(
        np.concatenate([np.unique(np.concatenate(one)) for one in tellings.values()]), return_counts=True
    )
    least, most = BOILERPLATE
    return grams_of, values[counts >= min(most, max(least, len(tellings) // 20))]


def distinct(texts: Sequence[str], hashed: Sequence[Hashes]) -> list[int]:
    """For each text (and its tokens' hashes) the number of the first text that tells the same problem: its own, where it is the first to do so."""
    known: dict[str, int] = {}
    shingles: dict[int, Hashes] = {}
    stated: dict[int, Numbers] = {}  # a text's own, then those of all that tell its problem; most texts are never asked
    by_hash: dict[int, list[int]] = defaultdict(list)
    for number, (text, hashes) in enumerate(zip(texts, hashed, strict=True)):
        if text in known:
            continue
        own = runs(hashes, SHINGLE)
        sketch = own[:SKETCH].tolist()
        near = Counter(itertools.chain.from_iterable(map(by_hash.__getitem__, sketch)))
        own_numbers: Numbers | None = None
        least = min(SHARED_SKETCH, len(own))
        for other in [other for other, count in near.most_common(MOST_ALIKE) if count >= least]:
            if jaccard(own, shingles[other]) < SAME_PROBLEM:
                continue
            if own_numbers is None:
                own_numbers = numbers(text)
            theirs = stated[other] if other in stated else numbers(texts[other])
            stated[other] = theirs
            if not other_numbers(own_numbers, theirs):
                known[text] = other
                places = own_numbers.keys() | theirs.keys()
                none: Counter[str] = Counter()
                stated[other] = {at: own_numbers.get(at, none) | theirs.get(at, none) for at in places}
                break
        else:
            known[text], shingles[number] = number, own
            for key in sketch:
                if len(by_hash[key]) < MOST_CANDIDATES:
                    by_hash[key].append(number)
    return [known[text] for text in texts]


def _names(given: Iterable[str], functions: Iterable[str]) -> list[str]:
    """Names in one spelling with their kind: `id` as given, `slug` of titles, slugs and addresses, `function` where it is distinctive."""
    given = tuple(given)
    found = [f"id {name.strip().lower()}" for name in given if name.strip()]
    slugs = (title.rstrip("/").rpartition("/")[2] if "://" in title else title for title in given)
    slugs = (re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-") for slug in slugs)
    found += [f"slug {slug}" for slug in slugs if slug.count("-") >= 2]
    found += [f"function {name}" for name in functions if _DISTINCTIVE.fullmatch(name)]
    return found
