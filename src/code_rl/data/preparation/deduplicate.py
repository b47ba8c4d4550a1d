"""Stage `deduplicate`: drop a problem if an earlier one has the same numbers and nearly the same
8-grams.

MinHash (rensa) estimates the Jaccard similarity of the 8-grams. Problems with different answers to
one input are both kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from code_rl.data.preparation.decisions import Decision, OnItem, one_by_one
from code_rl.data.preparation.ngrams import ngrams, problem_text, words
from code_rl.data.preparation.workspace import Candidate, ProblemSummary, Workspace

PERMUTATIONS = 128
BANDS = 32
"""32 bands of 4 rows: a pair of similarity 0.8 is missed with a chance of 5e-8."""
MOST_CANDIDATES = 256
"""The most earlier problems compared with one, so that a family of thousands of similar statements
takes linear time."""


async def run_deduplicate(
    workspace: Workspace, candidates: Sequence[Candidate], on_item: OnItem
) -> list[Decision]:
    """Drop duplicates of earlier problems."""
    order = sorted(range(len(candidates)), key=lambda index: not candidates[index].entry.solutions)
    ordered = [
        candidates[index] for index in order
    ]  # a copy without a solution would not pass verify
    found = Deduplicator(workspace.config.similarity)
    decisions = one_by_one(ordered, on_item, lambda one: found.decide(one.entry))
    made = dict(zip(order, decisions, strict=True))
    return [made[index] for index in range(len(candidates))]


class Deduplicator:
    """Decides on entries in order, by comparison with those kept before."""

    def __init__(self, similarity: float) -> None:
        from rensa import RMinHashLSH

        self._similarity = similarity
        self._kept: list[tuple[ProblemSummary, tuple[str, ...], Any]] = []
        self._index = RMinHashLSH(threshold=similarity, num_perm=PERMUTATIONS, num_bands=BANDS)

    def decide(self, entry: ProblemSummary) -> Decision:
        """Keep the entry, or drop it as a duplicate of an earlier one."""
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

        text = words(problem_text(entry.statement, entry.starter_code))
        numbers = tuple(word for word in text if word.isdecimal())
        grams = ngrams(text)
        if not grams:
            return numbers, None
        signature = RMinHash(num_perm=PERMUTATIONS, seed=1)
        signature.update([" ".join(gram) for gram in grams])
        return numbers, signature


def _conflict(left: ProblemSummary, right: ProblemSummary) -> bool:
    """Return True if the two problems have different answers to one input."""
    answers = dict(left.test_hashes)
    return any(
        answers.get(given, expected) != expected for given, expected in right.test_hashes if given
    )
