"""Compare rules for printed text.

All rules run in time linear in the two texts. They compare a numeral by its digits and exponent as
text and never build a number, so a megabyte of digits or an exponent of 10^18 costs only its
reading.
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
"""More digits than a float's shortest text has."""

PairRule = Callable[[str, str], bool]
Numeral = tuple[str, str, int]
"""Sign, significant digits without zeros at either end, exponent of the last digit."""

_ZERO: Numeral = ("", "", 0)


def numeral(token: str) -> Numeral | None:
    """The value of a decimal numeral in normal form: two numerals are equal numbers exactly when
    their forms are equal.

    ASCII digits only; no underscores. Infinity is a numeral (`inf`, `-Infinity`), NaN is not. None
    for anything else.
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
    """True when both tokens are numerals of one value.

    Where an integer is expected, a token in exponent notation is not accepted: `1e3` is not how an
    integer is printed.
    """
    if INTEGER.fullmatch(expected) and ("e" in got or "E" in got):
        return False
    value = numeral(got)
    return value is not None and value == numeral(expected)


def near_number(got: str, expected: str, abs_tol: float, rel_tol: float) -> bool:
    """Numerals of one value, or, where the expected one is not an integer, within `max(abs_tol,
    rel_tol * |expected|)`.

    NaN is near NaN; an infinity is near itself only. An expected integer is never compared with
    tolerance.
    """
    if same_number(got, expected):
        return True
    return not INTEGER.fullmatch(expected) and near(got, expected, abs_tol, rel_tol)


def near(got: str, expected: str, abs_tol: float, rel_tol: float) -> bool:
    """`near_number` without regard to how the numbers are written. Exact: rounding never makes
    numbers near, or keeps them apart."""
    if got.lower() == "nan" and expected.lower() == "nan":
        return True
    one, other = numeral(got), numeral(expected)
    if one is None or other is None or one == other:
        return one is not None and one == other
    if "inf" in (one[1], other[1]) or not (abs_tol or rel_tol):
        return False
    return _near_exactly(one, other, abs_tol, rel_tol)


def _near_exactly(got: Numeral, expected: Numeral, abs_tol: float, rel_tol: float) -> bool:
    """Compare within tolerance, linear in the digits whatever the exponents: only the distance is
    rounded, upwards, to at least as many digits as the tolerance has."""
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
    """LiveCodeBench's rule for printed output. Return None if equal, else a message without any
    content of the texts.

    Both texts are stripped and split at line feeds, and lines are stripped. Each line must be equal
    as text or be a list of equal numerals. With a tolerance each token must be equal as text, or a
    near numeral. Inner blank lines count. Stricter than LiveCodeBench only in its known errors:
    underscores and non-ASCII digits in numerals, and exponent notation for an expected integer, are
    not accepted.
    """
    if not (rule.abs_tol or rule.rel_tol):
        return _by_line(got, expected, same_number)
    return _by_line(
        got,
        expected,
        lambda one, other: one == other or near_number(one, other, rule.abs_tol, rule.rel_tol),
    )


def compare_lcb_official(got: str, expected: str, _rule: Compare) -> str | None:
    """As LiveCodeBench decides, its slips included: any two lines that `decimal.Decimal` reads as
    equal are equal."""
    return _by_line(got, expected, _same_decimal)


def compare_contest(got: str, expected: str, rule: Compare) -> str | None:
    """Tokens as contest validators compare them: equal as text, or as numbers within tolerance.

    An expected integer is met by an integer of the same value only; with `integers_as_floats` also
    by a near number that is written with a point or an exponent.
    """

    def equal(token: str, want: str) -> bool:
        if token == want or (rule.ignore_case and token.lower() == want.lower()):
            return True
        if INTEGER.fullmatch(want) and (INTEGER.fullmatch(token) or not rule.integers_as_floats):
            return INTEGER.fullmatch(token) is not None and numeral(token) == numeral(want)
        return near(token, want, rule.abs_tol, rule.rel_tol)

    for index, (one, other) in enumerate(_token_pairs(got, expected)):
        if one is None or other is None:
            return "the number of tokens differs"
        if not equal(one, other):
            return f"token {index + 1} differs"
    return None


def _same_decimal(got: str, expected: str) -> bool:
    if max(len(got), len(expected)) > MAX_OFFICIAL_TOKEN:
        return False
    try:
        return Decimal(got) == Decimal(expected)
    except InvalidOperation:
        return False


def _all_tokens(got: str, expected: str, equal: PairRule) -> bool:
    return all(
        one is not None and other is not None and equal(one, other)
        for one, other in _token_pairs(got, expected)
    )


def _token_pairs(got: str, expected: str) -> Iterator[tuple[str | None, str | None]]:
    """Tokens side by side, None where one text has run out; lazily, so that millions of tokens are
    never held."""
    tokens, wanted = ((match[0] for match in TOKEN.finditer(text)) for text in (got, expected))
    return zip_longest(tokens, wanted)


def _by_line(got: str, expected: str, equal: PairRule) -> str | None:
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
