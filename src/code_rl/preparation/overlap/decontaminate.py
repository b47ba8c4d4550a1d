"""Stage `decontaminate`: problems that overlap with evaluation sets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from code_rl.preparation.bench import Bench, Entry, Survivor
from code_rl.preparation.ledger import KEEP, Decision, OnItem, content_key, drop
from code_rl.preparation.overlap.deduplicate import in_series
from code_rl.preparation.overlap.evaluation_sets import (
    CERTAIN,
    EvaluationProblem,
    evaluation_problems,
    evaluation_set_hash,
    names_of,
)
from code_rl.preparation.overlap.sharing import (
    WHOLE,
    Document,
    Sharers,
    by_hash,
    covered,
    document,
    looked_up,
    scattered,
    short_runs,
    weight,
)
from code_rl.preparation.overlap.text import Hashes, among, problem_text, runs

LEAST_RUN = 5
"""An evaluation problem of fewer tokens is found only where it is the whole text."""
EQUAL = 0.95
"""What parts of a series share less of are different problems: I is not II."""
LEAST_LIKE = 0.2
"""Where edits stand too close for any 13-gram, an evaluation problem is looked at with which a text shares so many runs of six tokens, for each token that it has."""
MOST_EXAMS = 8
"""Evaluation problems looked at closely for one text."""
NAME_CONTAINMENT = 0.3
"""Any other shared name needs this much shared text beside it."""
ID_WORDS, SLUG_WORDS = 0.1, 0.45
"""A name the world over needs so many of the words that tell: more where it is made of words, and may be another problem's title."""
MOST_NAMESAKES = 8
"""What more problems of evaluation sets are called by is the name of a set."""


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
        own = [document(problem_text(entry.statement, entry.starter_code)) for entry in entries]
        self._texts = [document(exam.text) for exam in self._exams]
        self._sharers = Sharers(self._texts, own, [places[told] for told in first.values()])
        self._counts = list(map(self._sharers.of_exam, self._texts))
        self._problems = np.array(self._sharers.problems, np.int64)
        told_by: dict[int, list[Hashes]] = defaultdict(list)
        for problem, text in zip(self._sharers.problems, (*self._texts, *own), strict=True):
            told_by[problem].append(text.tokens)
        each = [np.unique(np.concatenate(tokens)) for tokens in told_by.values()]
        self._words, holders = np.unique(np.concatenate([np.empty(0, np.uint64), *each]), return_counts=True)
        self._rarity = np.log((len(each) + 1) / holders)
        self._own = {entry.digest: text for entry, text in zip(entries, own, strict=True)}
        self._by_gram = by_hash([text.telling for text in self._texts])
        self._sizes = np.array([max(1, len(text.tokens)) for text in self._texts])
        self._by_short = by_hash([short_runs(text) for text in self._texts])
        named: dict[str, list[int]] = defaultdict(list)
        short: dict[int, dict[int, int]] = defaultdict(dict)
        for number, (exam, text) in enumerate(zip(self._exams, self._texts, strict=True)):
            for name in names_of(exam.names, exam.functions):
                named[name].append(number)
            size = len(text.tokens)
            if size and not len(text.telling):
                short[size].setdefault(int(runs(text.tokens, size)[0]), number)
        self._named = {name: held for name, held in named.items() if len(set(self._problems[held])) <= MOST_NAMESAKES}
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
        for name in names_of(entry.called, (entry.fn_name,) if entry.fn_name else ()):
            least = SLUG_WORDS if name.startswith("slug") else ID_WORDS
            for number in self._named.get(name, ()):
                share = shares.get(number, 0.0)
                certain = CERTAIN.fullmatch(name) and self._common(own, self._texts[number]) >= least
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
        total_E = self._total(self._by_gram, own.grams, weight(self._sharers.of_all(own.grams)))
        near = self._first(total_E, 0.0)
        short = short_runs(own)
        likest = self._total(self._by_short, short, np.ones(len(short))) / self._sizes
        return [*dict.fromkeys(near + self._first(likest, LEAST_LIKE))]

    def _first(self, found_E: npt.NDArray[np.float64], least: float) -> list[int]:
        """The texts of which most was found, above `least`, of so many evaluation problems as are looked at."""
        order = [int(number) for number in np.argsort(-found_E, kind="stable") if found_E[number] > least]
        problems = list(dict.fromkeys(self._problems[order].tolist()))[:MOST_EXAMS]
        return [number for number in order if self._problems[number] in problems]

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
        in_exam = looked_up(own.grams, exam.telling, counts)
        part = covered(own, exam, np.where(in_exam > 0, in_exam, self._sharers.of_all(own.grams)))
        share = max(covered(exam, own, looked_up(exam.grams, exam.telling, counts)), part if part >= WHOLE else 0.0)
        if in_series(called, self._exams[number].names):  # another part of a series is another problem
            return share if share >= EQUAL else 0.0
        return max(share, scattered(exam, own), scattered(own, exam)) if share < self._containment else share

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
            exams = [exam for name in sets for exam in evaluation_problems(name)]
            found = Decontaminator(exams, entries, bench.config.containment)
            decisions.one_by_one(lambda one: _decide(found.find(one.entry)))
        return decisions.made


def _decide(pair: Pair | None) -> Decision:
    if pair is None:
        return KEEP
    share = f"{100 * pair.containment:.0f}% of what tells"
    return drop("contaminated", f"{pair.exam} of {pair.set}: {pair.why}, {share}", pair=asdict(pair))
