"""Conditions on a problem's inputs that its own inputs show: bounds of traits in which all of them stay and chance would hardly keep them.

A trait is a number about the items of one value (of a list, the letters of a text, a number alone), or of two values that stand side by side in every
input. What the inputs' own values would have of it by chance is drawn: the same items in another order, items drawn again from them, items from
anywhere in their range.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from code_rl.problems.values import BinaryTree, LinkedList

Items = Sequence[Any]
Place = tuple[Any, ...]
CHANCE = 0.5
"""A rule that chance keeps about as often as not costs few new inputs: what seldom breaks seldom forbids."""
DRAWS, LOOKED_AT = 30, 12
"""Draws of each kind for a value, and values of a place that are looked at. No value alone says more than 1 / (DRAWS + 1) against chance."""
LARGEST = 1 << 63
"""Of larger numbers, and of those that are none, nothing is told."""
MAX_ALONE = 7
"""Places that hold one value an input, of which each two are compared."""

_ORDER: dict[str, Callable[[Items], float]] = {
    "falls": lambda v: sum(a > b for a, b in pairwise(v)),
    "rises": lambda v: sum(a < b for a, b in pairwise(v)),
    "levels": lambda v: sum(a == b for a, b in pairwise(v)),
    "falls around": lambda v: sum(a > b for a, b in pairwise([*v, v[0]])),
    "peaks": lambda v: _turns(v)[0],
    "valleys": lambda v: _turns(v)[1],
    "straight on": lambda v: len(v) - 2 - sum(_turns(v)),
    "out of place": lambda v: max(abs(i - at) for i, at in enumerate(sorted(range(len(v)), key=v.__getitem__))),
    "repeats": lambda v: len(v) - len(set(v)),
    "kinds": lambda v: len(set(v)),
    "unmirrored": lambda v: sum(a != b for a, b in zip(v, reversed(v), strict=True)),
    "most of one": lambda v: max(Counter(v).values()),
    "least of one": lambda v: min(Counter(v).values()),
    "odd counts": lambda v: sum(n % 2 for n in Counter(v).values()),
    "even counts": lambda v: sum(n % 2 == 0 for n in Counter(v).values()),
    "single ones": lambda v: sum(n == 1 for n in Counter(v).values()),
    "counts": lambda v: len(set(Counter(v).values())),
    "no majority": lambda v: 2 * max(Counter(v).values()) <= len(v),
    "period": lambda v: next(k for k in range(1, len(v) + 1) if v[k:] == v[:-k]) == len(v),
    "depth": lambda v: min(accumulate(1 if a == v[0] else -1 for a in v)),
    "balance": lambda v: sum(1 if a == v[0] else -1 for a in v),
}  # fmt: skip
_WORDS: dict[str, Callable[[Items], float]] = {
    "lengths": lambda v: len(set(map(len, v))),
    "shorter": lambda v: sum(len(a) > len(b) for a, b in pairwise(v)),
    "leading zero": lambda v: v[0] == "0" and len(v) > 1,
    "first": lambda v: ord(v[0][:1] or "\0"),
    "last": lambda v: ord(v[-1][:1] or "\0"),
}
_NUMBERS: dict[str, Callable[[Items], float]] = {
    "first": lambda v: v[0],
    "last": lambda v: v[-1],
    "least": min,
    "greatest": max,
    "sum": sum,
    "lowest sum": lambda v: min(accumulate(v)),
    "above the rest": lambda v: 2 * max(v) >= sum(v),
    "steps": lambda v: len({b - a for a, b in pairwise(v)}),
    "widest step": lambda v: max((abs(a - b) for a, b in pairwise(v)), default=0),
    "narrowest step": lambda v: min((abs(a - b) for a, b in pairwise(v)), default=0),
    "above place": lambda v: max(a - i for i, a in enumerate(v)),
    "above length": lambda v: max(v) - len(v),
    "gaps": lambda v: max(v) - min(v) + 1 - len(set(v)),
}
_WHOLE: dict[str, Callable[[Items], float]] = {
    "odd": lambda v: sum(a % 2 for a in v),
    "even": lambda v: sum(a % 2 == 0 for a in v),
    "mixed": lambda v: len({a % 2 for a in v}),
    "odd sum": lambda v: sum(v) % 2,
    "no threes": lambda v: sum(a % 3 != 0 for a in v),
    "no fives": lambda v: sum(a % 5 != 0 for a in v),
    "composite": lambda v: sum(a < 2 or (a > 2 and pow(2, a - 1, a) != 1) for a in v),
    "no squares": lambda v: sum(math.isqrt(abs(a)) ** 2 != a for a in v),
    "no powers": lambda v: sum(a < 1 or a & (a - 1) > 0 for a in v),
    "no mirrors": lambda v: sum(str(a) != str(a)[::-1] for a in v),
    "shared": lambda v: math.gcd(*v),
    "ratios": lambda v: sum(b * v[0] != a * v[1] for a, b in pairwise(v)),
}
_PAIRS: dict[str, Callable[[Items, Items], float]] = {
    "longer": lambda a, b: len(a) - len(b),
    "foreign": lambda a, b: len(set(a) - set(b)),
    "left over": lambda a, b: sum((Counter(a) - Counter(b)).values()),
    "part": lambda a, b: any(list(b[i : i + len(a)]) == list(a) for i in range(len(b))),
    "in order": lambda a, b: (rest := iter(b)) is not None and all(each in rest for each in a),
    "above": lambda a, b: sum(x > y for x, y in zip(a, b, strict=False)),
    "equal": lambda a, b: sum(x == y for x, y in zip(a, b, strict=False)),
}
_WHOLE_PAIRS: dict[str, Callable[[Items, Items], float]] = {
    "remainder": lambda a, b: sum(a) % b[0] != 0 if len(b) == 1 and b[0] else 2,
    "coprime": lambda a, b: math.gcd(*a, *b),
    "parity": lambda a, b: (sum(a) - sum(b)) % 2,
    "sum": lambda a, b: sum(a) - sum(b),
    "above all": lambda a, b: max(a) > max(b),
    "size": lambda a, b: a[0] - len(b) if len(a) == 1 else 0,
}


class Conditions:
    """What holds in all of `seen`, inputs as values by their places, and by chance with less than `chance`."""

    def __init__(self, seen: Sequence[Mapping[Place, Sequence[Any]]], chance: float = CHANCE) -> None:
        self._rules: list[tuple[tuple[Place, ...], Callable[..., float], float, float]] = []
        keys, rng = list(dict.fromkeys(itertools.chain(*seen))), random.Random(0)
        alone = [key for key in keys if all(len(each.get(key, ())) == len(_at(each, (key,))) == 1 for each in seen)]
        known: list[Any] = []
        pairs = ((a, b) for a, b in itertools.permutations(alone[:MAX_ALONE], 2) if a[: len(b)] != b[: len(a)])
        for place in (*((key,) for key in keys), *pairs):
            values = [value for each in seen for value in _at(each, place)]
            if not values or values in known:  # a line of one number is known by its number
                continue
            traits = _traits(values)
            if not traits:
                continue
            known.append(values)
            near = sorted(values, key=lambda value: abs(sum(map(len, value)) - LOOKED_AT))[:LOOKED_AT]
            columns = list(zip(*values, strict=True))
            pools = [
                (list(itertools.chain(*column)), (min(map(len, column)), max(map(len, column)))) for column in columns
            ]
            drawn = [[list(_drawn(value, kind, pools, rng)) for value in near] for kind in range(3)]
            for trait in traits:
                self._rules += [(place, trait, *span) for span in _spans(trait, values, drawn, chance)]

    def hold(self, found: Mapping[Place, Sequence[Any]]) -> bool:
        """Whether an input meets them."""
        return all(
            low <= trait(*value) <= high for place, trait, low, high in self._rules for value in _at(found, place)
        )


def _spans(
    trait: Callable[..., float],
    values: Sequence[tuple[Items, ...]],
    drawn: Sequence[Sequence[Sequence[tuple[Items, ...]]]],
    chance: float,
) -> Iterator[tuple[float, float]]:
    """From the least to the most that a trait is, or only one of them, where two values, or the only one, are there and some kind of draws would hardly all keep to it."""
    found = [trait(*value) for value in values]
    low, high = min(found), max(found)
    for least, most in [(low, high)] if low == high else [(low, math.inf), (-math.inf, high)]:
        if sum(each in (least, most) for each in found) >= (2 if len(found) > 3 else 1):
            kept = ([sum(least <= trait(*each) <= most for each in draws) for draws in kind] for kind in drawn)
            if any(math.prod((1 + times) / (1 + DRAWS) for times in kind) < chance for kind in kept):
                yield least, most


def children_of(value: Any) -> Sequence[Any]:
    """What a value holds: the items of a list, a tuple or a linked list, the values of a dictionary."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, LinkedList):
        return value.items
    return tuple(value.values()) if isinstance(value, dict) else ()


