"""Types that a test knows and the type checker does not; the test fails if a value has another."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Kind = TypeVar("Kind")


def each_is(kind: type[Kind], items: Iterable[object]) -> list[Kind]:
    """The items, each of which is a `kind`."""
    found = []
    for item in items:
        assert isinstance(item, kind), item
        found.append(item)
    return found
