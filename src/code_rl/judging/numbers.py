"""Numbers that are neither int nor float: fractions and decimals, in their encoded forms, compared by value.

Equal means equal as numbers, exactly: 1/2 is 0.5, Decimal("0.1") is not 0.1. A fraction never equals a decimal, as in Python, and is never near one.
Nothing is built from a forged form but integers of bounded length; a decimal is compared by its digits as text.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from code_rl.judging.text import INTEGER, near, near_floats, numeral
from code_rl.problems.values import MAX_DECIMAL_BITS, TAG

FRACTION, DECIMAL = "fraction", "decimal"
MAX_DECIMAL_TEXT = 1 << 20
MAX_TEXT_BITS = 13_000
"""An integer of so many bits is turned into digits whatever the interpreter's limit for that."""
_INTEGERS_FROM = 2.0**53
"""Floats from here on are integers, and no longer all of them."""

Ratio = tuple[int, int]


def is_number_form(form: Any) -> bool:
    """True for the encoded form of a fraction or a decimal."""
    return isinstance(form, dict) and form.get(TAG) in (FRACTION, DECIMAL)


def same_number_forms(got: Any, expected: Any) -> bool:
    """Two scalars of which at least one is a fraction or a decimal, and which are equal."""
    one, other = _ratio(got), _ratio(expected)
    if one is not None and other is not None:
        return one[0] * other[1] == other[0] * one[1]
    text, wanted = _text(got), _text(expected)
    if text is None or wanted is None:
        return False
    value = numeral(text)
    return text == wanted == "nan" or (value is not None and value == numeral(wanted))


def near_numbers(got: Any, expected: Any, abs_tol: float, rel_tol: float) -> bool:
    """Two scalars, each an int, a float, a fraction or a decimal, within tolerance.

    A float below 2**53 counts as its shortest text, `3.00001` and not the binary fraction next to it; a larger one as the integer that it is.
    """
    if not (abs_tol or rel_tol):
        return False
    if isinstance(got, float) and isinstance(expected, float):
        decided = near_floats(got, expected, abs_tol, rel_tol)
        if decided is not None:
            return decided
    if _is_fraction(got) or _is_fraction(expected):
        one, other = _ratio(got), _ratio(expected)
        return one is not None and other is not None and _near_ratios(one, other, abs_tol, rel_tol)
    text, wanted = _written(got), _written(expected)
    return text is not None and wanted is not None and near(text, wanted, abs_tol, rel_tol)


def is_whole(form: Any) -> bool:
    """True for a number that is written as an integer is."""
    text = None if _is_fraction(form) else _written(form)
    return text is not None and INTEGER.fullmatch(text) is not None


def canonical_number(form: dict[str, Any]) -> Any:
    """A form that is equal for equal numbers among keys and members: an int or a float where one is equal."""
    ratio = _ratio(form)
    if ratio is not None:
        n, d = ratio
        shared = math.gcd(n, d)
        n, d = n // shared, d // shared
        if d == 1:
            return n
        exact = d & (d - 1) == 0 and n.bit_length() <= 53 and d.bit_length() <= 1000
        return n / d if exact else [TAG, FRACTION, [n, d]]
    text = _text(form)
    value = numeral(text) if text is not None else None
    if value is None or text is None:
        return [TAG, DECIMAL, str(text)]
    sign, digits, exponent = value
    if not digits:
        return 0
    if len(digits) <= 400 and 0 <= exponent <= 400:
        return int(sign + digits) * 10**exponent
    if len(text) <= 400 and numeral(_float_text(float(text))) == value:
        return float(text)
    return [TAG, DECIMAL, list(value)]


def _near_ratios(got: Ratio, expected: Ratio, abs_tol: float, rel_tol: float) -> bool:
    apart, shared = abs(got[0] * expected[1] - expected[0] * got[1]), got[1] * expected[1]
    (least, of_least), (part, of_part) = (Decimal(repr(tol)).as_integer_ratio() for tol in (abs_tol, rel_tol))
    return apart * of_least <= least * shared or apart * of_part <= part * abs(expected[0]) * got[1]


def _is_fraction(form: Any) -> bool:
    return isinstance(form, dict) and form.get(TAG) == FRACTION


def _written(form: Any) -> str | None:
    """A number as `near_numbers` takes it."""
    if isinstance(form, float):
        return repr(form) if not abs(form) >= _INTEGERS_FROM else _text(form)
    return _text(form)


def _ratio(form: Any) -> Ratio | None:
    if isinstance(form, bool | int):
        return int(form), 1
    if isinstance(form, float):
        return form.as_integer_ratio() if math.isfinite(form) else None
    items = form.get("items") if is_number_form(form) and form[TAG] == FRACTION else None
    if not isinstance(items, list) or len(items) != 2:
        return None
    n, d = items
    if not (type(n) is int and type(d) is int and d > 0):
        return None
    return (n, d) if max(n.bit_length(), d.bit_length()) <= MAX_DECIMAL_BITS else None


def _text(form: Any) -> str | None:
    """Decimal digits of an int, a float or a decimal; `nan` for what is no number."""
    if isinstance(form, bool | int):
        return str(int(form)) if form.bit_length() <= MAX_TEXT_BITS else None
    if isinstance(form, float):
        return _float_text(form)
    items = form.get("items") if is_number_form(form) and form[TAG] == DECIMAL else None
    if not isinstance(items, list) or len(items) != 1 or not isinstance(items[0], str):
        return None
    text = items[0]
    if len(text) > MAX_DECIMAL_TEXT:
        return None
    return "nan" if text in ("NaN", "-NaN") else text


def _float_text(number: float) -> str:
    return str(Decimal(number)).lower()
