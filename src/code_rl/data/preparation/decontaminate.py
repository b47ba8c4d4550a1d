"""Stage `decontaminate`: drops problems that overlap with evaluation sets.

A problem is dropped if it shares at least `containment` of an evaluation problem's 8-grams. 8-grams
that more than eight evaluation problems share are ignored: they are boilerplate of a contest or a
prompt, or the problem has many copies. With equal ids one shared 8-gram is enough.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from code_rl.data.preparation.decisions import Decision, OnItem, one_by_one
from code_rl.data.preparation.evaluation_sets import EvaluationProblem, evaluation_problems
from code_rl.data.preparation.ngrams import Gram, ngrams, problem_text, words
from code_rl.data.preparation.workspace import Candidate, ProblemSummary, Workspace

MOST_SHARERS = 8


@dataclass(frozen=True, slots=True)
class Pair:
    """A problem, the evaluation problem that it overlaps with most, and why. `share` is the shared
    part of the evaluation problem's 8-grams, `sets` are all sets that it overlaps with."""

    id: str
    sets: tuple[str, ...]
    exam: str
    why: str
    share: float


class Decontaminator:
    """Finds the evaluation problem that an entry overlaps with most. Equal texts are one evaluation
    problem."""

    def __init__(self, eval_problems: Iterable[EvaluationProblem], containment: float) -> None:
        self._containment = containment
        self._exams: list[EvaluationProblem] = []
        self._ids: list[set[str]] = []
        self._sets: list[set[str]] = []
        grams: list[set[Gram]] = []
        places: dict[tuple[str, ...], int] = {}
        for exam in eval_problems:
            text = words(exam.text)
            place = places.setdefault(tuple(text), len(places))
            if place == len(self._exams):
                self._exams.append(exam)
                self._ids.append(set())
                self._sets.append(set())
                grams.append(ngrams(text))
            self._ids[place].update(_names(exam.ids))
            self._sets[place].add(exam.set_name)
        sharers = Counter(gram for each in grams for gram in each)
        self._holders: dict[Gram, list[int]] = defaultdict(list)
        self._sizes = [0] * len(grams)
        for place, each in enumerate(grams):
            for gram in each:
                if sharers[gram] <= MOST_SHARERS:
                    self._holders[gram].append(place)
                    self._sizes[place] += 1

    def find(self, entry: ProblemSummary) -> Pair | None:
        """The evaluation problem that `entry` overlaps with most, or None."""
        text = problem_text(entry.statement, entry.starter_code)
        shared = Counter(
            place for gram in ngrams(words(text)) for place in self._holders.get(gram, ())
        )
        shares = {place: count / self._sizes[place] for place, count in shared.items()}
        called = _names(entry.called)
        found = [
            place
            for place, share in sorted(shares.items())
            if share >= self._containment or not called.isdisjoint(self._ids[place])
        ]
        if not found:
            return None
        most = max(found, key=shares.__getitem__)
        why = "shared text" if shares[most] >= self._containment else "the same id"
        sets = set().union(*(self._sets[place] for place in found))
        return Pair(
            entry.id, tuple(sorted(sets)), self._exams[most].id, why, round(shares[most], 3)
        )


def _names(ids: Iterable[str]) -> set[str]:
    """Return ids in lower case. A mere number does not count: every set numbers its rows."""
    return {name.strip().lower() for name in ids if not name.strip().isdecimal()}


async def run_decontaminate(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Drop problems that overlap with the named evaluation sets."""
    config = workspace.config
    eval_problems = [exam for name in config.evaluation_sets for exam in evaluation_problems(name)]
    found = Decontaminator(eval_problems, config.containment)
    return one_by_one(candidates, on_item, lambda one: _decide(found.find(one.entry)))


def _decide(pair: Pair | None) -> Decision:
    if pair is None:
        return Decision()
    share = f"{100 * pair.share:.0f}% of its text"
    detail = f"{pair.exam} of {', '.join(pair.sets)}: {pair.why}, {share}"
    return Decision("contaminated", detail, overlap=pair.sets)
