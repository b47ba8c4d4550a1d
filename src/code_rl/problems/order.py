"""The order in which problems are trained on (a seeded shuffle per epoch, with wrap-around), and parts of a sequence by position."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from code_rl.problems.problem import Problem

T = TypeVar("T")


class ProblemOrder:
    """Position t in an endless stream: epoch t // N, shuffled anew each epoch. Any position is found without the earlier ones."""

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        self.problems = problems
        self._permutation = lru_cache(maxsize=2)(self._shuffle)
        self._seed = seed

    def batch(self, offset: int, count: int) -> list[Problem]:
        """The `count` problems from position `offset` on."""
        size = len(self.problems)
        return [self.problems[int(self._permutation(t // size)[t % size])] for t in range(offset, offset + count)]

    def _shuffle(self, epoch: int) -> npt.NDArray[np.int64]:
        return np.random.default_rng([self._seed, epoch]).permutation(len(self.problems))


class Selected(Sequence[T]):
    """Some items of a sequence, by position, fetched when they are asked for."""

    def __init__(self, items: Sequence[T], positions: Sequence[int]) -> None:
        self.items = items
        self.positions = positions

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return Selected(self.items, self.positions[index])
        return self.items[self.positions[index]]

    def __len__(self) -> int:
        return len(self.positions)


def subsample(items: Sequence[T], limit: int) -> Sequence[T]:
    """A fixed random subset of `limit` items in their own order, or all of them."""
    if limit < 0 or limit >= len(items):
        return items
    chosen = np.random.default_rng(0).permutation(len(items))[:limit]
    return Selected(items, sorted(map(int, chosen)))
