r"""Stages `deduplicate` and `decontaminate`: drop copies of earlier problems, and problems that
overlap with evaluation sets.

One measure of similarity serves both: the 8-grams of words that two texts share. Words are the
matches of `[a-z]+|\d+` in the lower-cased text, letters of other alphabets included. Layout, markup
and punctuation do not count; names and numbers do. A text of fewer than eight words is one 8-gram.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from code_rl.data.dataset import Source
from code_rl.data.load import given_as
from code_rl.data.preparation.normalise import open_source
from code_rl.data.preparation.workspace import (
    Candidate,
    Decision,
    OnItem,
    ProblemSummary,
    Workspace,
    names_in,
    one_by_one,
    problem_text,
)
from code_rl.util.errors import DataError

Gram = tuple[str, ...]
SIZE = 8
_WORD = re.compile(r"[^\W\d_]+|\d+")
PERMUTATIONS = 128
BANDS = 32
"""32 bands of 4 rows: a pair of similarity 0.8 is missed with a chance of 5e-8."""
MOST_CANDIDATES = 256
"""The most earlier problems compared with one, so that a family of thousands of similar statements
takes linear time."""
MOST_SHARERS = 8
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


def words(text: str) -> list[str]:
    """Return the words of a text in order, in lower case: runs of letters, and runs of digits."""
    return _WORD.findall(text.lower())


def ngrams(words: Sequence[str]) -> set[Gram]:
    """Return the distinct 8-grams of words: one of the whole text if it has fewer words, none
    without words."""
    if len(words) < SIZE:
        return {tuple(words)} if words else set()
    return set(zip(*(words[start:] for start in range(SIZE)), strict=False))


async def run_deduplicate(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Return a decision on each candidate, in their order: duplicates of earlier problems are
    dropped. A copy without a solution counts as later: it would not pass `verify`."""
    order = sorted(range(len(candidates)), key=lambda index: not candidates[index].entry.solutions)
    found = Deduplicator(workspace.config.similarity)
    ordered = [candidates[index] for index in order]
    decisions = one_by_one(ordered, on_item, lambda one: found.decide(one.entry))
    made = dict(zip(order, decisions, strict=True))
    return [made[index] for index in range(len(candidates))]


class Deduplicator:
    """Decides on entries in order. One is dropped if an earlier one has the same numbers and nearly
    the same 8-grams, by their Jaccard similarity as MinHash (rensa) estimates it.

    Problems with different answers to one input are both kept.
    """

    def __init__(self, similarity: float) -> None:
        """Begin without entries. `similarity` is the least Jaccard similarity of a duplicate, above
        0 to 1."""
        from rensa import RMinHashLSH

        self._similarity = similarity
        self._kept: list[tuple[ProblemSummary, tuple[str, ...], Any]] = []
        self._index = RMinHashLSH(threshold=similarity, num_perm=PERMUTATIONS, num_bands=BANDS)

    def decide(self, entry: ProblemSummary) -> Decision:
        """Keep the entry, or drop it as a duplicate of an earlier one. One that is kept is compared
        with later ones, so the order of calls matters."""
        numbers, signature = self._sketch(entry)
        near = sorted(self._index.query(signature)) if signature is not None else []
        alike = (self._kept[place] for place in near if self._kept[place][1] == numbers)
        for other, _, theirs in islice(alike, MOST_CANDIDATES):
            similarity = round(signature.jaccard(theirs), 3)
            if similarity >= self._similarity and not _conflict(entry, other):
                detail = f"of {other.id}: statements about {similarity:.2f} alike"
                return Decision("duplicate", detail)
        if signature is not None:
            self._index.insert(len(self._kept), signature)
        self._kept.append((entry, numbers, signature))
        return Decision()

    def _sketch(self, entry: ProblemSummary) -> tuple[tuple[str, ...], Any]:
        """Return the numbers of the entry's text in order, and the MinHash of its 8-grams (None for
        a text without words)."""
        from rensa import RMinHash

        text = words(entry.text)
        numbers = tuple(word for word in text if word.isdecimal())
        if not text:
            return numbers, None
        signature = RMinHash(num_perm=PERMUTATIONS, seed=1)
        signature.update([" ".join(gram) for gram in ngrams(text)])
        return numbers, signature


def _conflict(left: ProblemSummary, right: ProblemSummary) -> bool:
    """Return True if the two problems expect different outputs for one input, among the tests that
    their summaries hash."""
    answers = dict(left.test_hashes)
    return any(
        answers.get(given, expected) != expected for given, expected in right.test_hashes if given
    )


@dataclass(frozen=True, slots=True)
class EvaluationProblem:
    """One problem of an evaluation set. `ids` are its ids, slugs and titles as given."""

    set_name: str
    id: str
    text: str
    ids: tuple[str, ...]


def evaluation_problems(name: str) -> list[EvaluationProblem]:
    """Return the problems of the set `name`, which is any `dataset=`, in its test split if it has
    one. Files may be downloaded; no solution runs.

    Raises DataError if a row cannot be read or has no statement, ConfigError if the set does not
    exist.
    """
    with given_as("decontaminate"):
        sources = open_source(name, "test").sources
    return [problem for source in sources for problem in _of_source(name, source)]


