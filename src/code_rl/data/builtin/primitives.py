"""The building blocks of the built-in problems: sources of numbers, filters, maps and reductions.

Each primitive has phrases (for statements), Python text (for reference solutions) and a plain
function (for expected outputs), so a test can check that they agree. A primitive has at most one
constant.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

Const = int | str | None

LETTERS = "bcdefghijklmnop"
COUNTED_LETTERS = "aeinrstdk"
THRESHOLDS = range(1, 100)
AMOUNTS = range(2, 100)
FACTORS = range(2, 51)
DIVISORS = range(2, 21)
PROPER_DIVISORS = range(3, 21)
"""The divisors of the divisibility filters, without 2: `even` and `odd` cover it."""
COUNTS = range(2, 7)


@dataclass(frozen=True, slots=True)
class Primitive:
    """One filter, map or reduction.

    `code` and `phrase` (synonyms are separated by bars) are format strings, in which `{k}` is the
    constant. In code, `{x}` is the element and `{b}` the collection; in phrases, `{them}` are the
    elements.
    `fn(value, constant)` computes the result. `domain` has the constant's values, None without a
    constant. Primitives that can express one another (`> 9` is `>= 10`) have the same `sense`.
    Compositions are held out by sense, so that no training problem is one of them reworded.
    """

    name: str
    phrase: str
    code: str
    fn: Callable[[Any, Any], Any]
    domain: Sequence[Any] | None = None
    sense: str = ""
    unseen: bool = False
    """True for primitives that reinforcement learning never sees."""

    @property
    def phrases(self) -> list[str]:
        """The synonymous phrases, as format strings, in the order on which random draws depend."""
        return self.phrase.split(" | ")

    @property
    def group(self) -> str:
        """The sense, or the name if no other primitive has this sense. Compositions are held out by
        it."""
        return self.sense or self.name


@dataclass(frozen=True, slots=True)
class NumberSource:
    """The source of the elements. `code` reads them into `{a}`. It is empty for the function
    source, where they are the argument."""

    statement: str
    code: str


_unseen = partial(Primitive, unseen=True)


def _table(*rows: Primitive) -> dict[str, Primitive]:
    """Return the primitives by name, in this order, on which random draws depend."""
    return {row.name: row for row in rows}


SOURCES = {
    "list": NumberSource(
        "The first line contains n. The second line contains n integers.",
        "n = int(input())\n{a} = list(map(int, input().split()))",
    ),
    "lines": NumberSource(
        "The first line contains n. Each of the next n lines contains one integer.",
        "n = int(input())\n{a} = [int(input()) for _ in range(n)]",
    ),
    "range": NumberSource(
        "You are given two integers p and q on one line. Consider the integers from p to q "
        "inclusive.",
        "p, q = map(int, input().split())\n{a} = range(p, q + 1)",
    ),
    "digits": NumberSource(
        "You are given a positive integer. Consider its digits from left to right.",
        "{a} = [int(c) for c in input()]",
    ),
    "func": NumberSource("You are given a list of integers nums.", ""),
}

FILTERS = _table(
    Primitive(
        "gt",
        "greater than {k} | larger than {k}",
        "{x} > {k}",
        operator.gt,
        THRESHOLDS,
        "above",
    ),
    Primitive(
        "ge",
        "at least {k} | not less than {k}",
        "{x} >= {k}",
        operator.ge,
        THRESHOLDS,
        "above",
    ),
    Primitive(
        "lt",
        "less than {k} | smaller than {k}",
        "{x} < {k}",
        operator.lt,
        THRESHOLDS,
        "below",
    ),
    Primitive(
        "le",
        "at most {k} | not greater than {k}",
        "{x} <= {k}",
        operator.le,
        THRESHOLDS,
        "below",
    ),
    Primitive("even", "even", "{x} % 2 == 0", lambda x, _: x % 2 == 0),
    Primitive("odd", "odd", "{x} % 2 == 1", lambda x, _: x % 2 == 1),
    Primitive(
        "div",
        "divisible by {k} | multiples of {k}",
        "{x} % {k} == 0",
        lambda x, k: x % k == 0,
        PROPER_DIVISORS,
    ),
    Primitive(
        "ndiv", "not divisible by {k}", "{x} % {k} != 0", lambda x, k: x % k != 0, PROPER_DIVISORS
    ),
    _unseen("ne", "different from {k}", "{x} != {k}", operator.ne, THRESHOLDS),
    _unseen(
        "absgt",
        "greater than {k} in absolute value",
        "abs({x}) > {k}",
        lambda x, k: abs(x) > k,
        THRESHOLDS,
    ),
)

MAPS = _table(
    Primitive(
        "add",
        "add {k} to {them} | increase {them} by {k}",
        "{x} + {k}",
        operator.add,
        AMOUNTS,
    ),
    Primitive(
        "sub",
        "subtract {k} from {them} | decrease {them} by {k}",
        "{x} - {k}",
        operator.sub,
        AMOUNTS,
    ),
    Primitive("rsub", "subtract {them} from {k}", "-{x} + {k}", lambda x, k: k - x, AMOUNTS),
    Primitive("mul", "multiply {them} by {k}", "{x} * {k}", operator.mul, FACTORS),
    Primitive("sq", "square {them}", "{x} * {x}", lambda x, _: x * x),
    Primitive("abs", "take the absolute value of {them}", "abs({x})", lambda x, _: abs(x)),
    Primitive("mod", "take {them} modulo {k}", "{x} % {k}", operator.mod, DIVISORS),
    Primitive("id", "", "{x}", lambda x, _: x),
    _unseen(
        "fdiv", "divide {them} by {k}, rounding down", "{x} // {k}", operator.floordiv, DIVISORS
    ),
    _unseen("neg", "negate {them}", "-{x}", lambda x, _: -x),
)

REDUCES = _table(
    Primitive("sum", "the sum of the results", "sum({b})", lambda b, _: sum(b)),
    Primitive(
        "max",
        "the maximum result, or 0 if there is none",
        "max({b}, default=0)",
        lambda b, _: max(b, default=0),
    ),
    Primitive(
        "min",
        "the minimum result, or 0 if there is none",
        "min({b}, default=0)",
        lambda b, _: min(b, default=0),
    ),
    Primitive(
        "cnt", "the number of results | how many results there are", "len({b})", lambda b, _: len(b)
    ),
    Primitive("dist", "the number of distinct results", "len(set({b}))", lambda b, _: len(set(b))),
    Primitive(
        "first",
        "the first result, or 0 if there is none",
        "{b}[0] if {b} else 0",
        lambda b, _: b[0] if b else 0,
    ),
    Primitive("sort", "the results in increasing order", "sorted({b})", lambda b, _: sorted(b)),
    Primitive("rev", "the results in reverse order", "{b}[::-1]", lambda b, _: b[::-1]),
    Primitive("all", "the results in order", "{b}", lambda b, _: list(b)),
    _unseen(
        "last",
        "the last result, or 0 if there is none",
        "{b}[-1] if {b} else 0",
        lambda b, _: b[-1] if b else 0,
    ),
    _unseen(
        "rsort",
        "the results in decreasing order",
        "sorted({b}, reverse=True)",
        lambda b, _: sorted(b, reverse=True),
    ),
)
LIST_REDUCES = frozenset({"sort", "rev", "all", "rsort"})

WORD_STATEMENT = "You are given a string s of lowercase letters."

WORD_FILTERS = _table(
    Primitive("vowel", "vowels", "{x} in 'aeiou'", lambda c, _: c in "aeiou"),
    Primitive(
        "cons", "letters that are not vowels", "{x} not in 'aeiou'", lambda c, _: c not in "aeiou"
    ),
    Primitive("nec", "characters different from '{k}'", "{x} != '{k}'", operator.ne, LETTERS),
    Primitive("after", "letters after '{k}' in the alphabet", "{x} > '{k}'", operator.gt, LETTERS),
    Primitive(
        "before", "letters before '{k}' in the alphabet", "{x} < '{k}'", operator.lt, LETTERS
    ),
)

WORD_MAPS = _table(
    Primitive("up", "convert the string to uppercase", "{b}.upper()", lambda t, _: t.upper()),
    Primitive("rev", "reverse the string", "{b}[::-1]", lambda t, _: t[::-1]),
    Primitive("rep", "repeat the string {k} times", "{b} * {k}", operator.mul, COUNTS),
    Primitive(
        "firstk",
        "take the first {k} characters of the string",
        "{b}[:{k}]",
        lambda t, k: t[:k],
        COUNTS,
    ),
    Primitive(
        "dropk",
        "remove the first {k} characters of the string",
        "{b}[{k}:]",
        lambda t, k: t[k:],
        COUNTS,
    ),
    _unseen(
        "lastk",
        "take the last {k} characters of the string",
        "{b}[-{k}:]",
        lambda t, k: t[-k:],
        COUNTS,
    ),
)

WORD_REDUCES = _table(
    Primitive("str", "the resulting string", "{b}", lambda t, _: t),
    Primitive("len", "its length", "len({b})", lambda t, _: len(t)),
    Primitive(
        "dist", "the number of distinct characters in it", "len(set({b}))", lambda t, _: len(set(t))
    ),
    Primitive(
        "cnt",
        "how many times '{k}' occurs in it",
        "{b}.count('{k}')",
        str.count,
        COUNTED_LETTERS,
    ),
    _unseen(
        "srt",
        "its characters in sorted order",
        "''.join(sorted({b}))",
        lambda t, _: "".join(sorted(t)),
    ),
)
