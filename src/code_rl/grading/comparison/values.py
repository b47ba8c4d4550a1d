"""Compare rules for returned values.

Values are compared in the encoded form of `grading.values`, as parsed from JSON. They are never
built into sets, dicts or objects, so no `__hash__` or `__eq__` of the program runs here. Nested
values are walked with a list instead of recursion. Long integers stay hexadecimal text.
"""

from __future__ import annotations

import json
import sys
from decimal import Decimal
from typing import Any

from code_rl.grading.comparison.text import compare_contest, near
from code_rl.grading.problem import Compare
from code_rl.grading.values import ENVELOPE, MAX_DEPTH, TAG, encode

MAX_VALUE_BYTES = 64 << 20
MAX_INT_DIGITS = 5000
"""More digits than the longest integer that is sent as a number (`values.MAX_DECIMAL_BITS`)."""
MAX_PARTS = 1 << 21
PARTS_PER_EXPECTED_PART = 8
"""Parts of a value per part of the expected one: a plain integer is one part, a long one is
`{"__type__":"int","items":["…"]}`."""
BYTES_PER_EXPECTED_BYTE = 350
"""Bytes of a value per byte of an equal expected one, at most: 310 digits as an int for `1e308` as
a float, or a tag around `[]`."""

SEQUENCES = ("tuple", "list")
LIKE_LISTS = (
    "ndarray",
    "range",
    "iterator",
    "deque",
    "array",
    "dict_keys",
    "dict_values",
    "dict_items",
)
LIKE_SETS = ("dict_keys", "dict_items")
MAX_TEXT_BITS = 13_000
"""An integer with more bits is near no float."""
_INTEGERS_FROM = 2.0**53
"""From this value on, every float is an integer, but not every integer is a float."""
RAISED = "raised"
SETS = ("set", "frozenset")
RAW = ("bytes", "bytearray")
_NAMED = (*SEQUENCES, *SETS, *RAW, *LIKE_LISTS, "dict", "complex", "int", "float", "str", "bool")


class UnreadableError(ValueError):
    """The encoded value is malformed, too large or too deep. The message reveals nothing of its
    content."""


def parse_value(data: bytes, expected: bytes | None = None) -> Any:
    """Return the encoded form in `data`, in linear time. Raises UnreadableError, also for integers
    of more than 5,000 digits.

    With `expected`, the encoding of the expected value, data that is too long or has too many parts
    to be equal is refused unparsed: parsing a part takes a hundred times as long as reading its
    bytes. Without it the limits are 64 MiB and 2 million parts.
    """
    limit, parts = MAX_VALUE_BYTES, MAX_PARTS
    if expected is not None:
        # The limit on data that the sandbox lets through
        limit = BYTES_PER_EXPECTED_BYTE * (len(expected) + 64)
        parts = PARTS_PER_EXPECTED_PART * _parts(expected) + 16
    if len(data) > limit or _parts(data) > parts:
        raise UnreadableError("the returned value is far larger than the expected one")
    sys.set_int_max_str_digits(0)
    try:
        return json.loads(data.decode("utf-8"), parse_int=_parse_int)
    except (ValueError, RecursionError) as error:
        raise UnreadableError("the returned value cannot be read") from error


def _parts(data: bytes) -> int:
    """Return an upper bound on the number of values in a JSON text, without parsing it."""
    return sum(map(data.count, (b",", b":", b"[", b"{"))) + 1