def _of_source(name: str, source: Source) -> list[EvaluationProblem]:
    """Return the problems of a part of the evaluation set `name`, in order. Raises DataError if
    rows have no statement, or if most have the same one."""
    found = [_problem(name, row, where) for where, row in source.rows()]
    unread = [problem.id for problem in found if not problem.text.strip()]
    if unread:
        raise DataError(
            f"decontaminate={name}: {len(unread)} of {len(found)} rows have no statement "
            f"({', '.join(unread[:3])}); give it as one of {', '.join(STATEMENT_FIELDS)}"
        )
    text, count = Counter(problem.text for problem in found).most_common(1)[0]
    if len(found) >= LEAST_ROWS and 2 * count > len(found):
        raise DataError(
            f"decontaminate={name}: {count} of {len(found)} rows have one text, {text[:60]!r}…, "
            "which tells no problem from another; give each problem's own text as `statement`"
        )
    return found


def _problem(name: str, row: Mapping[str, Any] | DataError, where: str) -> EvaluationProblem:
    """Return the ids and the text to compare of an evaluation set's raw row; `where` is its id if
    it has none. Raises the row's DataError if it could not be read."""
    if isinstance(row, DataError):
        raise row
    meta = row.get("meta")
    ids = names_in({**meta, **row} if isinstance(meta, Mapping) else row)
    told = "\n".join(told for field in STATEMENT_FIELDS for told in _texts_in(row.get(field)))
    return EvaluationProblem(
        name, ids[0] if ids else where, problem_text(told, row.get("starter_code")), ids
    )


def _texts_in(value: object) -> Iterator[str]:
    """Yield the texts in a field: one text, or the turns of a chat and their parts, without answers
    of an assistant."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts_in(one)
    elif isinstance(value, Mapping) and value.get("role", value.get("from")) not in NO_TASK:
        for field in ("content", "text", "value"):
            yield from _texts_in(value.get(field))


async def run_decontaminate(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Return a decision on each candidate, in order: problems that overlap with the named
    evaluation sets are dropped. Raises DataError and ConfigError as `evaluation_problems` does."""
    config = workspace.config
    eval_problems = [
        problem for name in config.evaluation_sets for problem in evaluation_problems(name)
    ]
    found = Decontaminator(eval_problems, config.containment)
    return one_by_one(candidates, on_item, lambda one: _contaminated(found.find(one.entry)))


def _contaminated(pair: Pair | None) -> Decision:
    """Return the decision about a problem and the evaluation problem that it resembles (None:
    none)."""
    if pair is None:
        return Decision()
    share = f"{100 * pair.share:.0f}% of its text"
    detail = f"{pair.eval_id} of {', '.join(pair.sets)}: {pair.why}, {share}"
    return Decision("contaminated", detail, overlap=pair.sets)


@dataclass(frozen=True, slots=True)
class Pair:
    """A problem, the evaluation problem that it overlaps with most, and why. `share` is the shared
    part of the evaluation problem's 8-grams, `sets` are all sets that it overlaps with."""

    id: str
    sets: tuple[str, ...]
    eval_id: str
    why: str
    share: float


@dataclass(slots=True)
class _EvalText:
    """The evaluation problems that have one text."""

    id: str
    grams: set[Gram]
    names: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)


class Decontaminator:
    """Finds the evaluation problem that an entry overlaps with most.

    They overlap if the entry has at least `containment` of the evaluation problem's 8-grams.
    8-grams that more than eight evaluation problems share are ignored: they are boilerplate of a
    contest or a prompt, or the problem has many copies. With equal ids one shared 8-gram is enough.
    """

    def __init__(self, eval_problems: Iterable[EvaluationProblem], containment: float) -> None:
        """Index the evaluation problems; equal texts count once. `containment` is a share, above 0
        to 1."""
        self._containment = containment
        eval_texts: dict[Gram, _EvalText] = {}
        for problem in eval_problems:
            text = tuple(words(problem.text))
            eval_text = eval_texts.setdefault(text, _EvalText(problem.id, ngrams(text)))
            eval_text.names |= _names(problem.ids)
            eval_text.sets.add(problem.set_name)
        self._eval_texts = list(eval_texts.values())
        sharers = Counter(gram for eval_text in self._eval_texts for gram in eval_text.grams)
        self._holders: dict[Gram, list[int]] = defaultdict(list)
        for number, eval_text in enumerate(self._eval_texts):
            eval_text.grams = {gram for gram in eval_text.grams if sharers[gram] <= MOST_SHARERS}
            for gram in eval_text.grams:
                self._holders[gram].append(number)

    def find(self, entry: ProblemSummary) -> Pair | None:
        """Return the evaluation problem that `entry` overlaps with most, and all sets that it
        overlaps with, or None. Nothing is remembered."""
        shared = Counter(
            number for gram in ngrams(words(entry.text)) for number in self._holders.get(gram, ())
        )
        shares = {
            number: n / len(self._eval_texts[number].grams) for number, n in sorted(shared.items())
        }
        called = _names(entry.called)
        found = [
            number
            for number, share in shares.items()
            if share >= self._containment or not called.isdisjoint(self._eval_texts[number].names)
        ]
        if not found:
            return None
        most = max(found, key=shares.__getitem__)
        why = "shared text" if shares[most] >= self._containment else "the same id"
        sets = set().union(*(self._eval_texts[number].sets for number in found))
        return Pair(
            entry.id, tuple(sorted(sets)), self._eval_texts[most].id, why, round(shares[most], 3)
        )


def _names(ids: Iterable[str]) -> set[str]:
    """Return ids in lower case. A mere number does not count: every set numbers its rows."""
    return {name.strip().lower() for name in ids if not name.strip().isdecimal()}
