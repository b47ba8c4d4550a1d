"""The ways in which public rows write the arguments and the result of a call, as typed values.

APPS, TACO and the sets made from them document `inputs[i]` as the list of arguments and `outputs[i]` as the result, often wrapped in a list of
one; LiveCodeBench writes one JSON value a line. Rows stray from both. A `Reading` holds for all tests of a row or not at all, and
which reading is meant is not decided here: `settle.settle` runs the row's own solutions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from code_rl.problems.problem import CallTest
from code_rl.problems.sources.records import Reading, RowError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class _DoesNotFitError(Exception):
    """The value cannot be read this way."""


def call_tiers(inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[tuple[Reading, ...], ...]:
    """Every reading of raw call tests, the documented ones first. Raises RowError for values that no reading fits."""
    wanted = _fitting(_RESULTS, outputs)
    tiers = tuple(
        tuple(
            Reading(arguments, result, _tests(calls, values))
            for arguments, calls in _fitting(ways, inputs)
            for result, values in wanted
        )
        for ways in (_DOCUMENTED, _SEEN)
    )
    if not any(tiers):
        raise RowError("unknown_call_shape", f"input of type {type(inputs[0]).__name__}" if inputs else "no tests")
    return tuple(tier for tier in tiers if tier)


def _tests(calls: list[Arguments], values: list[Any]) -> tuple[CallTest, ...]:
    return tuple(CallTest(args, value, kwargs) for (args, kwargs), value in zip(calls, values, strict=True))


def _fitting(ways: dict[str, Callable[[Any], Any]], raw: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Each way that fits every value, with what it makes of them; ways that agree on all values are one."""
    found: list[tuple[str, list[Any]]] = []
    for name, way in ways.items():
        try:
            values = [way(value) for value in raw]
        except _DoesNotFitError:
            continue
        if not any(_same(values, earlier) for _, earlier in found):
            found.append((name, values))
    return found


def _same(one: Any, other: Any) -> bool:
    """Equality that tells True from 1 and 1 from 1.0."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return _same(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _argument_list(value: Any) -> Arguments:
    return tuple(_typed(value, list)), {}


def _lines(value: Any) -> Arguments:
    return tuple(_parsed(line) for line in _typed(value, str).split("\n") if line.strip()), {}


def _json_items(value: Any) -> Arguments:
    """A list of JSON texts, one an argument, or a list of one text with one argument a line."""
    items = _typed(value, list)
    return _lines(items[0]) if len(items) == 1 else (tuple(map(_parsed, items)), {})


def _named(value: Any) -> Arguments:
    names = _typed(value, dict)
    if not names or not all(isinstance(name, str) and name.isidentifier() for name in names):
        raise _DoesNotFitError
    return (), dict(names)


def _only_item(value: Any) -> Any:
    items = _typed(value, list)
    if len(items) != 1:
        raise _DoesNotFitError
    return items[0]


_DOCUMENTED: dict[str, Callable[[Any], Arguments]] = {
    "argument list": _argument_list,
    "argument a line": _lines,
    "argument list, integer keys": lambda value: (tuple(map(_with_integer_keys, _typed(value, list))), {}),
}
DOCUMENTED = frozenset(_DOCUMENTED)
"""The names of the ways of taking arguments that some set documents."""

_SEEN: dict[str, Callable[[Any], Arguments]] = {
    "argument list in a list": lambda value: _argument_list(_only_item(value)),
    "argument list as JSON texts": _json_items,
    "arguments by name": _named,
    "one argument": lambda value: ((value,), {}),
}
_RESULTS: dict[str, Callable[[Any], Any]] = {
    "result": lambda value: value,
    "result in a list": _only_item,
    "result as JSON text": lambda value: _parsed(value),
    "result as JSON text in a list": lambda value: _parsed(_only_item(value)),
    "result, integer keys": lambda value: _with_integer_keys(value),
    "result in a list, integer keys": lambda value: _with_integer_keys(_only_item(value)),
}


def _typed(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise _DoesNotFitError
    return value


def _parsed(text: Any) -> Any:
    sys.set_int_max_str_digits(0)
    try:
        return json.loads(_typed(text, str))
    except (ValueError, RecursionError):
        raise _DoesNotFitError from None


def _with_integer_keys(value: Any) -> Any:
    """JSON has no integer keys: a dict whose keys are all numerals may have been one with integers."""
    if isinstance(value, list):
        return [_with_integer_keys(item) for item in value]
    if not isinstance(value, dict):
        return value
    entries = {key: _with_integer_keys(item) for key, item in value.items()}
    if entries and all(isinstance(key, str) and key.lstrip("-").isdecimal() for key in entries):
        return {int(key): item for key, item in entries.items()}
    return entries
