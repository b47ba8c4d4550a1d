"""The specification of one built-in problem: text, starter code, solution, and the rules that keep
training and test problems apart.

A constant is held out if it is 3 modulo 7 (letters: by position in the alphabet), a composition if
it contains a pair of HELD_OUT_PAIRS, and a primitive if its table entry says `unseen`. All three
rules depend only on the spec, so training problems can be drawn without a list of test problems.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from typing import Any

from code_rl.data.builtin import primitives
from code_rl.data.builtin.primitives import Const, Primitive

SPLITS = ("constants", "compositions", "primitives")
TRAIN = "train"
WORD_SHARE = 0.2
WORD = "word"
NUMBER_PARTS = (primitives.FILTERS, primitives.MAPS, primitives.REDUCES)
WORD_PARTS = (primitives.WORD_FILTERS, primitives.WORD_MAPS, primitives.WORD_REDUCES)


def _pairs(text: str) -> frozenset[tuple[str, str]]:
    """Read the pairs of a text of words: the first and second, the third and fourth. Raises
    ValueError for an odd number."""
    one, other = text.split()[::2], text.split()[1::2]
    return frozenset(zip(one, other, strict=True))


HELD_OUT_PAIRS = _pairs(
    "above sum  above rev  below dist  below min  even max  odd sort  div first  ndiv cnt  ndiv "
    "all add max  sub sort  rsub first  mul dist  sq min  abs rev  mod all list sq  lines mul  "
    "range rsub  digits add  func abs"
)
"""Pairs of filter and reduction, map and reduction, source and map. Each part is held out with only
one or two partners."""

HELD_OUT_WORD_PAIRS = _pairs("vowel dist  before len  nec str  rev cnt  dropk dist")


@dataclass(frozen=True, slots=True)
class Spec:
    """A pipeline: source, filter, map, reduction. `map_first` swaps filter and map; constants are
    None where unused."""

    source: str
    filter: str
    filter_const: Const
    map: str
    map_const: Const
    reduce: str
    reduce_const: Const
    map_first: bool = False

    @property
    def parts(self) -> tuple[Primitive, Primitive, Primitive]:
        """The primitives of filter, map and reduction, in this order. Raises KeyError for an
        unknown name."""
        filters, maps, reductions = WORD_PARTS if self.source == WORD else NUMBER_PARTS
        return filters[self.filter], maps[self.map], reductions[self.reduce]

    @property
    def constants(self) -> tuple[int | str, ...]:
        """The constants in use, in the order of filter, map and reduction."""
        found = (self.filter_const, self.map_const, self.reduce_const)
        return tuple(const for const in found if const is not None)

    @property
    def key(self) -> tuple[Any, ...]:
        """The semantic identity: equal for specs that ask the same in other words (`> 9` and `>=
        10`). No two problems of a test split have the same."""
        filt, const = self.filter, self.filter_const
        if isinstance(const, int) and filt in ("gt", "lt"):
            filt, const = ("ge", const + 1) if filt == "gt" else ("le", const - 1)
        return astuple(replace(self, filter=filt, filter_const=const))

    @property
    def returns_list(self) -> bool:
        """True when the answer is a sequence of numbers."""
        return self.source != WORD and self.reduce in primitives.LIST_REDUCES


def apply(spec: Spec, items: Sequence[Any], *, filtering: bool = True, mapping: bool = True) -> Any:
    """Return the reference answer for source elements `items` (numbers, or the characters of the
    word). `items` are unchanged.

    With `filtering` or `mapping` False, return the answer of a program that forgot that step.
    """
    filt, change, reduction = (part.fn for part in spec.parts)
    fk, mk, rk = spec.filter_const, spec.map_const, spec.reduce_const
    if spec.source == WORD:
        text = "".join(c for c in items if not filtering or filt(c, fk))
        return reduction(change(text, mk) if mapping else text, rk)
    values = list(items)
    if mapping and spec.map_first:
        values = [change(x, mk) for x in values]
    if filtering:
        values = [x for x in values if filt(x, fk)]
    if mapping and not spec.map_first:
        values = [change(x, mk) for x in values]
    return reduction(values, rk)


def held_out_constant(const: int | str) -> bool:
    """Return True for constants that occur only in the `constants` split: 3 modulo 7, letters by
    their position in the alphabet, from 0. With another rule, trained constants would be tested."""
    return (const if isinstance(const, int) else ord(const) - ord("a")) % 7 == 3


def held_out_composition(spec: Spec) -> bool:
    """Return True for combinations that occur only in the `compositions` split. Constants do not
    count."""
    filt, mapping, reduction = (part.group for part in spec.parts)
    pairs = {(filt, reduction), (mapping, reduction), (spec.source, mapping)}
    return bool(pairs & (HELD_OUT_WORD_PAIRS if spec.source == WORD else HELD_OUT_PAIRS))


def split_of(spec: Spec) -> str | None:
    """Return the split of `spec`, or None if no split may use it (it is held out for two reasons,
    or nearly equals a held-out spec). It depends only on the spec, so no two splits share one."""
    unseen = sum(part.unseen for part in spec.parts)
    held = [held_out_constant(const) for const in spec.constants]
    composition = held_out_composition(spec)
    if unseen:
        return "primitives" if unseen == 1 and not any(held) and not composition else None
    if any(held):
        return "constants" if all(held) and not composition else None
    if _twin_is_held_out(spec):
        return None
    return "compositions" if composition else TRAIN


def draw_spec(rng: random.Random, split: str) -> Spec:
    """Return a random spec of `split`, drawn until one belongs to it. An unknown split never
    ends."""
    while True:
        spec = _draw_word(rng, split) if rng.random() < WORD_SHARE else _draw_numbers(rng, split)
        if split_of(spec) == split:
            return spec


def _draw_numbers(rng: random.Random, split: str) -> Spec:
    """Return a random spec of a task on numbers, perhaps of another split; counting and small
    digits restrict its parts."""
    source = rng.choice(tuple(primitives.SOURCES))
    filt, mapping, reduction = _draw_parts(rng, split, NUMBER_PARTS)
    map_first = mapping.name != "id" and rng.random() < 1 / 3
    if reduction.name == "cnt" and not map_first:
        mapping = primitives.MAPS["id"]
    small = source == "digits" and not map_first
    filter_const = _draw_constant(rng, filt, split, below=9 if small else None)
    map_const = _draw_constant(rng, mapping, split)
    return Spec(
        source, filt.name, filter_const, mapping.name, map_const, reduction.name, None, map_first
    )


def _draw_word(rng: random.Random, split: str) -> Spec:
    """Return a random spec of a task on the letters of a word, perhaps of another split."""
    filt, mapping, reduction = _draw_parts(rng, split, WORD_PARTS)
    filter_const, map_const, reduce_const = (
        _draw_constant(rng, part, split) for part in (filt, mapping, reduction)
    )
    return Spec(
        WORD, filt.name, filter_const, mapping.name, map_const, reduction.name, reduce_const
    )


def _draw_parts(
    rng: random.Random, split: str, tables: tuple[Mapping[str, Primitive], ...]
) -> tuple[Primitive, Primitive, Primitive]:
    """Return one primitive of each table. All are seen in training, except for one in the
    `primitives` split."""
    slots = [
        index for index, table in enumerate(tables) if any(part.unseen for part in table.values())
    ]
    unseen_slot = rng.choice(slots) if split == "primitives" else -1
    filt, mapping, reduction = (
        rng.choice([part for part in table.values() if part.unseen == (index == unseen_slot)])
        for index, table in enumerate(tables)
    )
    return filt, mapping, reduction


def _draw_constant(
    rng: random.Random, part: Primitive, split: str, below: int | None = None
) -> Const:
    """Return a random constant of a primitive, smaller than `below` if possible (None: no bound),
    or None if it has none. Only the split `constants` gets held-out ones."""
    if part.domain is None:
        return None
    chosen: Const = rng.choice(_constants(part, split == "constants", below))
    return chosen


@cache
def _constants(part: Primitive, held_out: bool, below: int | None) -> list[Any]:
    """Return the constants of a primitive that are held out, or not, and are `below` a bound (None:
    no bound); all of them if none is left. The list is cached: do not change it."""
    domain = list(part.domain or ())
    wanted = [
        const
        for const in domain
        if held_out_constant(const) == held_out and (below is None or const < below)
    ]
    return wanted or domain


def _twin_is_held_out(spec: Spec) -> bool:
    """Return True if the same condition in other words (`>= 11` for `> 10`) has a held-out
    constant."""
    step = {"gt": 1, "ge": -1, "lt": -1, "le": 1}.get(spec.filter)
    const = spec.filter_const
    return step is not None and isinstance(const, int) and held_out_constant(const + step)


FUNCTION = "func"
FN_NAME = "solve"


def statement(spec: Spec, rng: random.Random) -> str:
    """Return the problem in English; `rng` chooses among synonymous phrases."""
    filt, mapping, reduction = spec.parts
    kept = _phrase(rng, filt, spec.filter_const)
    asked = _phrase(rng, reduction, spec.reduce_const)
    if spec.source == WORD:
        changed = _phrase(rng, mapping, spec.map_const)
        return f"{primitives.WORD_STATEMENT} Keep only the {kept}. Then {changed}. Print {asked}."
    opening = primitives.SOURCES[spec.source].statement
    verb = "Return" if spec.source == FUNCTION else "Print"
    if spec.map_first:
        changed = _phrase(rng, mapping, spec.map_const, "each number")
        return (
            f"{opening} First {changed}. Then keep only the values that are {kept}. {verb} {asked}."
        )
    changed = _phrase(rng, mapping, spec.map_const, "each of them")
    then = f" Then {changed}." if changed else ""
    return f"{opening} Keep only the numbers that are {kept}.{then} {verb} {asked}."


def starter_code(spec: Spec) -> str | None:
    """Return the class to complete for function problems, or None for programs that read stdin."""
    if spec.source != FUNCTION:
        return None
    answer = "list[int]" if spec.returns_list else "int"
    return f"class Solution:\n    def {FN_NAME}(self, nums: list[int]) -> {answer}:\n        "


def solution(spec: Spec) -> str:
    """Return a right program in Python, in the plainest style: a class for function problems, else
    one that reads stdin."""
    filt, mapping, reduction = spec.parts
    answer = reduction.code.format(b="b" if spec.source != WORD else "t", k=spec.reduce_const)
    kept = filt.code.format(x="c" if spec.source == WORD else "x", k=spec.filter_const)
    if spec.source == WORD:
        changed = mapping.code.format(b="t", k=spec.map_const)
        return f"s = input()\nt = ''.join(c for c in s if {kept})\nt = {changed}\nprint({answer})"
    changed = mapping.code.format(x="x", k=spec.map_const)
    items = "nums" if spec.source == FUNCTION else "a"
    lines = (
        [primitives.SOURCES[spec.source].code.format(a=items)] if spec.source != FUNCTION else []
    )
    if spec.map_first:
        lines += [f"b = [{changed} for x in {items}]", f"b = [x for x in b if {kept}]"]
    else:
        lines.append(f"b = [{changed} for x in {items} if {kept}]")
    if spec.source == FUNCTION:
        body = "\n".join(f"        {line}" for line in [*lines, f"return {answer}"])
        return f"class Solution:\n    def {FN_NAME}(self, nums):\n{body}"
    return "\n".join([*lines, f"print({'*' if spec.returns_list else ''}{answer})"])


def _phrase(rng: random.Random, part: Primitive, const: Const, them: str = "") -> str:
    """Return one of a primitive's phrases, chosen by `rng`, with its constant and the words `them`
    for the elements."""
    return rng.choice(part.phrases).format(k=const, them=them)
