"""Test inputs for a spec: ordinary ones first (public), then edge cases that common mistakes get
wrong.

Edge cases: values at and next to the filter's threshold, as the filter sees them; no element left;
one element; duplicates; negative numbers; both ends of a range. A spec is rejected if its tests
would not notice a forgotten filter or map. Expected outputs come from the primitives' functions,
never from running source text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import eq
from typing import Any

from code_rl.data.builtin.specs import FUNCTION, WORD, Spec, apply
from code_rl.grading import CallTest, StdinTest, TestCase

CASES = 8
PUBLIC = 2
LOW, HIGH = -110, 130
PROBE = range(LOW, HIGH + 1)
ALPHABET = "abcdefghijklmnopqrst"


class DegenerateError(ValueError):
    """The spec makes no useful problem: its filter or its map changes no answer, or its answers
    hardly vary."""


def build_tests(spec: Spec, rng: random.Random) -> tuple[TestCase, ...]:
    """Return CASES tests, the first PUBLIC of them public, drawn with `rng`. Raises DegenerateError
    for a spec that makes no useful problem."""
    cases = list(_word_cases(spec, rng) if spec.source == WORD else _number_cases(spec, rng))
    answers = [apply(spec, items) for items in cases]
    unfiltered = (apply(spec, items, filtering=False) for items in cases)
    unmapped = (apply(spec, items, mapping=False) for items in cases)
    idle = all(map(eq, answers, unfiltered)) or (
        spec.map != "id" and all(map(eq, answers, unmapped))
    )
    if idle or len(set(map(str, answers))) < 3:
        raise DegenerateError(spec)
    pairs = enumerate(zip(cases, answers, strict=True))
    return tuple(_test(spec, items, answer, n < PUBLIC) for n, (items, answer) in pairs)


def _test(spec: Spec, items: Sequence[Any], answer: Any, public: bool) -> TestCase:
    """Return the test of a source's values: a call with a list for function problems, else stdin
    text and the printed answer. A list as answer is printed on one line."""
    if spec.source == FUNCTION:
        return CallTest((list(items),), answer, public=public)
    text = " ".join(map(str, answer)) if spec.returns_list else str(answer)
    return StdinTest(_stdin(spec.source, items), text + "\n", public)


def _stdin(source: str, items: Sequence[Any]) -> str:
    """Return the values as the input of a program, in the format of their source (a key of SOURCES,
    or `word`). The statement and the solution assume this format."""
    if source == "range":
        return f"{items[0]} {items[-1]}\n"
    if source in ("digits", WORD):
        return "".join(map(str, items)) + "\n"
    between = "\n" if source == "lines" else " "
    return f"{len(items)}\n{between.join(map(str, items))}\n"


@dataclass(frozen=True, slots=True)
class _Pool:
    """Possible elements, sorted by the filter's answer (after the map if that comes first)."""

    everything: Sequence[int]
    kept: list[int]
    dropped: list[int]
    hits: list[int]
    """Elements for which the filter sees its own threshold."""
    edge: list[int]
    """Elements for which the filter sees its threshold, a neighbor of it, or the negative of
    either."""


def _number_cases(spec: Spec, rng: random.Random) -> Iterator[list[int]]:
    """Yield eight inputs of numbers. Raises DegenerateError if the filter keeps all values or
    none."""
    pool = _sort_out(spec, range(1, 10) if spec.source == "digits" else PROBE)
    if not pool.kept or not pool.dropped:
        raise DegenerateError(spec)
    yield from (_range_cases if spec.source == "range" else _list_cases)(rng, pool)


