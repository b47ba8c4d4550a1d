"""What two texts share: their 13-grams, weighed by how many problems share each, and runs between scattered edits."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from code_rl.preparation.overlap.deduplicate import MOST_CANDIDATES, SHINGLE
from code_rl.preparation.overlap.text import (
    PLACEHOLDER,
    Hashes,
    among,
    jaccard,
    pattern,
    runs,
    token_hashes,
    without_numbers,
)

GRAM = 13
LEAST_WORDS = 5
"""A 13-gram with fewer words (the rest are numbers and names of variables) tells nothing: examples are full of them."""
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
SHORT = 3
LEAST_SCATTERED, MOST_SCATTERED = 64, 0.3
"""A text of so many tokens is told with scattered edits where the tokens in no run of three of the other text lie, in the mean over all tokens, in gaps of so
few: words edited here and there leave many gaps of one, another problem in the same frame leaves one of many."""
SHORT_RUN = 6


@dataclass(frozen=True, slots=True)
class Document:
    """A text's `tokens`, hashed, with one sign for all numbers; its 13-grams in order, with that sign (`grams`) and with the numbers (`exact`); those that tell, sorted."""

    tokens: Hashes
    grams: Hashes
    exact: Hashes
    telling: Hashes


def document(text: str) -> Document:
    """What is compared of a text."""
    tokens = pattern(text)
    exact = runs(token_hashes(tokens), GRAM)
    tokens = without_numbers(tokens)
    hashes = token_hashes(tokens)
    grams = runs(hashes, GRAM)
    named = np.cumsum([0, *(token not in (PLACEHOLDER, "#") for token in tokens)])
    telling = np.unique(grams[named[GRAM:] - named[:-GRAM] >= LEAST_WORDS]) if len(grams) else grams
    return Document(hashes, grams, exact, telling)


def short_runs(text: Document) -> Hashes:
    """The distinct runs of six tokens of a text that is long enough for scattered edits."""
    return np.unique(runs(text.tokens, SHORT_RUN)) if len(text.tokens) >= LEAST_SCATTERED else text.tokens[:0]


def by_hash(owned: Sequence[Hashes]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """All hashes, sorted, and of each whose it is."""
    every = np.concatenate([np.empty(0, dtype=np.uint64), *owned])
    order = np.argsort(every, kind="stable")
    return every[order], np.repeat(np.arange(len(owned)), [len(one) for one in owned])[order]


def _around(values: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """For each token the largest of the `values`, one for each run of `size` tokens in order, of the runs that hold it."""
    largest: npt.NDArray[Any] = np.lib.stride_tricks.sliding_window_view(np.pad(values, size - 1), size).max(axis=1)
    return largest


def weight(counts: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """What a 13-gram weighs that so many problems share."""
    return 1 / np.maximum(1.0, counts - 1.0) ** 2


def looked_up(grams: Hashes, known: Hashes, counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each 13-gram its count, of those that are `known`, sorted; 0 for others."""
    if not len(known):
        return np.zeros(len(grams), np.int64)
    places = np.minimum(np.searchsorted(known, grams), len(known) - 1)
    return np.where(known[places] == grams, counts[places], 0)


class Sharers:
    """How many problems share a 13-gram, of evaluation sets and training alike. `firsts` are the places of the first text of each evaluation text's row."""

    def __init__(self, exams: Sequence[Document], own: Sequence[Document], firsts: Sequence[int]) -> None:
        tellings: dict[int, list[Hashes]] = defaultdict(list)
        self.problems = distinct([*exams, *own], firsts)
        for problem, text in zip(self.problems, (*exams, *own), strict=True):
            tellings[problem].append(text.telling)
        every = {problem: np.unique(np.concatenate(told)) for problem, told in tellings.items()}
        grams, holders = by_hash(list(every.values()))
        self._owners = np.array(list(every), np.int64)[holders]
        self._values, self._starts, self._counts = np.unique(grams, return_index=True, return_counts=True)
        self._exams, self._problems = len(exams), len(exams) + len(own)

    def of_all(self, grams: Hashes) -> npt.NDArray[np.int64]:
        """How many problems share each 13-gram; 0 for one that tells nothing."""
        return looked_up(grams, self._values, self._counts)

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


def covered(one: Document, other: Document, counts: npt.NDArray[np.int64]) -> float:
    """The share of what tells in `one` that lies in 13-grams of `other`; with the very numbers, unless nearly all of it does.

    So many problems share each 13-gram of `one`, 0 where it tells nothing; a token weighs as the commonest 13-gram around it: copies of a leak that are each
    edited elsewhere make all of it common alike, and a frame of many problems makes the frame common alone.
    """
    found = among(one.grams, other.telling)
    if not found.any():
        return 0.0
    most_T = _around(counts, GRAM)
    weights_T = np.where(most_T > 0, weight(most_T), 0.0)
    for held in (found, found & among(one.exact, np.sort(other.exact))):
        share = float(weights_T[_around(held, GRAM)].sum() / weights_T.sum())
        if share >= WHOLE:
            break
    return share


def scattered(one: Document, other: Document) -> float:
    """The share of `one` that lies in short runs of `other`, where that is all of it but for scattered edits; else 0."""
    size = len(one.tokens)
    if size < LEAST_SCATTERED:
        return 0.0
    lacks = ~_around(among(runs(one.tokens, SHORT), np.unique(runs(other.tokens, SHORT))), SHORT)
    gaps = np.diff(np.flatnonzero(np.diff(lacks.astype(np.int8), prepend=0, append=0)))[::2]
    return float(1 - gaps.sum() / size) if (gaps**2).sum() <= MOST_SCATTERED * size else 0.0


def distinct(texts: Sequence[Document], firsts: Sequence[int]) -> list[int]:
    """For each text the number of the problem that it tells: of the first text that tells the same one.

    The first of them are texts of evaluation sets, each of the problem of the text at its place in `firsts`. Of those, copies with scattered edits tell one problem
    too: as no other text decides whether two do, copies of an evaluation problem take no weight from it, however many there are and in whatever order.
    """
    known = list(range(len(texts)))

    def problem(number: int) -> int:
        while known[number] != number:
            number = known[number]
        return number

    shingles: dict[int, Hashes] = {}
    holders: dict[int, list[int]] = defaultdict(list)
    for number, text in enumerate(texts):
        of_exams = number < len(firsts)
        if of_exams and firsts[number] != number:
            known[number] = firsts[number]
            continue
        own = np.unique(runs(text.tokens, SHINGLE))
        sketch = own[:SKETCH].tolist()
        near = Counter(itertools.chain.from_iterable(map(holders.__getitem__, sketch))).most_common(MOST_ALIKE)
        for one, count in near:
            if count < min(SHARED_SKETCH, len(own)) or problem(one) == problem(number):
                continue
            other = texts[one]
            if jaccard(own, shingles[one]) >= SAME_PROBLEM or (
                of_exams and (scattered(other, text) or scattered(text, other))
            ):
                first, last = sorted((problem(one), problem(number)))
                known[last] = first
                if not of_exams:
                    break
        if of_exams or known[number] == number:
            shingles[number] = own
            for key in sketch:
                if len(holders[key]) < MOST_CANDIDATES:
                    holders[key].append(number)
    return [problem(number) for number in range(len(texts))]
