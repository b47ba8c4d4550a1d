"""The training order of problems (a seeded shuffle per epoch), parts of a sequence by position, and
the held-out problems that are also training problems."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar, overload

from code_rl.grading import Problem
from code_rl.util.errors import require
from code_rl.util.files import digest

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

T = TypeVar("T")


class ProblemOrder:
    """Problems by position t in an endless stream: epoch t // N, shuffled anew each epoch. Any
    position is found without the earlier ones."""

    def __init__(self, problems: Sequence[Problem], seed: int) -> None:
        """Read no problem yet. `seed` decides every epoch's order."""
        self.problems = problems
        self._permutation = lru_cache(maxsize=2)(self._shuffle)
        self._seed = seed

    def batch(self, offset: int, count: int) -> list[Problem]:
        """Return the `count` problems from position `offset` on, possibly across epochs. The same
        seed, position and number of problems always choose the same index; resumed runs rely on
        it."""
        size = len(self.problems)
        return [
            self.problems[int(self._permutation(t // size)[t % size])]
            for t in range(offset, offset + count)
        ]

    def _shuffle(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the order of an epoch: a permutation that depends on the seed, the epoch and the
        number of problems only. It must not change, or resumed runs would see other problems."""
        import numpy as np

        return np.random.default_rng([self._seed, epoch]).permutation(len(self.problems))


class Indexed(Sequence[T]):
    """A sequence that gets each item from `at`; a slice is a view."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        """Return the item at a position (negative ones count from the end), or a view of a slice.
        Raises IndexError for a position out of range."""
        found = range(len(self))[index]
        return self.at(found) if isinstance(found, int) else Selected(self, found)

    @abstractmethod
    def at(self, position: int) -> T:
        """Return the item at a position, from 0 to the length minus 1, which the caller has
        checked."""


class Selected(Indexed[T]):
    """Some items of a sequence, by position. An item is fetched, and `change` applied to it, on
    access."""

    def __init__(
        self,
        items: Sequence[T],
        positions: Sequence[int],
        change: Callable[[T], T] = lambda item: item,
    ) -> None:
        """Fetch nothing yet. `positions` in `items` may have any order; `change` runs at each
        access."""
        self.items = items
        self.positions = positions
        self._change = change

    def at(self, position: int) -> T:
        """Return the item at a position of this view, changed."""
        return self._change(self.items[self.positions[position]])

    def __len__(self) -> int:
        return len(self.positions)


def subsample(items: Sequence[T], limit: int) -> Sequence[T]:
    """Return a fixed random subset of `limit` items in their own order, or all of them if it is
    negative or large enough. It depends only on `limit` and the number of items."""
    if limit < 0 or limit >= len(items):
        return items
    require("train", f"a draw of {limit} from {len(items)} problems", "numpy")
    import numpy as np

    chosen = np.random.default_rng(0).permutation(len(items))[:limit]
    return Selected(items, sorted(map(int, chosen)))


def keys_of(problem: Problem) -> tuple[str, str]:
    """Return a problem's keys, by which copies are found: its id, and a digest of its statement,
    without case and layout ("" without one)."""
    text = " ".join(problem.statement.lower().split())
    return problem.id, hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[
        :24
    ] if text else ""


def all_keys(problems: Sequence[Problem]) -> list[tuple[str, str]]:
    """Return `keys_of` each problem, in their order, without reading the problems if their store
    has the keys."""
    if isinstance(problems, Selected):
        every = all_keys(problems.items)
        return [every[at] for at in problems.positions]
    kept: list[tuple[str, str]] | None = getattr(problems, "keys", None)
    return [keys_of(problem) for problem in problems] if kept is None else kept


def fingerprint_of(problems: Sequence[Problem]) -> str:
    """Return a hash that differs between problems with other ids or statements, or in another
    order. Tests do not count."""
    return digest(getattr(problems, "fingerprint", None) or all_keys(problems))


def trained_on(
    train: Sequence[Problem], held_out: Mapping[str, Sequence[Problem]]
) -> dict[str, list[str]]:
    """Return, for each split, the ids of the problems that are among `train`, by id or by
    statement, in their order."""
    keys = all_keys(train)
    ids, texts = {each for each, _ in keys}, {text for _, text in keys if text}
    return {
        name: [each for each, text in map(keys_of, split) if each in ids or text in texts]
        for name, split in held_out.items()
    }
