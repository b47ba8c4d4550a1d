"""New inputs from a problem's own: small changes that keep what all of its inputs have in common.

An input is read as nested values: the arguments of a call, or the lines of a text, each a list of its tokens (`t` and then as many blocks of lines are
seen as such). What holds in every input seen is taken for a rule: numbers, lengths and letters within their ranges, a count that is the length of a list,
values that a number bounds, and what `traits` finds of order, repeats, parity and the like. Other conditions no change keeps: `conditioned` names problems that have some.
That a new input is valid is then for solutions to say.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from code_rl.preparation.verification.traits import CHANCE, Conditions, children_of
from code_rl.problems.values import LinkedList

Path = tuple[Any, ...]
"""Where a value stands: indices. In a `Key` the elements of a list of no fixed length are all `ANY`."""
Key = tuple[Any, ...]
ANY = "*"
RECORD = 6
"""A list that is never longer, and always of one length, is a record: its places mean different things."""
MAX_MEASURES = 24
MAX_CHANGES = 3
TRIES = 30
_SAID = re.compile(
    r"\b(?:distinct|unique|different|permutation|no two|duplicates?|set of|sorted|ascending|descending|(?:in|de|non-?in|non-?de)creas\w+|in order)\b",
    re.IGNORECASE,
)
"""Words of a statement that make a rule of what is true of every input, be it by chance."""
_CONDITIONS = re.compile(
    r"\b(?:exactly one|only one|one solution|uniquely?|guarante\w+|ensure(?:d|s)?(?! that when the)|assum\w+|promised?|known (?:that|to)|always|never|must be|valid|"
    r"correct(?! (?:\w+ )?(?:program|code|function|answer|solution|output|result|order))|legal|proper|regular|"
    r"well-formed|balanced|brackets?|parenthes[ie]s|connected|trees?|forests?|graphs?|edges?|vertex|vertices|parents?|roots?|cycles?|acyclic|dag|overlap\w*|"
    r"disjoint|intersect\w*|nested|"
    r"appears? (?:exactly |only |at least )?(?:once|twice|thrice|\w+ times)|except(?: for)? (?:one|two)|shuffl\w*|rearrang\w+|majority|(?:more|less) than half|"
    r"polygons?|rectang\w+|convex|dates?|days?|months?|years?|clock|expression|among them|such an?)\b",
    re.IGNORECASE,
)
"""Words of a statement that name a condition on its inputs which is not among those that a change keeps."""
_PROPERTIES = re.compile(
    r"\b(?:palindrom\w*|primes?|coprime|divis\w+|multiples? of|powers? of|permutations?|odd|even|somewhere|(?:stands?|occurs?|lies|contained|included|present) (?:in|among)|triang\w+|magic|symmetric|roman|binary|hexadecimal|equation|satisf\w+|exists?|possible)\b",
    re.IGNORECASE,
)
"""Words that name such a condition, unless they stand in what is asked for."""
_ASKED = re.compile(
    r"\b(?:check\w*|determines?|decide|whether|find|counts?|prints?|outputs?|returns?|comput\w+|calculat\w+|sums? of|number of|how many)\b"
    r"(?:(?!\n|\b(?:where|given|(?<!true )(?<!false )if|with|such|that|modulo)\b)[^.;:!?])*",
    re.IGNORECASE,
)
"""What is asked for, to the end of its line or sentence, or to where it may begin to speak of what is given."""
_PLAIN = re.compile(r"[\w ]*|[-+]?\d*\.?\d+")
_INTEGER, _DECIMAL = re.compile(r"-?(?:0|[1-9]\d{0,17})"), re.compile(r"-?\d+\.\d+")


class Shape:
    """What the samples, nested values of one kind, have in common; words of `wording` make a condition of what chance might give."""

    def __init__(self, samples: Sequence[Sequence[Any]], wording: str = "") -> None:
        self.records: set[Key] = set()
        self._find_records([((), sample) for sample in samples])
        seen = [dict(self._by_key(sample)) for sample in samples]
        self.pool: dict[Key, list[Any]] = defaultdict(list)
        for key, values in itertools.chain.from_iterable(each.items() for each in seen):
            self.pool[key] += values
        self._kinds = {key: {type(value) for value in values} for key, values in self.pool.items()}
        self.ranges = {key: _spans(values) for key, values in self.pool.items()}
        self._letters = {key: _letters(values) for key, values in self.pool.items()}
        measured = [_measures(each) for each in seen]
        names = [name for name in measured[0] if all(name in each for each in measured)][:MAX_MEASURES] if seen else []
        lengths = [name for name in names if name[0] == "length"]
        scalars = [name for name in names if name[0] == "value"]
        pairs = [(a, b) for a in names for b in names if a != b and (a in scalars or b in scalars)]
        self._at_most = [(a, b) for a, b in pairs if all(each[a] <= each[b] for each in measured)]
        pairs = [(a, b) for a in (*scalars, *lengths) for b in lengths if a != b]
        self.equal = [(a, b) for a, b in pairs if all(each[a] == each[b] for each in measured)]
        self._seen, self._said = seen, bool(_SAID.search(wording))

    @cached_property
    def _conditions(self) -> Conditions:
        return Conditions(self._seen, math.inf if self._said else CHANCE)

    def admits(self, sample: Sequence[Any]) -> bool:
        """Whether every rule holds in `sample`."""
        found = dict(self._by_key(sample))
        for key, values in found.items():
            if key not in self.pool or not {type(value) for value in values} <= self._kinds[key]:
                return False
            for kind, (low, high) in _spans(values).items():
                if kind not in self.ranges[key] or low < self.ranges[key][kind][0] or high > self.ranges[key][kind][1]:
                    return False
            if not _letters(values) <= self._letters[key]:
                return False
        measures = _measures(found)
        holds = all(measures[a] <= measures[b] for a, b in self._at_most if a in measures and b in measures)
        holds = holds and all(measures.get(a) == measures.get(b) for a, b in self.equal)
        return holds and self._conditions.hold(found)

    def nodes(self, value: Any, path: Path = (), key: Key = ()) -> Iterator[tuple[Path, Key, Any]]:
        """Every value in a sample, with where it stands; the sample itself comes first."""
        yield path, key, value
        record = key in self.records
        for index, child in enumerate(children_of(value)):
            yield from self.nodes(child, (*path, index), (*key, index if record else ANY))

    def _by_key(self, sample: Sequence[Any]) -> Iterator[tuple[Key, list[Any]]]:
        nodes = sorted(self.nodes(sample), key=lambda node: repr(node[1]))
        for key, group in itertools.groupby(nodes, key=lambda node: node[1]):
            yield key, [value for _, _, value in group]

    def _find_records(self, values: list[tuple[Key, Any]]) -> None:
        by_key: dict[Key, list[Any]] = defaultdict(list)
        for key, value in values:
            by_key[key].append(value)
        for key, found in by_key.items():
            lengths = {len(children_of(value)) for value in found}
            if len(lengths) == 1 and (key == () or max(lengths) <= RECORD):
                self.records.add(key)
            places = [
                ((*key, i if key in self.records else ANY), c) for v in found for i, c in enumerate(children_of(v))
            ]
            if places:
                self._find_records(places)


def mutated(
    samples: Sequence[Sequence[Any]], count: int, rng: random.Random, wording: str = "", fixed: int = 0
) -> Iterator[list[Any]]:
    """Up to `count` different changed samples that keep the rules; the first `fixed` places of a sample stay. None is a sample given."""
    shape, known = Shape(samples, wording), {repr(list(sample)) for sample in samples}
    for _ in range(TRIES * count if samples else 0):
        sample: Any = list(rng.choice(samples))
        for _ in range(rng.randint(1, MAX_CHANGES)):
            sample = _changed(sample, shape, rng, fixed)
        if repr(sample) not in known and shape.admits(sample):
            known.add(repr(sample))
            count -= 1
            yield sample
        if not count:
            return


def mutated_texts(texts: Sequence[str], count: int, rng: random.Random, wording: str = "") -> Iterator[str]:
    """`mutated` for inputs on stdin."""
    lines, block = _read(texts)
    if block is None:
        if len({len(each) for each in lines}) > 1:
            lines = [[each[0], each[1:]] for each in lines if each]
            yield from (_text([first, *rest]) for first, rest in mutated(lines, count, rng, wording))
        else:
            yield from map(_text, mutated(lines, count, rng, wording))
        return
    most, known, shape = max(each[0][0] for each in lines), set(texts), Shape(lines, wording)
    fresh = list(mutated(lines, 4 * count, rng, wording, fixed=1))
    for _ in range(TRIES * count):
        size = rng.randint(1, min(most, 2 * max(1, len(fresh))))
        chosen = [rng.choice(fresh if fresh and rng.random() < 0.7 else lines)[1:] for _ in range(size)]
        text = _text([[size], *itertools.chain.from_iterable(chosen)])
        if text not in known and all(shape.admits([[size], *each]) for each in chosen):
            known.add(text)
            count -= 1
            yield text
        if not count:
            return


def conditioned(samples: Sequence[Any], wording: str) -> bool:
    """Whether inputs of this kind, texts or values, may have to meet conditions that no change keeps: words for them, marks in a text, a list of rows."""
    if _CONDITIONS.search(wording) or _PROPERTIES.search(_ASKED.sub(" ", wording)):
        return True
    given, block = _read(samples) if samples and isinstance(samples[0], str) else (samples, None)
    pool = Shape(given).pool
    rows = block == 1 or (block is None and len({len(each) for each in given}) > 1)
    rows = rows or any(key[-1:] == (ANY,) and any(map(children_of, values)) for key, values in pool.items())
    grids = any(key and isinstance(v, list) and list in map(type, v) for key, values in pool.items() for v in values)
    marks = any(isinstance(v, str) and not _PLAIN.fullmatch(v) for values in pool.values() for v in values)
    return rows or grids or marks


def _read(texts: Sequence[str]) -> tuple[list[list[Any]], int | None]:
    """Texts as lines of tokens; where they say how many cases follow, cases, each after that number, and how many lines a case has."""
    lines = [[_tokens(line) for line in text.splitlines()] for text in texts]
    block = _block(lines)
    if block is None:
        return lines, None
    return [[each[0], *each[i : i + block]] for each in lines for i in range(1, len(each), block)], block


def _tokens(line: str) -> Any:
    """A line as its tokens, integers as such; as text where single spaces do not say all of it."""
    words = line.split(" ")
    return line if "" in words[1:] or words != line.split() else [int(w) if _INTEGER.fullmatch(w) else w for w in words]


def _text(lines: Sequence[Any]) -> str:
    return "".join((line if isinstance(line, str) else " ".join(map(str, line))) + "\n" for line in lines)


def _block(inputs: Sequence[Sequence[Any]]) -> int | None:
    """How many lines a case has, where every input is a number on a line and then so many cases."""
    sizes = set()
    for lines in inputs:
        if not lines or len(lines[0]) != 1 or not isinstance(lines[0][0], int) or lines[0][0] < 1:
            return None
        size, rest = divmod(len(lines) - 1, lines[0][0])
        sizes.add(size if not rest else 0)
    return sizes.pop() if len(sizes) == 1 and 0 not in sizes else None


def _with_children(value: Any, children: list[Any]) -> Any:
    """`value` with other things in it. A dictionary keeps its keys."""
    if isinstance(value, dict):
        return dict(zip(value, children, strict=False))
    return LinkedList(tuple(children)) if isinstance(value, LinkedList) else type(value)(children)


def _replaced(value: Any, path: Path, new: Any) -> Any:
    if not path:
        return new
    children = list(children_of(value))
    children[path[0]] = _replaced(children[path[0]], path[1:], new)
    return _with_children(value, children)


def _changed(sample: Any, shape: Shape, rng: random.Random, fixed: int) -> Any:
    """`sample` with one value changed, and the lists and counts that go with it."""
    nodes = [node for node in shape.nodes(sample) if node[0] and node[0][0] >= fixed]
    by_key: dict[Key, list[tuple[Path, Key, Any]]] = defaultdict(list)
    for node in nodes:
        by_key[node[1]].append(node)
    if not by_key:
        return sample
    # A key, then a place: a long list does not hide a number beside it.
    path, key, value = rng.choice(by_key[rng.choice(list(by_key))])
    children = list(children_of(value))
    if children and key not in shape.records and not isinstance(value, dict) and rng.random() < 0.7:
        at, how = rng.randrange(len(children)), rng.choice(("drop", "again", "insert", "order", "alike"))
        tied = [b for a, b in shape.equal if a == ("length", key) and b[0] == "length"]
        together = [node for node in nodes if ("length", node[1]) in tied] if how in ("drop", "again") else []
        for where, _, each in ((path, key, value), *together):
            inside = list(children_of(each))
            sample = _replaced(sample, where, _with_children(each, _edited(inside, at, how, shape, (*key, ANY), rng)))
    else:
        sample = _replaced(sample, path, _another(value, key, shape, rng))
    for scalar, length in shape.equal:
        if scalar[0] == "value":
            long = [_size(node[2]) for node in shape.nodes(sample) if node[1] == length[1]]
            place = [node[0] for node in shape.nodes(sample) if node[1] == scalar[1]]
            if len(long) == len(place) == 1 and place[0][0] >= fixed:
                sample = _replaced(sample, place[0], long[0])
    return sample


def _edited(items: list[Any], at: int, how: str, shape: Shape, inside: Key, rng: random.Random) -> list[Any]:
    if not items or at >= len(items):
        return items
    if how == "drop":
        return items[:at] + items[at + 1 :]
    if how == "again":
        return items[: at + 1] + items[at:]
    if how == "insert":
        return [*items[:at], rng.choice(shape.pool.get(inside) or items), *items[at:]]
    if how == "alike":
        return [items[at]] * len(items)
    order = rng.choice(("shuffle", "reverse", "sort"))
    if order == "sort" and {type(item) for item in items} in ({int}, {str}, {float}):
        return sorted(items)
    return items[::-1] if order == "reverse" else rng.sample(items, len(items))


def _another(value: Any, key: Key, shape: Shape, rng: random.Random) -> Any:
    """Another value for one place: near, at an end of the range, in it, or one that is seen there."""
    seen = rng.choice(shape.pool.get(key) or [value])
    if isinstance(value, bool) or not isinstance(value, int | float | str) or rng.random() < 0.25:
        return (not value) if isinstance(value, bool) else seen
    if isinstance(value, str):
        return seen if _DECIMAL.fullmatch(value) else _respelled(value, shape.pool.get(key, [value]), rng)
    low, high = shape.ranges.get(key, {}).get("number", (value, value))
    if isinstance(value, float):
        return rng.choice((low, high, rng.uniform(low, high), round(rng.uniform(low, high), 1), -value))
    return rng.choice((low, high, value + 1, value - 1, 0, 1, rng.randint(int(low), int(high))))


def _respelled(text: str, pool: Sequence[Any], rng: random.Random) -> str:
    letters = sorted(_letters(pool)) or ["a"]
    at = rng.randrange(len(text) + 1)
    letter = rng.choice(letters)
    ways = (
        text[:at] + text[at + 1 :], text[:at] + letter + text[at:], text[:at] + letter + text[at + 1 :], text[::-1], letter * len(text), text + text,
        "".join(rng.sample(text, len(text))),
    )  # fmt: skip
    return rng.choice(ways)


def _letters(values: Sequence[Any]) -> set[str]:
    return set("".join(value for value in values if isinstance(value, str)))


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str) else len(children_of(value))


def _spans(values: Sequence[Any]) -> dict[str, tuple[float, float]]:
    """Ranges of the numbers among `values`, and of the lengths of the rest."""
    numbers = [v for v in values if isinstance(v, int | float)]
    lengths = [_size(v) for v in values if isinstance(v, str | list | tuple | dict | LinkedList)]
    return {kind: (min(found), max(found)) for kind, found in (("number", numbers), ("length", lengths)) if found}


def _measures(found: dict[Key, list[Any]]) -> dict[tuple[str, Key], float]:
    """The number at a key, or the largest of several, and the length of a single list or text."""
    measures: dict[tuple[str, Key], float] = {}
    for key, values in found.items():
        numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
        if numbers:
            measures["value" if len(values) == 1 and ANY not in key else "most", key] = max(numbers)
        if len(values) == 1 and isinstance(values[0], str | list | tuple | LinkedList):
            measures["length", key] = _size(values[0])
    return measures
