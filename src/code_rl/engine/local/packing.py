"""Micro-batches without waste: no padding in the matrix products, and a prompt shared by examples
is computed once.

Examples of one group have the same context (the leading positions without a loss). Their common
part becomes a *prefix*, and each rest a *suffix* that attends to its prefix and to itself. All
tokens of a micro-batch are in one flat vector (prefixes, then suffixes); only attention uses a
padded grid. An example that shares nothing is a suffix without a prefix.

The fused kernel for long examples does not support prefixes, so long examples have prefixes only
where these save more. A micro-batch of long examples fits the budget with its padding, or is
slightly more than its longest example if that is longer.
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
"""The padded grids of short units may have this many times the cells of the token budget."""


@dataclass(frozen=True)
class Suffix:
    """Example number `index` from position `start` to its end."""

    index: int
    start: int
    example: EngineExample

    @property
    def length(self) -> int:
        """Tokens in the suffix."""
        return len(self.example.tokens) - self.start


@dataclass(frozen=True)
class Unit:
    """Suffixes with one prefix of `prefix` tokens (0: none)."""

    prefix: int
    suffixes: tuple[Suffix, ...]

    @property
    def tokens(self) -> int:
        """The number of tokens computed for this unit."""
        return self.prefix + sum(suffix.length for suffix in self.suffixes)

    @property
    def width(self) -> int:
        """The number of tokens of its longest example."""
        return self.prefix + max(suffix.length for suffix in self.suffixes)


@dataclass(frozen=True)
class Grid:
    """The mapping between a padded grid [rows, width] and the flat vector.

    `gather` [rows · width] has the flat position of each grid cell (0 for padding, which is masked
    where it matters). `scatter` [n] has the grid cell of each flat position from `first` to `first
    + n`.
    """

    rows: int
    width: int
    gather: Tensor
    scatter: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Packed:
    """A micro-batch of n flat tokens. `prefixes` is None if nothing is shared; `suffixes` has
    `slots` rows for each prefix."""

    units: tuple[Unit, ...]
    tokens: Tensor
    positions: Tensor
    targets: Tensor
    prefixes: Grid | None
    suffixes: Grid
    slots: int
    prefix_tokens: int
    inputs: dict[str, Tensor]


def is_long(width: int) -> bool:
    """Return True if attention over `width` tokens is too large for plain products: over 1,024."""
    return width > PLAIN_ATTENTION_WIDTH


def plan(examples: Sequence[EngineExample], budget: int) -> Iterator[list[Unit]]:
    """Yield micro-batches of at most about `budget` tokens each, all with prefixes or all without,
    similar lengths together. Every example is in one of them; the plan depends on nothing but the
    examples and the budget."""
    room = max(budget, int(_ROOM * max(len(example.tokens) for example in examples)))
    shared, alone = _units(examples, budget, room)
    for units in (shared, alone):
        units.sort(key=lambda unit: (unit.prefix, unit.suffixes[0].length, unit.suffixes[0].index))
        batch: list[Unit] = []
        for unit in units:
            if batch and not _fits([*batch, unit], budget, room):
                yield batch
                batch = []
            batch.append(unit)
        if batch:
            yield batch


def _fits(units: Sequence[Unit], budget: int, room: int) -> bool:
    """Return True if the units fit into one micro-batch. For short units, their tokens fit the
    budget and their grids have at most `_PADDED` times `room` cells. With a long unit, all cells
    fit `room`."""
    slots = max(len(unit.suffixes) for unit in units)
    suffix = max(unit.width - unit.prefix for unit in units)
    cells = len(units) * (max(unit.prefix for unit in units) + slots * suffix)
    if is_long(max(unit.width for unit in units)):
        return cells <= room
    return sum(unit.tokens for unit in units) <= budget and cells <= _PADDED * room


def _units(
    examples: Sequence[EngineExample], budget: int, room: int
) -> tuple[list[Unit], list[Unit]]:
    """Group examples by common prefix; return units that share one, and those that gain nothing.
    Every example is in one of them."""
    groups: dict[bytes, list[int]] = {}
    for i, example in enumerate(examples):
        prefix = example.context if example.context < len(example.tokens) else 0
        key = (
            example.tokens[:prefix].tobytes() + b"|" + example.targets[:prefix].tobytes()
            if prefix >= MIN_STEM
            else b"%d" % i
        )
        groups.setdefault(key, []).append(i)
    shared: list[Unit] = []
    alone: list[Unit] = []
    for members in groups.values():
        for unit in _split(examples, members, budget, room):
            saves = len(unit.suffixes) > 1 and unit.width <= 2 * unit.prefix
            if len(members) > 1 and (saves or not is_long(unit.width)):
                shared.append(unit)
            else:
                alone.extend(Unit(0, (Suffix(b.index, 0, b.example),)) for b in unit.suffixes)
    return shared, alone


def _split(
    examples: Sequence[EngineExample], members: list[int], budget: int, room: int
) -> Iterator[Unit]:
    """Divide one group, of these indices, shortest suffixes first, into units that fit the budget;
    a single example is always a unit."""
    prefix = examples[members[0]].context
    suffixes = sorted(
        (Suffix(i, prefix, examples[i]) for i in members), key=lambda b: (b.length, b.index)
    )
    part: list[Suffix] = []
    for suffix in suffixes:
        if part and not _fits([Unit(prefix, (*part, suffix))], budget, room):
            yield Unit(prefix, tuple(part))
            part = []
        part.append(suffix)
    yield Unit(prefix, tuple(part))


def pack(units: Sequence[Unit], device: torch.device) -> Packed:
    """Lay a micro-batch out in tensors on `device`: the flat tokens of all prefixes, then of all
    suffixes, unit by unit. All units have prefixes, or none has."""
    with_prefixes = units[0].prefix > 0
    prefixes = [unit.suffixes[0].example for unit in units] if with_prefixes else []
    suffixes = [suffix for unit in units for suffix in unit.suffixes]
    tokens = [e.tokens[: u.prefix] for e, u in zip(prefixes, units, strict=False)]
    targets = [e.targets[: u.prefix] for e, u in zip(prefixes, units, strict=False)]
    starts = [0] * len(prefixes) + [suffix.start for suffix in suffixes]
    tokens += [suffix.example.tokens[suffix.start :] for suffix in suffixes]
    targets += [suffix.example.targets[suffix.start :] for suffix in suffixes]
    lengths = np.array([len(t) for t in tokens], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])

    slots = max(len(unit.suffixes) for unit in units) if with_prefixes else 1
    rows = [u * slots + s for u, unit in enumerate(units) for s in range(len(unit.suffixes))]
    n_prefixes, n_rows = len(prefixes), len(units) * slots
    suffix_grid = make_grid(n_rows, rows, offsets[n_prefixes:-1], lengths[n_prefixes:], device)
    prefix_grid = (
        make_grid(
            n_prefixes, list(range(n_prefixes)), offsets[:n_prefixes], lengths[:n_prefixes], device
        )
        if with_prefixes
        else None
    )
    inputs = {
        name: to_device(
            np.concatenate([b.example.inputs[name][b.start :] for b in suffixes]), device
        )
        for name in suffixes[0].example.inputs
    }
    return Packed(
        units=tuple(units),
        tokens=to_device(np.concatenate(tokens), device),
        positions=to_device(positions, device),
        targets=to_device(np.concatenate(targets), device),
        prefixes=prefix_grid,
        suffixes=suffix_grid,
        slots=slots,
        prefix_tokens=int(offsets[n_prefixes]),
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
    `offsets[i]` on; its `scatter` follows the order of `rows`.

    The width is the greatest length, rounded up to `multiple`. Rows that are not in `rows` are all
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
        to_device(gather.reshape(-1), device),
        to_device(np.concatenate(scatter), device),
        to_device(filled, device),
    )


def to_device(
    array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], device: torch.device
) -> Tensor:
    """Return the array as a tensor on the device. The host does not wait for the copy."""
    # Safe although the array may be freed at once: a driver stages memory of this kind first.
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)
