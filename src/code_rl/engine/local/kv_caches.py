"""Keys and values of sequences that are sampled together, and a step's attention to them.

A prompt's keys and values are stored once for several completions. Caches grow by `BLOCK` tokens,
one layer at a time, so that at most one layer is stored twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .device import fuses
from .forward import WIDTH, Prefilled, extended, weighted
from .packing import to_device
from .weights import Weights, even_rows

BLOCK = 64
# Completions of a prompt that attend in one call on a device, which computes all their pairs.
_GROUPED = 16


def round_up(tokens: int) -> int:
    """Return the tokens rounded up to a multiple of `WIDTH` (16)."""
    return -(-tokens // WIDTH) * WIDTH


def caches_of(device: torch.device) -> type[Caches]:
    """Return the kind of caches for a device: RowCaches for the processor, whose bits do not depend
    on other rows, else GroupCaches."""
    return GroupCaches if fuses(device) else RowCaches


class Caches(ABC):
    """The caches of rows, each with the number of its prompt in `prompt_of`.

    `step` counts the tokens that each row has sampled before, `limit` is the most that one will.
    """

    def __init__(
        self, weights: Weights, prompts: Prefilled, prompt_of: Sequence[int], limit: int
    ) -> None:
        """Take over the keys and values of `prompts`, which must not be used afterwards.
        `prompt_of` [rows] has each row's prompt, ascending; `limit` is in tokens."""
        self._weights, self._arch, self._device = weights, weights.arch, weights.device
        self._prompt_of, self._lengths = list(prompt_of), prompts.lengths
        self._width = prompts.values[0].shape[2]
        self._limit, self._capacity, self.step = limit, 0, 0

    @staticmethod
    @abstractmethod
    def cells_of(counts: Collection[int], width: int, limit: int) -> int:
        """Return the number of tokens that caches hold at their largest: `counts` are the
        completions per prompt, `width` and `limit` the tokens of a prompt and of a completion."""

    @property
    def cells(self) -> int:
        """The number of tokens that these caches hold at their largest, for the budget of
        memory."""
        limit = max(self._capacity, self._limit)
        return self.cells_of(np.bincount(self._prompt_of).tolist(), self._width, limit)

    def begin(self) -> Tensor:
        """Make room for the step's keys and values; return the position of each row's last token
        [rows]. Call it once a step, before the layers' `attend`; the caller then adds 1 to
        `step`."""
        if self.step == self._capacity:
            self._capacity = min(self._capacity + BLOCK, self._limit)
            self._grow()
        # A finished row runs on until it is dropped, possibly beyond the end of the tables.
        return (self._starts + self.step).clamp_(max=self._arch.max_context - 1)

    @abstractmethod
    def attend(self, i: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write layer i's new keys and values, and return its attention of the rows' last tokens,
        [rows, heads · d], from queries [rows, heads, d] (scaled already), keys and values [rows,
        kv, d]. Call it once a step for each layer, after `begin`."""

    def keep(self, rows: Sequence[int], limit: int) -> None:
        """Drop all other rows, and prompts without a row. `rows` are ascending; the others keep
        their order. `limit` is the most tokens that one of them will sample."""
        self._limit = limit
        left = [self._prompt_of[row] for row in rows]
        used = sorted(set(left))
        self._prompt_of = [used.index(prompt) for prompt in left]
        prompts = torch.tensor(used, device=self._device)
        self._lengths = self._lengths.index_select(0, prompts)
        self._select(rows, prompts)

    def _lay_out(self, unit: int) -> None:
        """Place the rows in a grid of prompts × slots, where the number of slots is the most rows
        of a prompt, rounded up to a multiple of `unit`. Rows of a prompt are adjacent."""
        prompt_of = np.array(self._prompt_of)
        counts = np.bincount(prompt_of)
        self._starts = self._lengths.index_select(0, to_device(prompt_of, self._device))
        slots = self._slots = -(-int(counts.max()) // unit) * unit
        before = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._slot_of = np.arange(len(prompt_of)) - before[prompt_of]
        places = prompt_of * slots + self._slot_of
        rows = np.zeros(len(counts) * slots, dtype=np.int64)
        rows[places] = np.arange(len(places))
        full = bool((counts == slots).all())
        # None: the rows fill the grid in order.
        self._places = None if full else to_device(places, self._device)
        self._rows = None if full else to_device(rows, self._device)

    def _spread(self, values: Tensor) -> Tensor:
        """Return the grid [prompts · slots, ...] of values per row; free slots repeat the first
        row."""
        return values if self._rows is None else values.index_select(0, self._rows)

    def _gathered(self, values: Tensor) -> Tensor:
        """Return the values per row, in the rows' order, from those of the grid's slots: the
        inverse of `_spread`."""
        return values if self._places is None else values.index_select(0, self._places)

    def _prefix_mask(self) -> Tensor:
        """Return an additive mask [prompts, 1, 1, width], in the weights' dtype, that hides the
        padding of prompts."""
        columns = torch.arange(self._width, device=self._device)
        hidden = (columns[None, :] >= self._lengths[:, None])[:, None, None, :]
        mask = torch.zeros(hidden.shape, dtype=self._weights.dtype, device=self._device)
        return mask.masked_fill_(hidden, float("-inf"))

    @abstractmethod
    def _grow(self) -> None:
        """Extend every layer's cache to `_capacity` tokens per row; tokens that are there stay."""

    @abstractmethod
    def _select(self, rows: Sequence[int], prompts: Tensor) -> None:
        """Keep the caches of these rows, in this order, and of these prompts [n], and lay the rows
        out again. `keep` calls it after it has renumbered the prompts."""


class RowCaches(Caches):
    """Prefixes per prompt, and for each row a cache in which token t has index t. Attention gives a
    row the same bits whatever other rows there are (see `decode`)."""

    def __init__(
        self, weights: Weights, prompts: Prefilled, prompt_of: Sequence[int], limit: int
    ) -> None:
        """Keep the keys and values of `prompts`, and begin empty caches of the rows' own."""
        super().__init__(weights, prompts, prompt_of, limit)
        self._prefix_keys, self._prefix_values = prompts.keys, prompts.values
        rows, kv, d = len(prompt_of), self._arch.kv_heads, self._arch.head_dim
        self._keys = [prompts.values[0].new_zeros(rows, kv, d, 0) for _ in weights.layers]
        self._values = [prompts.values[0].new_zeros(rows, kv, 0, d) for _ in weights.layers]
        self._arrange()

    @staticmethod
    def cells_of(counts: Collection[int], width: int, limit: int) -> int:
        """Return the tokens of the prompts, padded to `width`, and of all rows at `limit` tokens
        each."""
        return len(counts) * width + sum(counts) * limit

    def attend(self, i: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write this step's keys and values [rows, kv, d], and return each row's attention [rows,
        heads · d] over its prompt and its own tokens, from scaled queries [rows, heads, d]."""
        arch, step = self._arch, self.step
        self._keys[i][:, :, :, step] = key
        self._values[i][:, :, step] = value
        rows, prefix = len(query), self._width
        query = query.reshape(rows, arch.kv_heads, arch.queries_per_kv, arch.head_dim)
        to_prefix = self._prefix_matmul(query, self._prefix_keys[i], self._mask)
        # Rounding depends on a row's alignment in memory. Up to four more columns give all rows the
        # same alignment.
        to_own = (query @ self._keys[i][..., : (step + 4) // 4 * 4])[..., : step + 1]
        probs = torch.softmax(torch.cat([to_prefix, to_own], dim=-1), dim=-1)
        out = self._prefix_matmul(probs[..., :prefix], self._prefix_values[i])
        out = out + probs[..., prefix:] @ self._values[i][:, :, : step + 1]
        return out.reshape(rows, arch.q_width)

    def _prefix_matmul(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Tensor:
        """Multiply each row's [kv, per, m] with its prompt's [kv, m, n], one product per prompt for
        all its rows. Returns [rows, kv, per, n].

        `mask` [prompts, 1, 1, n] is added to the result.
        """
        left = self._spread(left)
        n, slots = len(right), self._slots
        kv, per, m = left.shape[1:]
        folded = left.reshape(n, slots, kv, per, m).transpose(1, 2).reshape(n, kv, slots * per, m)
        product = weighted(self._arch, folded, right) if mask is None else folded @ right + mask
        out = product.view(n, kv, slots, per, -1).transpose(1, 2).reshape(n * slots, kv, per, -1)
        return self._gathered(out)

    def _arrange(self) -> None:
        """Lay the rows out again and rebuild the mask. Rows are padded to a unit at which matrix
        products round alike."""
        per, unit = self._arch.queries_per_kv, 1
        while even_rows(unit * per) != unit * per:
            unit += 1
        self._lay_out(unit)
        self._mask = self._prefix_mask()

    def _grow(self) -> None:
        """Extend the rows' own caches of every layer to `_capacity` tokens, one layer at a time."""
        for i in range(self._arch.layers):
            self._keys[i] = extended(self._keys[i], 3, self._capacity)
            self._values[i] = extended(self._values[i], 2, self._capacity)

    def _select(self, rows: Sequence[int], prompts: Tensor) -> None:
        """Keep the caches of these rows, in this order, and of these prompts [n], and lay the rows
        out again."""
        index = torch.tensor(rows, device=self._device)
        kept = [(self._keys, index), (self._values, index)]
        if len(prompts) < len(self._prefix_keys[0]):
            kept += [(self._prefix_keys, prompts), (self._prefix_values, prompts)]
        for caches, chosen in kept:
            for i, cache in enumerate(caches):
                caches[i] = cache.index_select(0, chosen)
        self._arrange()


class GroupCaches(Caches):
    """Caches for few launches a step: one tensor a layer, [2, groups, kv, cells, d], keys then
    values.

    A group is at most `_GROUPED` completions of a prompt, and counts as a prompt of its own. Its
    cells are the prompt's, then those of each step for all slots. One call attends from all
    completions of a group to all its cells, under a mask that hides those of the others.
    """

    def __init__(
        self, weights: Weights, prompts: Prefilled, prompt_of: Sequence[int], limit: int
    ) -> None:
        """Divide the rows of a prompt into groups, and move the keys and values out of `prompts`,
        layer by layer, which empties its lists."""
        super().__init__(weights, prompts, prompt_of, limit)
        seen = np.arange(len(prompt_of)) - np.searchsorted(prompt_of, prompt_of)
        parts = list(zip(prompt_of, (seen // _GROUPED).tolist(), strict=True))
        groups = list(dict.fromkeys(parts))
        self._prompt_of = [groups.index(part) for part in parts]
        index = torch.tensor([prompt for prompt, _ in groups], device=self._device)
        self._lengths = self._lengths.index_select(0, index)
        self._cells: list[Tensor] = []
        for _ in weights.layers:
            both = torch.stack([prompts.keys.pop(0).transpose(2, 3), prompts.values.pop(0)])
            self._cells.append(both if len(index) == both.shape[1] else both.index_select(1, index))
        self._arrange()

    @staticmethod
    def cells_of(counts: Collection[int], width: int, limit: int) -> int:
        """Return the tokens of all groups: the prompt's, padded to `width`, and `limit` for each of
        the largest group's slots."""
        groups = sum(-(-count // _GROUPED) for count in counts)
        return groups * (width + min(max(counts), _GROUPED) * limit)

    def begin(self) -> Tensor:
        """Return the position of each row's last token [rows], and let each row see its own new
        cell of this step."""
        positions, slots = super().begin(), self._slots
        start = self._width + self.step * slots
        self._now = slice(start, start + slots)
        # Each slot may see its own new cell.
        new = self._mask.view(len(self._lengths), slots, -1, self._mask.shape[-1])[..., self._now]
        new.diagonal(dim1=1, dim2=3).zero_()
        return positions

    def attend(self, i: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Do the same as `RowCaches.attend`, for all rows of a group at once, by the fused
        kernel."""
        arch, slots, n = self._arch, self._slots, len(self._lengths)
        kv, per, d = arch.kv_heads, arch.queries_per_kv, arch.head_dim
        for half, new in enumerate((key, value)):
            cells = self._spread(new).view(n, slots, kv, d).transpose(1, 2)
            self._cells[i][half, :, :, self._now] = cells
        # Kernels want a multiple of 16 columns; the mask hides those that are not filled.
        keys, values = self._cells[i][:, :, :, : round_up(self._now.stop)]
        folded = self._spread(query).view(n, slots, kv, per, d).transpose(1, 2)
        out = F.scaled_dot_product_attention(
            folded.reshape(n, kv, slots * per, d),
            keys,
            values,
            attn_mask=self._mask[..., : keys.shape[2]],
            scale=1.0,
        )
        rows = out.view(n, kv, slots, per, d).transpose(1, 2).reshape(n * slots, arch.q_width)
        return self._gathered(rows)

    def _arrange(self) -> None:
        """Lay the rows out again and rebuild the mask."""
        self._lay_out(1)
        self._mask = self._whole_mask()

    def _whole_mask(self) -> Tensor:
        """Return an additive mask [groups, 1, slots · per, cells] of the prompt's cells and of each
        slot's own cells before this step; `begin` opens those of the step."""
        n, slots, per = len(self._lengths), self._slots, self._arch.queries_per_kv
        own = self._lengths.new_full(
            (slots, per, self._capacity, slots), float("-inf"), dtype=self._weights.dtype
        )
        own[:, :, : self.step].diagonal(dim1=0, dim2=3).zero_()
        prefix = self._prefix_mask().expand(-1, -1, slots * per, -1)
        return torch.cat([prefix, own.view(1, 1, slots * per, -1).expand(n, -1, -1, -1)], dim=-1)

    def _grow(self) -> None:
        """Extend the mask, then every layer's cells, to the new capacity; cells that are there
        stay."""
        # First, while the caches are at their smallest.
        self._mask = self._whole_mask()
        for i, cells in enumerate(self._cells):
            self._cells[i] = extended(cells, 3, self._width + self._capacity * self._slots)

    def _select(self, rows: Sequence[int], prompts: Tensor) -> None:
        """Keep these rows, moved into the fewest slots, and these groups [n], and rebuild the
        mask."""
        slot_of, slots = self._slot_of[list(rows)], self._slots
        self._lay_out(1)
        source = np.zeros((len(prompts), self._slots), dtype=np.int64)
        source[self._prompt_of, self._slot_of] = slot_of
        index = to_device(source, self._device)[None, :, None, None, :, None]
        for i, cells in enumerate(self._cells):
            left = cells.index_select(1, prompts)
            prefix, own = left[:, :, :, : self._width], left[:, :, :, self._width :]
            own = own.reshape(*own.shape[:3], self._capacity, slots, -1)
            own = own.gather(4, index.expand(*own.shape[:4], self._slots, own.shape[5]))
            self._cells[i] = torch.cat([prefix, own.flatten(3, 4)], dim=3)
        self._mask = self._whole_mask()
