"""Micro-batches without waste: no padding in the matrix products, and a prompt that examples share
is computed once.

Examples of one group have the same context (the leading positions whose loss is off). Their common
part becomes a *stem*, each rest a *branch* that attends to its stem and to itself. All tokens of a
micro-batch lie in one flat vector (stems, then branches); only attention sees a padded grid. An
example that shares nothing is a branch without a stem.

Long examples have stems only where these save more than the fused kernel, which knows no stems,
would. What a micro-batch of them holds, padding included, is at most the budget, or a little more
than the longest example where that is longer than it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .passes import EngineExample, Ints

MIN_STEM = 8
PLAIN_ATTENTION_WIDTH = 1024
_ROOM = 9 / 8
_PADDED = 2
"""Plain attention of short units computes padding too; so many times the room at most."""


@dataclass(frozen=True)
class Branch:
    """Example number `index` from position `start` to its end."""

    index: int
    start: int
    example: EngineExample

    @property
    def length(self) -> int:
        """Tokens in the branch."""
        return len(self.example.tokens) - self.start


@dataclass(frozen=True)
class Unit:
    """Branches with one stem of `stem` tokens (0: none)."""

    stem: int
    branches: tuple[Branch, ...]

    @property
    def tokens(self) -> int:
        """Tokens computed for this unit."""
        return self.stem + sum(branch.length for branch in self.branches)

    @property
    def width(self) -> int:
        """Tokens of its longest example."""
        return self.stem + max(branch.length for branch in self.branches)


@dataclass(frozen=True)
class Grid:
    """How a padded grid [rows, width] and the flat vector map to each other.

    `gather` [rows · width] picks flat positions (padding picks 0, and is masked wherever it
    matters); `scatter` [n] picks grid cells for the flat positions `first` to `first + n`.
    """

    rows: int
    width: int
    gather: Tensor
    scatter: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Packed:
    """A micro-batch of n flat tokens. `stems` is None when nothing is shared; `branches` has
    `slots` rows for each stem."""

    units: tuple[Unit, ...]
    tokens: Tensor
    positions: Tensor
    targets: Tensor
    stems: Grid | None
    branches: Grid
    slots: int
    stem_tokens: int
    inputs: dict[str, Tensor]


def is_long(width: int) -> bool:
    """Whether attention over so many tokens is too much for the plain products."""
    return width > PLAIN_ATTENTION_WIDTH


def plan(examples: Sequence[EngineExample], budget: int) -> Iterator[list[Unit]]:
    """Yield micro-batches of at most about `budget` tokens each, all with stems or all without,
    similar lengths together."""
    room = max(budget, int(_ROOM * max(len(example.tokens) for example in examples)))
    shared, alone = _units(examples, budget, room)
    for units in (shared, alone):
        units.sort(key=lambda unit: (unit.stem, unit.branches[0].length, unit.branches[0].index))
        batch: list[Unit] = []
        for unit in units:
            if batch and not _fits([*batch, unit], budget, room):
                yield batch
                batch = []
            batch.append(unit)
        if batch:
            yield batch


def _fits(units: Sequence[Unit], budget: int, room: int) -> bool:
    """Short units: their tokens within the budget, and all cells of their grids within `_PADDED`
    times the room. With a long one: the cells within `room`."""
    slots = max(len(unit.branches) for unit in units)
    branch = max(unit.width - unit.stem for unit in units)
    cells = len(units) * (max(unit.stem for unit in units) + slots * branch)
    if is_long(max(unit.width for unit in units)):
        return cells <= room
    return sum(unit.tokens for unit in units) <= budget and cells <= _PADDED * room


def _units(
    examples: Sequence[EngineExample], budget: int, room: int
) -> tuple[list[Unit], list[Unit]]:
    groups: dict[bytes, list[int]] = {}
    for i, example in enumerate(examples):
        stem = example.context if example.context < len(example.tokens) else 0
        key = (
            example.tokens[:stem].tobytes() + b"|" + example.targets[:stem].tobytes()
            if stem >= MIN_STEM
            else b"%d" % i
        )
        groups.setdefault(key, []).append(i)
    shared: list[Unit] = []
    alone: list[Unit] = []
    for members in groups.values():
        for unit in _split(examples, members, budget, room):
            saves = len(unit.branches) > 1 and unit.width <= 2 * unit.stem
            if len(members) > 1 and (saves or not is_long(unit.width)):
                shared.append(unit)
            else:
                alone.extend(Unit(0, (Branch(b.index, 0, b.example),)) for b in unit.branches)
    return shared, alone


def _split(
    examples: Sequence[EngineExample], members: list[int], budget: int, room: int
) -> Iterator[Unit]:
    stem = examples[members[0]].context
    branches = sorted(
        (Branch(i, stem, examples[i]) for i in members), key=lambda b: (b.length, b.index)
    )
    part: list[Branch] = []
    for branch in branches:
        if part and not _fits([Unit(stem, (*part, branch))], budget, room):
            yield Unit(stem, tuple(part))
            part = []
        part.append(branch)
    yield Unit(stem, tuple(part))


def pack(units: Sequence[Unit], device: torch.device) -> Packed:
    """Lay a micro-batch out in tensors on `device`."""
    with_stems = units[0].stem > 0
    stems = [unit.branches[0].example for unit in units] if with_stems else []
    branches = [branch for unit in units for branch in unit.branches]
    tokens = [e.tokens[: u.stem] for e, u in zip(stems, units, strict=False)]
    targets = [e.targets[: u.stem] for e, u in zip(stems, units, strict=False)]
    starts = [0] * len(stems) + [branch.start for branch in branches]
    tokens += [branch.example.tokens[branch.start :] for branch in branches]
    targets += [branch.example.targets[branch.start :] for branch in branches]
    lengths = np.array([len(t) for t in tokens], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])

    slots = max(len(unit.branches) for unit in units) if with_stems else 1
    rows = [u * slots + s for u, unit in enumerate(units) for s in range(len(unit.branches))]
    n_stems, n_rows = len(stems), len(units) * slots
    branch_grid = make_grid(n_rows, rows, offsets[n_stems:-1], lengths[n_stems:], device)
    stem_grid = (
        make_grid(n_stems, list(range(n_stems)), offsets[:n_stems], lengths[:n_stems], device)
        if with_stems
        else None
    )
    inputs = {
        name: _to(np.concatenate([b.example.inputs[name][b.start :] for b in branches]), device)
        for name in branches[0].example.inputs
    }
    return Packed(
        units=tuple(units),
        tokens=_to(np.concatenate(tokens), device),
        positions=_to(positions, device),
        targets=_to(np.concatenate(targets), device),
        stems=stem_grid,
        branches=branch_grid,
        slots=slots,
        stem_tokens=int(offsets[n_stems]),
        inputs=inputs,
    )


def make_grid(
    n_rows: int,
    rows: Sequence[int],
    offsets: Ints,
    lengths: Ints,
    device: torch.device,
    multiple: int = 1,
) -> Grid:
    """Return the grid in which row `rows[i]` holds the `lengths[i]` flat positions from
    `offsets[i]` on.

    The width is the greatest length, rounded up to `multiple`; rows that nothing names are all
    padding.
    """
    width = -(-int(lengths.max()) // multiple) * multiple
    gather = np.zeros((n_rows, width), dtype=np.int64)
    scatter: list[Ints] = []
    filled = np.zeros(n_rows, dtype=np.int64)
    for row, offset, length in zip(rows, offsets.tolist(), lengths.tolist(), strict=True):
        gather[row, :length] = np.arange(offset, offset + length)
        scatter.append(np.arange(row * width, row * width + length))
        filled[row] = length
    return Grid(
        n_rows,
        width,
        _to(gather.reshape(-1), device),
        _to(np.concatenate(scatter), device),
        _to(filled, device),
    )


def _to(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
