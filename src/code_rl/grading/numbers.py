"""Whether two returned numbers, of which at least one is a float, are near."""

from __future__ import annotations

from decimal import Decimal

from code_rl.grading.text import near

MAX_TEXT_BITS = 13_000
"""An integer of so many bits is turned into digits whatever the interpreter's limit for that."""
_INTEGERS_FROM = 2.0**53
"""Floats from here on are integers, and no longer all of them."""


def near_numbers(got: float, expected: float, abs_tol: float, rel_tol: float) -> bool:
    """Whether two numbers are within tolerance.

    A float below 2**53 counts as its shortest text, `3.00001` and not the binary fraction next to
    it; a larger one as the integer that it is.
    """
    if not (abs_tol or rel_tol):
        return False
    text, wanted = _written(got), _written(expected)
    return text is not None and wanted is not None and near(text, wanted, abs_tol, rel_tol)


def _written(number: int | float) -> str | None:
    if isinstance(number, int):
        return str(int(number)) if number.bit_length() <= MAX_TEXT_BITS else None
    return repr(number) if not abs(number) >= _INTEGERS_FROM else str(Decimal(number)).lower()