def _at(found: Mapping[Place, Sequence[Any]], place: tuple[Place, ...]) -> list[tuple[Items, ...]]:
    """The items of the values at a place, or of the two that stand alone at two; none where there are no items of one kind."""
    if len(place) == 1:
        return [(items,) for value in found.get(place[0], ()) if (items := _items(value))]
    values = [value for key in place for value in found.get(key, ())]
    if len(values) != 2 or any(len(found.get(key, ())) != 1 for key in place):
        return []
    word = isinstance(values[0], str) != isinstance(values[1], str)  # beside a list it is one item
    both = tuple([value] if word and isinstance(value, str) else _items(value) for value in values)
    return [both] if all(both) else []


def _items(value: Any) -> Items:
    if isinstance(value, str):
        return list(value)
    items = (
        [each for each in value.items if each is not None]
        if isinstance(value, BinaryTree)
        else list(children_of(value)) or [value]
    )
    one_kind = {type(item) for item in items} in ({int}, {str}, {float})
    return items if one_kind and all(isinstance(item, str) or abs(item) < LARGEST for item in items) else ()


def _traits(values: Sequence[tuple[Items, ...]]) -> list[Callable[..., float]]:
    """Those that can be told of all of the values."""
    kinds = {type(items[0]) for value in values for items in value}
    if len(kinds) != 1 or sum(len(items) for value in values for items in value) > 100_000:
        return []
    (kind,) = kinds
    if len(values[0]) == 2:
        return [*_PAIRS.values(), *(_WHOLE_PAIRS.values() if kind is int else ())]
    tables: list[dict[str, Callable[[Items], float]]] = [_ORDER, _WORDS if kind is str else _NUMBERS]
    return [trait for table in (*tables, *([_WHOLE] if kind is int else [])) for trait in table.values()]