def _sort_out(spec: Spec, everything: Sequence[int]) -> _Pool:
    """Divide the source's values by the filter: kept, dropped, at its threshold, and beside it. The
    last two are all kept values if there are none."""
    filt, mapping, _ = spec.parts
    fk, mk = spec.filter_const, spec.map_const
    threshold = fk if isinstance(fk, int) else 0
    seen = [mapping.fn(x, mk) for x in everything] if spec.map_first else everything
    passes = [filt.fn(y, fk) for y in seen]
    kept = [x for x, good in zip(everything, passes, strict=True) if good]
    dropped = [x for x, good in zip(everything, passes, strict=True) if not good]
    hits = [x for x, y in zip(everything, seen, strict=True) if y == threshold]
    edge = [x for x, y in zip(everything, seen, strict=True) if -1 <= abs(y) - threshold <= 1]
    return _Pool(everything, kept, dropped, hits or kept, edge or kept)


def _list_cases(rng: random.Random, pool: _Pool) -> Iterator[list[int]]:
    """Yield eight lists, drawn with `rng` in a fixed order, that mix values from all sides of the
    filter, duplicates included."""

    def mixed(*groups: tuple[Sequence[int], int]) -> list[int]:
        """Return random values of each group, as many as its number says, shuffled."""
        values = [rng.choice(group) for group, times in groups for _ in range(times)]
        rng.shuffle(values)
        return values

    kept, dropped, edge, hit = pool.kept, pool.dropped, pool.edge, rng.choice(pool.hits)
    yield mixed((pool.everything, 3), (kept, 2))
    yield mixed((pool.everything, 4), (kept, 1), (dropped, 1))
    yield mixed((dropped, 3))
    yield [hit]
    twice = mixed((kept, 3), (edge, 2))
    yield twice + twice[::-1]
    yield [hit, *mixed((edge, 2), (kept, 2), (dropped, 1)), hit]
    yield [*edge[:6], rng.choice(dropped), rng.choice(kept)]
    yield mixed((pool.everything, 5), (edge, 3), (kept, 2))


def _range_cases(rng: random.Random, pool: _Pool) -> Iterator[list[int]]:
    """Yield eight ranges of consecutive integers, drawn with `rng` in a fixed order, that begin or
    end at kept values and at the threshold."""

    def span(start: int, stop: int) -> list[int]:
        """Return the integers from the smaller to the larger bound, both included."""
        return list(range(min(start, stop), max(start, stop) + 1))

    kept, dropped, hit = pool.kept, pool.dropped, rng.choice(pool.hits)
    first, last = rng.choice(pool.everything), rng.choice(kept)
    yield span(first, first + rng.randint(5, 12))
    yield span(last - rng.randint(4, 9), last)
    yield [rng.choice(dropped)]
    yield [rng.choice(kept)]
    yield span(hit - 3, hit)
    yield span(hit, hit + rng.randint(2, 6))
    yield span(-rng.randint(1, 12), rng.choice(kept))
    yield span(max(kept) - rng.randint(3, 25), max(kept))


def _word_cases(spec: Spec, rng: random.Random) -> Iterator[str]:
    """Yield eight words of lowercase letters, drawn with `rng` in a fixed order, that mix kept and
    dropped letters and those of the spec's constants."""
    marked = "".join(const for const in spec.constants if isinstance(const, str)) or "ae"

    def word(length: int, *extra: str) -> str:
        """Return `length` random letters and the `extra` ones, shuffled."""
        letters = [rng.choice(ALPHABET) for _ in range(length)] + list(extra)
        rng.shuffle(letters)
        return "".join(letters)

    filt = spec.parts[0]
    dropped = [c for c in ALPHABET if not filt.fn(c, spec.filter_const)]
    kept = [c for c in ALPHABET if filt.fn(c, spec.filter_const)]
    yield word(6, *rng.choices(kept, k=2))
    yield word(8, *marked)
    yield word(0, *rng.choices(dropped, k=3))
    yield rng.choice(kept)
    yield word(5, *(marked * 3), *rng.choices(kept, k=3))
    twice = word(3, *rng.choices(kept, k=4), *marked)
    yield twice + twice
    yield word(4, *rng.choices(kept, k=8))
    yield word(12, *marked)