def compare_values(got: Any, expected: Any, rule: Compare, outermost: int) -> str | None:
    """Compare `got` (from `parse_value`) with `expected` (a Python value). Return None if equal,
    else a message that reveals nothing of either.

    All rules: NaN equals NaN; 0.0 equals -0.0; dicts and sets are equal in any order; set members
    and dict keys are compared exactly. Unless a rule says otherwise: a tuple equals a list with
    equal items, 1 equals True and 1.0 (exactly: 2**53 + 1 is not 2.0**53), a set equals a
    frozenset, bytes equal a bytearray.

    `lcb-official`: NaN equals nothing, and only the outermost tuple of an answer, `outermost`
    levels down, is read as a list. `python`: a tuple is not a list. `contest`: strings compare as
    printed text.
    """
    pending: list[tuple[Any, Any, int]] = [(got, encode(expected, -ENVELOPE), 0)]
    while pending:
        one, other, depth = pending.pop()
        if depth > 2 * MAX_DEPTH:
            return "the returned value is nested too deeply"
        children = _step(one, other, rule, outermost=depth == outermost)
        if isinstance(children, str):
            return children
        pending.extend((a, b, depth + 1) for a, b in children)
    return None


def _step(
    got: Any, expected: Any, rule: Compare, *, outermost: bool
) -> list[tuple[Any, Any]] | str:
    """Return the pairs of encoded forms that must be equal for `got` to equal `expected` (none:
    they are equal), or the reason why it cannot. Only this level is looked at. `outermost` matters
    for `lcb-official` alone."""
    kind_got, kind_expected = _kind(got), _kind(expected)
    if kind_got in SEQUENCES and kind_expected in SEQUENCES:
        official = rule.rule == "lcb-official"
        strict = rule.rule == "python" or (official and not (outermost and kind_expected == "list"))
        return (
            _type_message(got, expected)
            if strict and kind_got != kind_expected
            else _pairs(got, expected)
        )
    if (
        kind_expected in SEQUENCES
        and kind_got in LIKE_LISTS
        and rule.rule not in ("python", "lcb-official")
    ):
        return _pairs(got, expected)
    if kind_got in (*SETS, *LIKE_SETS) and kind_expected in SETS:
        members_got, members_expected = (
            sorted(map(_canonical, _items(form))) for form in (got, expected)
        )
        return [] if members_got == members_expected else "the sets differ"
    if kind_got == kind_expected == "dict":
        return _dicts(got, expected)
    if kind_expected in RAW and kind_got in RAW:
        return [] if got.get("items") == expected["items"] else "bytes differ"
    if kind_got == RAISED and isinstance(got, dict):
        return "the call raised an exception"
    if kind_got == kind_expected and isinstance(expected, dict) and isinstance(got, dict):
        return _pairs(got, expected)
    if isinstance(got, dict | list) or isinstance(expected, dict | list):
        return _type_message(got, expected)
    return [] if _equal_scalars(got, expected, rule) else _scalar_message(got, expected)


def _pairs(got: Any, expected: Any) -> list[tuple[Any, Any]] | str:
    """Return the items of two forms side by side, the last first, so that a stack yields them in
    order; or a message if their numbers differ."""
    items, wanted = _items(got), _items(expected)
    if len(items) != len(wanted):
        return "the number of items differs"
    return list(zip(reversed(items), reversed(wanted), strict=True))


def _dicts(got: Any, expected: Any) -> list[tuple[Any, Any]] | str:
    """Return the values of two dicts under equal keys side by side, or a message if the keys
    differ. Their order does not count."""
    by_key_got, by_key_expected = _by_key(got), _by_key(expected)
    if len(by_key_got) != len(by_key_expected) or by_key_got.keys() != by_key_expected.keys():
        return "the keys differ"
    return [(by_key_got[key], by_key_expected[key]) for key in by_key_expected]


def _by_key(form: dict[str, Any]) -> dict[str, Any]:
    """Return a dict's values by the canonical text of their keys. A malformed form, which a program
    may forge, counts as an empty dict."""
    if TAG not in form:
        return {_canonical(key): value for key, value in form.items()}
    pairs = _items(form)
    if any(not isinstance(pair, list) or len(pair) != 2 for pair in pairs):
        return {}
    return {_canonical(key): value for key, value in pairs}


def _canonical(form: Any) -> str:
    """Return a text that is the same exactly for equal hashable values (1, 1.0 and True are equal),
    for set members and dict keys. A value nested deeper than MAX_DEPTH is "too deep"."""
    try:
        return json.dumps(_normal(form, 0))
    except RecursionError:
        return "too deep"