def _drawn(
    value: tuple[Items, ...], kind: int, pools: Sequence[tuple[Items, tuple[int, int]]], rng: random.Random
) -> Iterator[tuple[Items, ...]]:
    """The value by chance: its items in another order, drawn from them again, drawn from the range or kinds of all; one alone from those of the others."""
    for _ in range(DRAWS):
        drawn: list[Items] = []
        for items, (pool, lengths) in zip(value, pools, strict=True):
            own = items if len(items) > 1 else pool
            if kind == 0 and len(items) > 1:
                drawn.append(rng.sample(items, len(items)))
            elif kind < 2:
                drawn.append(rng.choices(own, k=rng.randint(*lengths)))
            elif isinstance(pool[0], str):
                letters = sorted(set("".join(pool))) or [""]
                drawn.append(["".join(rng.choices(letters, k=len(item))) for item in items])
            else:
                pick = rng.randint if isinstance(pool[0], int) else rng.uniform
                drawn.append([pick(min(pool), max(pool)) for _ in items])
        yield tuple(drawn)


def _turns(items: Items) -> tuple[int, int]:
    """How often a rise is followed by a fall, and a fall by a rise."""
    ways = [a < b for a, b in pairwise(items) if a != b]
    return sum(a > b for a, b in pairwise(ways)), sum(a < b for a, b in pairwise(ways))
