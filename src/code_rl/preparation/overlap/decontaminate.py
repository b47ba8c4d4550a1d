"""Stage `decontaminate`: problems that overlap with evaluation sets, of which statements, ids and function names are read from rows of any shape.

An evaluation set need not be trainable: prompts without tests are enough, so rows are read by the names of their fields first, and by the readers of
known shapes where those name no text.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from code_rl.errors import DataError
from code_rl.loading.dataset import MANIFEST
from code_rl.preparation.bench import Bench, Entry, Survivor
from code_rl.preparation.ledger import KEEP, Decision, OnItem, content_key, drop
from code_rl.preparation.normalise import open_source
from code_rl.preparation.overlap.deduplicate import MOST_CANDIDATES, SHINGLE, in_series
from code_rl.preparation.overlap.text import (
    PLACEHOLDER,
    Hashes,
    among,
    grams,
    jaccard,
    pattern,
    problem_text,
    runs,
    token_hashes,
    without_numbers,
    words,
)
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
    if len(text.strip()) < LEAST_CHARACTERS or not any(map(_CERTAIN.fullmatch, _names(names, ()))):
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


GRAM = 13
LEAST_WORDS = 5
"""A 13-gram with fewer words (the rest are numbers and names of variables) tells nothing: examples are full of them."""
LEAST_RUN = 5
"""An evaluation problem of fewer tokens is found only where it is the whole text."""
SAME_PROBLEM = 0.8
"""Two texts whose 5-grams are so much alike tell one problem (Jaccard)."""
SKETCH = 16
"""The smallest 5-gram hashes of a text, by which its like are found: two texts just alike enough share about ten."""
SHARED_SKETCH = 4
TELLING, LONG = 0.5, 40
"""A training problem with so large a share of an evaluation problem's 13-grams, and so many of them, is a telling of it; fewer may be a definition."""
MOST_ALIKE = 64
WHOLE = 0.85
"""So large a share is an overlap with other numbers too."""
EQUAL = 0.95
"""What parts of a series share less of are different problems: I is not II."""
SHORT = 3
LEAST_SCATTERED, MOST_SCATTERED = 64, 0.3
"""A text of so many tokens is told with scattered edits where the tokens in no run of three of the other text lie, in the mean over all tokens, in gaps of so
few: words edited here and there leave many gaps of one, another problem in the same frame leaves one of many."""
WITHIN = 0.8
"""A text that has so many of its 5-grams in another of the row is a part of it."""
LEAST_ALIKE = 8
"""So many rows of an evaluation set with one text, more than half of it, have a field that says the same of all."""
SHORT_RUN, LEAST_LIKE = 6, 0.2
"""Where edits stand too close for any 13-gram, an evaluation problem is looked at with which a text shares so many runs of six tokens, for each token that it has."""
MOST_EXAMS = 8
"""Evaluation problems looked at closely for one text."""
NAME_CONTAINMENT = 0.3
"""Any other shared name needs this much shared text beside it."""
ID_WORDS, SLUG_WORDS = 0.1, 0.45
"""A name the world over needs so many of the words that tell: more where it is made of words, and may be another problem's title."""
MOST_NAMESAKES = 8
"""What more texts of evaluation sets are called by is the name of a set."""
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
    """Holds the evaluation sets. A token counts where a 13-gram around it is shared, and the less the more problems share that 13-gram."""

    def __init__(self, exams: Iterable[EvaluationProblem], entries: Sequence[Entry], containment: float) -> None:
        self._containment = containment
        united: dict[str, EvaluationProblem] = {}
        first: dict[str, str] = {}
        for exam in exams:  # one text is one problem, by whatever names its files know it
            for told in (exam.text, *exam.others):
                same = united.get(told, exam)
                names, functions = (
                    tuple(dict.fromkeys(each)) for each in (same.names + exam.names, same.functions + exam.functions)
                )
                united[told] = replace(same, text=told, names=names, functions=functions)
                first.setdefault(told, exam.text)
        self._exams = list(united.values())
        places = {told: place for place, told in enumerate(united)}
        own = [_document(problem_text(entry.statement, entry.starter_code)) for entry in entries]
        self._texts = [_document(exam.text) for exam in self._exams]
        self._sharers = _Sharers(self._texts, own, [places[told] for told in first.values()])
        self._counts = list(map(self._sharers.of_exam, self._texts))
        each = [np.unique(text.tokens) for text in (*self._texts, *own)]
        self._words, holders = np.unique(np.concatenate([np.empty(0, np.uint64), *each]), return_counts=True)
        self._rarity = np.log((len(each) + 1) / holders)
        self._own = {entry.digest: text for entry, text in zip(entries, own, strict=True)}
        self._by_gram = _by_hash([text.telling for text in self._texts])
        self._sizes = np.array([max(1, len(text.tokens)) for text in self._texts])
        self._by_short = _by_hash([_short_runs(text) for text in self._texts])
        named: dict[str, list[int]] = defaultdict(list)
        short: dict[int, dict[int, int]] = defaultdict(dict)
        for number, (exam, text) in enumerate(zip(self._exams, self._texts, strict=True)):
            for name in _names(exam.names, exam.functions):
                named[name].append(number)
            size = len(text.tokens)
            if size and not len(text.telling):
                short[size].setdefault(int(runs(text.tokens, size)[0]), number)
        self._named = {name: held for name, held in named.items() if len(held) <= MOST_NAMESAKES}
        self._short = {size: (np.array(sorted(known), np.uint64), known) for size, known in short.items()}

    def find(self, entry: Entry) -> Pair | None:
        """The evaluation problem that `entry`, one of those given, overlaps with most, or None."""
        own = self._own[entry.digest]
        for size, (every, known) in self._short.items():
            if size == len(own.tokens) or LEAST_RUN <= size < len(own.tokens):
                found = runs(own.tokens, size)
                for run in found[among(found, every)][:1].tolist():
                    why = "shared text" if size < len(own.tokens) else "equal text"
                    return self._pair(entry, known[run], why, 1.0)
        shares = {number: self._share(own, number, entry.called) for number in self._near(own)}
        best = max(shares, key=lambda number: shares[number], default=None)
        if best is not None and shares[best] >= self._containment:
            return self._pair(entry, best, "shared text", shares[best])
        for name in _names(entry.called, (entry.fn_name,) if entry.fn_name else ()):
            least = SLUG_WORDS if name.startswith("slug") else ID_WORDS
            for number in self._named.get(name, ()):
                share = shares.get(number, 0.0)
                certain = _CERTAIN.fullmatch(name) and self._common(own, self._texts[number]) >= least
                if certain or share >= NAME_CONTAINMENT:
                    return self._pair(entry, number, name, share)
        return None

    def _common(self, one: Document, other: Document) -> float:
        """The share of the words of the text that has fewer that the other has too; a word that many texts have tells little."""
        left, right = np.unique(one.tokens), np.unique(other.tokens)
        told_both, *told = (
            float(self._rarity[np.searchsorted(self._words, words)].sum())
            for words in (left[among(left, right)], left, right)
        )
        return told_both / max(min(told), 1e-9)

    def _near(self, own: Document) -> list[int]:
        """The evaluation problems that share the most, rare things first."""
        total_E = self._total(self._by_gram, own.grams, _weight(self._sharers.of_all(own.grams)))
        near = [int(number) for number in np.argsort(-total_E, kind="stable")[:MOST_EXAMS] if total_E[number]]
        short = _short_runs(own)
        likest = self._total(self._by_short, short, np.ones(len(short))) / self._sizes
        edited = np.argsort(-likest, kind="stable")[:MOST_EXAMS]
        return near + [int(number) for number in edited if likest[number] >= LEAST_LIKE and number not in near]

    def _total(
        self, index: tuple[Hashes, npt.NDArray[np.int64]], hashes: Hashes, weights: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        """The sum of the weights of the `hashes` that each evaluation problem has."""
        starts, ends = (np.searchsorted(index[0], hashes, side=side) for side in ("left", "right"))
        found = np.flatnonzero(starts < ends)
        owners = [index[1][start:end] for start, end in zip(starts[found], ends[found], strict=True)]
        each = np.repeat(weights[found], ends[found] - starts[found])
        every = np.concatenate([np.empty(0, dtype=np.int64), *owners])
        return np.bincount(every, each, len(self._exams)).astype(np.float64)

    def _share(self, own: Document, number: int, called: Sequence[str]) -> float:
        """The share of what tells in an evaluation problem that `own` has, or the other way round where nearly all of `own` is found there."""
        exam, counts = self._texts[number], self._counts[number]
        in_exam = _looked_up(own.grams, exam.telling, counts)
        part = _covered(own, exam, np.where(in_exam > 0, in_exam, self._sharers.of_all(own.grams)))
        share = max(_covered(exam, own, _looked_up(exam.grams, exam.telling, counts)), part if part >= WHOLE else 0.0)
        if in_series(called, self._exams[number].names):  # another part of a series is another problem
            return share if share >= EQUAL else 0.0
        return max(share, _scattered(exam, own), _scattered(own, exam)) if share < self._containment else share

    def _pair(self, entry: Entry, number: int, why: str, containment: float) -> Pair:
        exam = self._exams[number]
        return Pair(entry.id, exam.set_name, exam.id, why, round(containment, 3))


async def run_decontaminate(bench: Bench, survivors: Sequence[Survivor], on_item: OnItem) -> list[Decision]:
    """Problems that overlap with the named evaluation sets go."""
    sets = bench.config.evaluation_sets
    entries = [survivor.entry for survivor in survivors]
    rest = content_key(sets, [evaluation_set_hash(name) for name in sets], [entry.digest for entry in entries])
    modules = ("overlap", "code_rl.problems.sources")
    with bench.deciding("decontaminate", modules, survivors, on_item, lambda s: (rest, s.entry.digest)) as decisions:
        if decisions.waiting:
            exams = [exam for name in sets for exam in _told_apart(name, list(evaluation_problems(name)))]
            found = Decontaminator(exams, entries, bench.config.containment)
            decisions.one_by_one(lambda one: _decide(found.find(one.entry)))
        return decisions.made


def _told_apart(name: str, exams: list[EvaluationProblem]) -> list[EvaluationProblem]:
    """The problems of a set. Raises DataError where most have one text: then it is no statement that was read."""
    most, count = Counter(exam.text for exam in exams).most_common(1)[0] if exams else ("", 0)
    if count >= LEAST_ALIKE and 2 * count > len(exams):
        raise DataError(
            f"decontaminate={name}: {count} of {len(exams)} rows have one text, {most[:60]!r}…, which tells no problem from another; "
            "give a file with each problem's own text as `statement`"
        )
    return exams


def _decide(pair: Pair | None) -> Decision:
    if pair is None:
        return KEEP
    share = f"{100 * pair.containment:.0f}% of what tells"
    return drop("contaminated", f"{pair.exam} of {pair.set}: {pair.why}, {share}", pair=asdict(pair))


@dataclass(frozen=True, slots=True)
class Document:
    """A text's `tokens`, hashed, with one sign for all numbers; its 13-grams in order, with that sign (`grams`) and with the numbers (`exact`); those that tell, sorted."""

    tokens: Hashes
    grams: Hashes
    exact: Hashes
    telling: Hashes


def _document(text: str) -> Document:
    tokens = pattern(text)
    exact = runs(token_hashes(tokens), GRAM)
    tokens = without_numbers(tokens)
    hashes = token_hashes(tokens)
    grams = runs(hashes, GRAM)
    named = np.cumsum([0, *(token not in (PLACEHOLDER, "#") for token in tokens)])
    telling = np.unique(grams[named[GRAM:] - named[:-GRAM] >= LEAST_WORDS]) if len(grams) else grams
    return Document(hashes, grams, exact, telling)


def _short_runs(text: Document) -> Hashes:
    return np.unique(runs(text.tokens, SHORT_RUN)) if len(text.tokens) >= LEAST_SCATTERED else text.tokens[:0]


def _by_hash(owned: Sequence[Hashes]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """All hashes, sorted, and of each whose it is."""
    every = np.concatenate([np.empty(0, dtype=np.uint64), *owned])
    order = np.argsort(every, kind="stable")
    return every[order], np.repeat(np.arange(len(owned)), [len(one) for one in owned])[order]


def _around(values: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """For each token the largest of the `values`, one for each run of `size` tokens in order, of the runs that hold it."""
    largest: npt.NDArray[Any] = np.lib.stride_tricks.sliding_window_view(np.pad(values, size - 1), size).max(axis=1)
    return largest


def _weight(counts: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What a 13-gram weighs that so many problems share."""
    return 1 / np.maximum(1.0, counts - 1.0) ** 2


def _looked_up(grams: Hashes, known: Hashes, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each 13-gram its count, of those that are `known`, sorted; 0 for others."""
    if not len(known):
        return np.zeros(len(grams), np.int64)
    places = np.minimum(np.searchsorted(known, grams), len(known) - 1)
    return np.where(known[places] == grams, counts[places], 0)


class _Sharers:
    """How many problems share a 13-gram, of evaluation sets and training alike. `firsts` are the places of the first text of each evaluation text's row."""

    def __init__(self, exams: Sequence[Document], own: Sequence[Document], firsts: Sequence[int]) -> None:
        tellings: dict[int, list[Hashes]] = defaultdict(list)
        known = distinct([text.tokens for text in (*exams, *own)])
        for place, text in enumerate((*exams, *own)):
            tellings[known[firsts[place] if place < len(exams) else place]].append(text.telling)
        every = {problem: np.unique(np.concatenate(told)) for problem, told in tellings.items()}
        grams, holders = _by_hash(list(every.values()))
        self._owners = np.array(list(every), np.int64)[holders]
        self._values, self._starts, self._counts = np.unique(grams, return_index=True, return_counts=True)
        self._exams, self._problems = len(exams), len(exams) + len(own)

    def of_all(self, grams: Hashes) -> npt.NDArray[np.int64]:
        """How many problems share each 13-gram; 0 for one that tells nothing."""
        return _looked_up(grams, self._values, self._counts)

    def of_exam(self, exam: Document) -> npt.NDArray[np.int64]:
        """The same for what tells in an evaluation problem, where training problems that have most of it count as one: they are tellings of it.

        What several evaluation problems share is their frame and makes no telling.
        """
        if not len(exam.telling):
            return np.empty(0, np.int64)
        places = np.searchsorted(self._values, exam.telling)
        counts = self._counts[places]
        rows = np.repeat(np.arange(len(places)), counts)
        owners = self._owners[
            np.arange(len(rows)) + np.repeat(self._starts[places] - np.cumsum(counts) + counts, counts)
        ]
        of_training = owners >= self._exams
        weights = 1 / np.bincount(rows[~of_training], minlength=len(places)) ** 2.0
        shares = np.bincount(owners, weights[rows], self._problems) / weights.sum()
        telling = of_training & (shares >= TELLING)[owners] & (np.bincount(owners) >= LONG)[owners]
        tellings = np.bincount(rows[telling], minlength=len(places))
        return counts - np.maximum(0, tellings - 1)


def _covered(one: Document, other: Document, counts: npt.NDArray[np.int64]) -> float:
    """The share of what tells in `one` that lies in 13-grams of `other`; with the very numbers, unless nearly all of it does.

    So many problems share each 13-gram of `one`, 0 where it tells nothing; a token weighs as the commonest 13-gram around it: copies of a leak that are each
    edited elsewhere make all of it common alike, and a frame of many problems makes the frame common alone.
    """
    found = among(one.grams, other.telling)
    if not found.any():
        return 0.0
    most_T = _around(counts, GRAM)
    weights_T = np.where(most_T > 0, _weight(most_T), 0.0)
    for held in (found, found & among(one.exact, np.sort(other.exact))):
        share = float(weights_T[_around(held, GRAM)].sum() / weights_T.sum())
        if share >= WHOLE:
            break
    return share


def _scattered(one: Document, other: Document) -> float:
    """The share of `one` that lies in short runs of `other`, where that is all of it but for scattered edits; else 0."""
    size = len(one.tokens)
    if size < LEAST_SCATTERED:
        return 0.0
    lacks = ~_around(among(runs(one.tokens, SHORT), np.unique(runs(other.tokens, SHORT))), SHORT)
    gaps = np.diff(np.flatnonzero(np.diff(lacks.astype(np.int8), prepend=0, append=0)))[::2]
    return float(1 - gaps.sum() / size) if (gaps**2).sum() <= MOST_SCATTERED * size else 0.0


def distinct(hashed: Sequence[Hashes]) -> list[int]:
    """For each text, as hashes of its tokens, the number of the first text that tells the same problem: its own, where it is the first to do so."""
    known: list[int] = []
    shingles: dict[int, Hashes] = {}
    by_hash: dict[int, list[int]] = defaultdict(list)
    for number, hashes in enumerate(hashed):
        own = np.unique(runs(hashes, SHINGLE))
        sketch = own[:SKETCH].tolist()
        near = Counter(itertools.chain.from_iterable(map(by_hash.__getitem__, sketch))).most_common(MOST_ALIKE)
        least = min(SHARED_SKETCH, len(own))
        alike = (one for one, count in near if count >= least and jaccard(own, shingles[one]) >= SAME_PROBLEM)
        known.append(next(alike, number))
        if known[-1] == number:
            shingles[number] = own
            for key in sketch:
                if len(by_hash[key]) < MOST_CANDIDATES:
                    by_hash[key].append(number)
    return known


def _names(given: Iterable[str], functions: Iterable[str]) -> list[str]:
    """Names in one spelling with their kind: `id` as given, `slug` of titles, slugs and addresses, `function` where it is distinctive."""
    given = tuple(given)
    found = [f"id {name.strip().lower()}" for name in given if name.strip()]
    slugs = (title.rstrip("/").rpartition("/")[2] if "://" in title else title for title in given)
    slugs = (re.sub(r"[^a-z0-9]+", "-", slug.lower()).strip("-") for slug in slugs)
    found += [f"slug {slug}" for slug in slugs if slug.count("-") >= 2]
    found += [f"function {name}" for name in functions if _DISTINCTIVE.fullmatch(name)]
    return found
