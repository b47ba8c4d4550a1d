"""Results that belong to an object, computed once and forgotten with it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

Owner = TypeVar("Owner")
Result = TypeVar("Result")


class once_per_object(Generic[Owner, Result]):  # noqa: N801 - a decorator
    """Makes a function of one object compute its result once for each object, by identity. The
    object must not change. Two threads may both compute it."""

    def __init__(self, function: Callable[[Owner], Result]) -> None:
        """Wrap `function`, whose results are kept here as long as their objects live."""
        self._function = function
        self._results: dict[int, tuple[weakref.ref[Owner], Result]] = {}

    def __call__(self, owner: Owner) -> Result:
        """Return the kept result for this very object, or compute it now. An exception is not kept.
        The object must support weak references."""
        key = id(owner)
        if key not in self._results:
            alive = weakref.ref(owner, lambda _: self._results.pop(key, None))
            self._results[key] = alive, self._function(owner)
        return self._results[key][1]
