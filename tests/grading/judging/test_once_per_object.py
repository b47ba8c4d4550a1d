"""What is computed once for an object is forgotten with it."""

from __future__ import annotations

import gc

from code_rl.util.memo import once_per_object


class Thing:
    """An object that can be referred to weakly."""


def test_each_object_is_computed_once_and_its_result_goes_with_it():
    asked: list[int] = []

    @once_per_object
    def number(thing: Thing) -> int:
        asked.append(id(thing))
        return len(asked)

    first, second = Thing(), Thing()
    assert [number(first), number(second), number(first)] == [1, 2, 1]
    del first
    gc.collect()
    again = Thing()  # perhaps where the first one was
    assert number(again) == 3
    assert number(second) == 2