def _normal(form: Any, depth: int) -> Any:
    """Return the form in which equal values of different types are equal text. Sets are sorted,
    and frozensets and set-like views are sets. Raises RecursionError for nesting deeper than
    MAX_DEPTH."""
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(form, bool) or (isinstance(form, float) and form.is_integer()):
        return int(form)
    if isinstance(form, list):
        return [_normal(item, depth + 1) for item in form]
    if isinstance(form, dict):
        items = [_normal(item, depth + 1) for item in _items(form)]
        if form.get(TAG) in (*SETS, *LIKE_SETS):
            return [TAG, "set", sorted(items, key=json.dumps)]
        return [TAG, str(form.get(TAG)), items]
    return form


def _equal_scalars(got: Any, expected: Any, rule: Compare) -> bool:
    """Return True if two forms without parts are equal: texts (by tokens under `contest`), numbers
    within the tolerance, else by `==`."""
    if isinstance(got, str) and isinstance(expected, str):
        if rule.rule == "contest":
            return compare_contest(got, expected, rule) is None
        return got == expected
    if isinstance(got, int | float) and isinstance(expected, int | float):
        return _equal_numbers(got, expected, rule)
    return bool(got == expected)


def _equal_numbers(got: float, expected: float, rule: Compare) -> bool:
    """Return True for numbers of the same value, or within the tolerance of `rule`, except under
    `exact_integers` if an integer is expected. NaN equals NaN, but not under `lcb-official`.
    Integers of more than 13,000 bits are equal only exactly."""
    if got == expected:
        return True
    if got != got and expected != expected:
        return rule.rule != "lcb-official"
    exact = rule.exact_integers and not isinstance(expected, float)
    if exact or not (rule.abs_tol or rule.rel_tol):
        return False
    return max(map(_bits, (got, expected))) <= MAX_TEXT_BITS and near(
        _written(got), _written(expected), rule.abs_tol, rule.rel_tol
    )


def _bits(number: float) -> int:
    """Return the bits of an integer; a float has 0."""
    return number.bit_length() if isinstance(number, int) else 0


def _written(number: float) -> str:
    """Return a float as text: below 2**53 its shortest text (`3.00001`, not the nearest binary
    fraction), above as the integer that it is."""
    if isinstance(number, int):
        return str(int(number))
    return str(Decimal(number)).lower() if abs(number) >= _INTEGERS_FROM else repr(number)


def _parse_int(text: str) -> int:
    """Return a JSON integer. Raises ValueError above 5,000 digits, whose conversion would take
    quadratic time."""
    if len(text) > MAX_INT_DIGITS:
        raise ValueError("no encoding writes an integer of so many digits as a number")
    return int(text)


def _items(form: Any) -> list[Any]:
    """Return the items of a list or of a tagged form. A form with anything but a list there, which
    a program may forge, has none."""
    if isinstance(form, list):
        return form
    items = form.get("items")
    return items if isinstance(items, list) else []


def _kind(form: Any) -> str:
    """Return the type of an encoded form: its tag, which a program may forge (so messages use
    `kind_name`), "dict" or "list", else the name of a scalar's Python type."""
    if isinstance(form, dict):
        return str(form.get(TAG, "dict"))
    if isinstance(form, list):
        return "list"
    return type(form).__name__


def kind_name(form: Any) -> str:
    """Return the type's name for messages: one of a fixed list, else "value", since a program may
    forge the tag."""
    kind = _kind(form)
    return kind if kind in (*_NAMED, "NoneType", "list_node", "tree_node") else "value"


def _type_message(got: Any, expected: Any) -> str:
    return f"returned {kind_name(got)}, expected {kind_name(expected)}"


def _scalar_message(got: Any, expected: Any) -> str:
    """Return a message about two scalars that differ, which names only their types."""
    if kind_name(got) == kind_name(expected):
        return f"the returned {kind_name(got)} differs"
    return _type_message(got, expected)
