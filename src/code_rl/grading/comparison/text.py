"""Compare rules for printed text.

All rules take time linear in the two texts. They compare a numeral's digits and exponent as text
and never build a number, so a megabyte of digits or an exponent of 10^18 costs only its reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from decimal import MAX_EMAX, MIN_EMIN, ROUND_UP, Context, Decimal, InvalidOperation, Overflow
from itertools import zip_longest

from code_rl.grading.problem import Compare

NUMERAL = re.compile(r"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:[eE]([+-]?[0-9]+))?")
INFINITY = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)
TOKEN = re.compile(r"\S+")
INTEGER = re.compile(r"[+-]?[0-9]+")
MAX_EXPONENT_DIGITS = 18
MAX_OFFICIAL_TOKEN = 50_000
_TOLERANCE_DIGITS = 40
"""More digits than the shortest text of any float."""

PairRule = Callable[[str, str], bool]
Numeral = tuple[str, str, int]
"""(sign, significant digits without zeros at either end, exponent of the last digit)"""

_ZERO: Numeral = ("", "", 0)


def numeral(token: str) -> Numeral | None:
    """Return a decimal numeral in normal form, or None for a token that is none. Two numerals have
    equal values exactly when their normal forms are equal.

    Digits are ASCII, without underscores. Infinity is a numeral (`inf`, `-Infinity`), NaN is not.
    An exponent of more than 18 digits makes a token no numeral.
    """
    match = NUMERAL.fullmatch(token)
    if match is None:
        infinite = INFINITY.fullmatch(token)
        return None if infinite is None else ("-" if infinite[1] == "-" else "", "inf", 0)
    sign, whole, fraction, bare_fraction, power = match.groups()
    exponent_text = (power or "0").lstrip("+")
    if len(exponent_text) > MAX_EXPONENT_DIGITS:
        return None
    fraction = (bare_fraction if whole is None else fraction) or ""
    digits = ((whole or "") + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return _ZERO
    exponent = int(exponent_text) - len(fraction) + len(digits) - len(significant)
    return ("-" if sign == "-" else "", significant, exponent)


def same_number(got: str, expected: str) -> bool:
    """Return True if both tokens are numerals of the same value.

    For an expected integer, exponent notation is not accepted: integers are not printed as `1e3`.
    """
    if INTEGER.fullmatch(expected) and ("e" in got or "E" in got):
        return False
    value = numeral(got)
    return value is not None and value == numeral(expected)


def equal_numbers(got: str, expected: str, rule: Compare) -> bool:
    """Return True for numerals of the same value, or within the tolerance of `rule`.

    With a tolerance NaN matches NaN. An infinity matches only itself.
    """
    exact = rule.exact_integers and INTEGER.fullmatch(expected)
    if exact or not (rule.abs_tol or rule.rel_tol):
        return same_number(got, expected)
    return near(got, expected, rule.abs_tol, rule.rel_tol)


def near(got: str, expected: str, abs_tol: float, rel_tol: float) -> bool:
    """Return True if two numerals are equal or differ by at most the larger of `abs_tol` and
    `rel_tol · |expected|`, however they are written. The result is exact: rounding does not change
    it.

    NaN is near NaN, and an infinity near itself only. Tokens that are no numerals are never near.
    """
    if got.lower() == "nan" and expected.lower() == "nan":
        return True
    one, other = numeral(got), numeral(expected)
    if one is None or other is None or one == other:
        return one is not None and one == other
    if "inf" in (one[1], other[1]) or not (abs_tol or rel_tol):
        return False
    return _near_exactly(one, other, abs_tol, rel_tol)


def _near_exactly(got: Numeral, expected: Numeral, abs_tol: float, rel_tol: float) -> bool:
    """Return True if two finite numerals are within the tolerance, in time linear in the digits for
    any exponents. Only the distance is rounded: upward, to at least as many digits as the tolerance
    has.

    A number whose exponent `decimal` cannot hold is near nothing.
    """
    precision = len(got[1]) + len(expected[1]) + _TOLERANCE_DIGITS
    context = Context(
        precision, ROUND_UP, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[Overflow, InvalidOperation]
    )
    try:
        one, other = (
            context.create_decimal(f"{sign}{digits or 0}E{at}")
            for sign, digits, at in (got, expected)
        )
        apart = context.abs(context.subtract(one, other))
        allowed = context.multiply(context.create_decimal(repr(rel_tol)), context.abs(other))
    except (Overflow, InvalidOperation):
        return False
    return apart <= max(allowed, Decimal(repr(abs_tol)))


def compare_lcb(got: str, expected: str, rule: Compare) -> str | None:
    """Compare printed output by LiveCodeBench's rule. Return None if equal, else a message that
    reveals nothing of the texts.

    Both texts are stripped and split at line feeds, and lines are stripped. Each line must be equal
    as text or be a list of equal numerals. With a tolerance each token must be equal as text or be
    a near numeral. Inner blank lines count. The rule is stricter than LiveCodeBench only in its
    known errors: numerals with underscores or non-ASCII digits, and exponent notation for an
    expected integer, are not accepted.
    """
    tolerant = bool(rule.abs_tol or rule.rel_tol)
    return _by_line(
        got,
        expected,
        lambda one, other: (tolerant and one == other) or equal_numbers(one, other, rule),
    )


def compare_lcb_official(got: str, expected: str, _rule: Compare) -> str | None:
    """Compare exactly as LiveCodeBench does, including its errors: two lines are equal if
    `decimal.Decimal` reads their tokens as the same numbers. Return None if equal, else a message
    that reveals nothing of the texts."""
    return _by_line(got, expected, _same_decimal)


def compare_contest(got: str, expected: str, rule: Compare) -> str | None:
    """Compare tokens as contest validators do: equal as text (without case under `ignore_case`), or
    as numbers within the tolerance. Return None if all are equal, else a message that reveals
    nothing of the texts."""

    def equal(token: str, want: str) -> bool:
        """Return True if two tokens are equal as text or as numbers under the rule."""
        if token == want or (rule.ignore_case and token.lower() == want.lower()):
            return True
        return equal_numbers(token, want, rule)

    for index, (one, other) in enumerate(_token_pairs(got, expected)):
        if one is None or other is None:
            return "the number of tokens differs"
        if not equal(one, other):
            return f"token {index + 1} differs"
    return None


def _same_decimal(got: str, expected: str) -> bool:
    """Return True if `decimal.Decimal` reads both tokens as the same number. A token of more than
    50,000 characters is equal to nothing."""
    if max(len(got), len(expected)) > MAX_OFFICIAL_TOKEN:
        return False
    try:
        return Decimal(got) == Decimal(expected)
    except InvalidOperation:
        return False


def _all_tokens(got: str, expected: str, equal: PairRule) -> bool:
    """Return True if both lines have the same number of tokens, and `equal` holds for each pair
    (got, expected)."""
    return all(
        one is not None and other is not None and equal(one, other)
        for one, other in _token_pairs(got, expected)
    )


def _token_pairs(got: str, expected: str) -> Iterator[tuple[str | None, str | None]]:
    """Yield tokens of both texts (got, expected) side by side, with None where one text has ended.
    Texts are split lazily, so that millions of tokens are never in memory."""
    tokens, wanted = ((match[0] for match in TOKEN.finditer(text)) for text in (got, expected))
    return zip_longest(tokens, wanted)


def _by_line(got: str, expected: str, equal: PairRule) -> str | None:
    """Compare line by line, then token by token by `equal`. Return a message with the first
    difference, which reveals nothing of the texts, or None. Whitespace around each text and each
    line does not count."""
    got, expected = got.strip(), expected.strip()
    if got == expected:
        return None
    if got.count("\n") != expected.count("\n"):
        return "the number of lines differs"
    for index, (line, want) in enumerate(zip(got.split("\n"), expected.split("\n"), strict=True)):
        if line == want:
            continue
        line, want = line.strip(), want.strip()
        if line != want and not _all_tokens(line, want, equal):
            return f"line {index + 1} differs"
    return None
