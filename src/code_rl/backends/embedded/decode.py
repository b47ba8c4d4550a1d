"""Batched sampling: one prefill per distinct prompt, then steps over all unfinished sequences together.

Layout. A prompt's keys and values are kept once and shared by its completions: at each step the queries of all its
completions meet them in one matrix product. A completion's own keys and values lie in a static cache, in which token t has
index t. Finished rows are dropped when enough of them have gathered.

Independence from the batch. Everything is computed row by row except matrix products, and for the built-in model's sizes
these give a row the same bits for any number of other rows that `even_rows` allows (measured with MKL on Intel and AMD processors). So
the batch is never allowed below `MIN_ROWS`, and prompts are padded to multiples of `WIDTH`, where trailing zeros add nothing. For large models, other libraries and GPUs, logits may differ in the last bits between batch shapes; a token then
changes only where its uniform number falls into that gap.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from .forward import PLAIN_ATTENTION_WIDTH, attend_causal, causal_mask, decoder_layer, target_logprobs, weighted
from .kernels import rms_norm
from .packing import make_grid
from .picking import Choice, Picker
from .weights import Weights, even_rows

MIN_ROWS = 16
WIDTH = 16
FIRST_CAPACITY = 64
PREFILL_TOKENS = 8192
COMPACT_BELOW = 0.85


@dataclass(frozen=True)
class Draw:
    """One completion to sample: which prompt it continues, how far, how tokens are chosen, where it stops.

    `stop_tokens` end it and are kept as its last token; `stopped(tokens)`, when given, is asked after every token.
    """

    prompt: int
    max_tokens: int
    choice: Choice
    stop_tokens: frozenset[int]
    stopped: Callable[[list[int]], bool] | None = None


@dataclass(frozen=True)
class Completion:
    """Tokens [n] int32 and log-probabilities [n] fp32 of a sampled sequence; `stopped` is false when it ran out of tokens."""

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    stopped: bool


@dataclass(frozen=True)
class Prompt:
    """Tokens to continue; `scored_at` is the temperature at which their own log-probabilities are wanted (None: not at all)."""

    tokens: tuple[int, ...]
    scored_at: float | None = None


@dataclass(frozen=True)
class Prefilled:
    """Prompts after their forward pass: keys per layer [P, kv, d, width], values [P, kv, width, d], lengths [P], last logits [P, vocab],
    log-probabilities [n] of each (NaN first; empty where they are not wanted).
    """

    keys: list[Tensor]
    values: list[Tensor]
    lengths: Tensor
    logits: Tensor
    logprobs: list[npt.NDArray[np.float32]]


@torch.inference_mode()
def prefill(weights: Weights, prompts: Sequence[Prompt]) -> Prefilled:
    """Run the prompts through the model."""
    parts: list[list[Prompt]] = [[]]
    for prompt in prompts:
        if parts[-1] and sum(len(p.tokens) for p in parts[-1]) + len(prompt.tokens) > PREFILL_TOKENS:
            parts.append([])
        parts[-1].append(prompt)
    done = [_prefill(weights, part) for part in parts]
    if len(done) == 1:
        return done[0]
    width = max(part.values[0].shape[2] for part in done)

    def joined(caches: list[list[Tensor]], axis: int) -> list[Tensor]:
        return [
            torch.cat([_extended(cache, axis, width - cache.shape[axis]) for cache in of_layer])
            for of_layer in zip(*caches, strict=True)
        ]

    return Prefilled(
        keys=joined([part.keys for part in done], 3),
        values=joined([part.values for part in done], 2),
        lengths=torch.cat([part.lengths for part in done]),
        logits=torch.cat([part.logits for part in done]),
        logprobs=[scored for part in done for scored in part.logprobs],
    )


def _extended(cache: Tensor, axis: int, more: int) -> Tensor:
    """The cache with `more` zeros after its end along `axis`."""
    shape = list(cache.shape)
    shape[axis] = more
    return torch.cat([cache, cache.new_zeros(shape)], dim=axis)


def _prefill(weights: Weights, prompts: Sequence[Prompt]) -> Prefilled:
    arch, device = weights.arch, weights.device
    lengths = np.array([len(p.tokens) for p in prompts], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    grid = make_grid(len(prompts), range(len(prompts)), offsets[:-1], lengths, device, multiple=WIDTH)
    tokens = torch.from_numpy(np.concatenate([np.asarray(p.tokens, dtype=np.int64) for p in prompts])).to(device)
    positions = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])).to(device)
    cos, sin = weights.cos[positions].unsqueeze(1), weights.sin[positions].unsqueeze(1)
    mask = causal_mask(grid.width, weights.dtype, device) if grid.width <= PLAIN_ATTENTION_WIDTH else None
    x = F.embedding(tokens, weights.embed)
    keys: list[Tensor] = []
    values: list[Tensor] = []
    shape = (grid.rows, grid.width, arch.kv_heads, arch.head_dim)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys.append(key.index_select(0, grid.gather).view(shape).permute(0, 2, 3, 1).contiguous())
        values.append(value.index_select(0, grid.gather).view(shape).transpose(1, 2).contiguous())
        return attend_causal(weights, grid, mask, query, key, value)

    for layer in weights.layers:
        x = decoder_layer(weights, layer, x, cos, sin, attend)
    ends = torch.from_numpy(offsets[1:] - 1).to(device)
    last = rms_norm(x.index_select(0, ends), weights.norm, arch.norm_eps)
    logits = weights.head(last).float()
    found = [np.empty(0, dtype=np.float32) for _ in prompts]
    for temperature in {p.scored_at for p in prompts if p.scored_at is not None}:
        states = rms_norm(x, weights.norm, arch.norm_eps)
        following = torch.cat([tokens[1:], tokens[:1]])
        scored = target_logprobs(weights, states, following, temperature).cpu().numpy()
        nothing = np.full(1, np.nan, dtype=np.float32)
        for i, (a, b) in enumerate(itertools.pairwise(offsets)):
            if prompts[i].scored_at == temperature:
                found[i] = np.concatenate([nothing, scored[a : b - 1]])
    return Prefilled(keys, values, grid.lengths, logits, found)


def decode(weights: Weights, prompts: Prefilled, sequences: Sequence[Draw]) -> list[Completion]:
    """Sample every sequence to its end; results are in the order of `sequences`."""
    if not sequences:
        return []
    with torch.inference_mode():
        return _Run(weights, prompts, sequences).finish()


@dataclass
class _Rows:
    """The rows in the cache: the sequence of each, and how they are laid out by prompt.

    `cells` [rows] places rows in a grid of prompts × slots, `grid` [prompts · slots] says which row each cell holds; both are
    None when the rows fill that grid in order.
    """

    ids: list[int]
    slots: int = 0
    cells: Tensor | None = None
    grid: Tensor | None = None
    alive: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))


class _Run:
    def __init__(self, weights: Weights, prompts: Prefilled, sequences: Sequence[Draw]) -> None:
        self.weights, self.arch, self.device = weights, weights.arch, weights.device
        self.sequences = sequences
        order = sorted(range(len(sequences)), key=lambda i: sequences[i].prompt)
        ids = order + [order[-1]] * max(0, MIN_ROWS - len(order))
        alive = np.arange(len(ids)) < len(order)
        self.prompt_of = [sequences[i].prompt for i in ids]
        self.stem_keys, self.stem_values = prompts.keys, prompts.values
        self.stem_lengths = prompts.lengths
        self.logits = prompts.logits.index_select(0, torch.tensor(self.prompt_of, device=self.device))
        self._renumber_prompts()
        self.rows = _Rows(ids, alive=alive)
        self._lay_out()
        longest = max(s.max_tokens for s in sequences)
        self.capacity = min(FIRST_CAPACITY, -(-longest // WIDTH) * WIDTH)
        rows, kv, d = len(ids), self.arch.kv_heads, self.arch.head_dim
        zeros = self.stem_values[0].new_zeros
        self.keys = [zeros(rows, kv, d, self.capacity) for _ in weights.layers]
        self.values = [zeros(rows, kv, self.capacity, d) for _ in weights.layers]
        self.picker = Picker([sequences[i].choice for i in ids], self.device)
        self.limits = np.array([sequences[i].max_tokens for i in ids])
        self.stop_table, self.stop_sets = self._stops()
        self.tokens = np.zeros((FIRST_CAPACITY, len(sequences)), dtype=np.int32)
        self.logprobs = np.zeros((FIRST_CAPACITY, len(sequences)), dtype=np.float32)
        self.lengths = np.zeros(len(sequences), dtype=np.int64)
        self.stopped = np.zeros(len(sequences), dtype=np.bool_)
        self.texts: dict[int, list[int]] = {i: [] for i, s in enumerate(sequences) if s.stopped is not None}

    def finish(self) -> list[Completion]:
        step = 0
        while True:
            token, logprob = self.picker.pick(self.logits)
            self._record(step, token.cpu().numpy(), logprob.cpu().numpy())
            if not self.rows.alive.any():
                break
            if self.rows.alive.sum() <= COMPACT_BELOW * len(self.rows.ids) and len(self.rows.ids) > MIN_ROWS:
                token = self._compact(token)
            self._step(step, token)
            step += 1
        return [
            Completion(self.tokens[:n, i].copy(), self.logprobs[:n, i].copy(), bool(self.stopped[i]))
            for i, n in enumerate(self.lengths.tolist())
        ]

    def _record(self, step: int, token: npt.NDArray[np.int64], logprob: npt.NDArray[np.float32]) -> None:
        if step == len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.zeros_like(self.tokens)])
            self.logprobs = np.concatenate([self.logprobs, np.zeros_like(self.logprobs)])
        alive = np.flatnonzero(self.rows.alive)
        ids = np.asarray(self.rows.ids)[alive]
        self.tokens[step, ids] = token[alive]
        self.logprobs[step, ids] = logprob[alive]
        self.lengths[ids] = step + 1
        stopping = self.stop_table[self.stop_sets[alive], token[alive]]
        for i, row in enumerate(alive) if self.texts else ():
            text = self.texts.get(int(ids[i]))
            if text is not None:
                text.append(int(token[row]))
                ask = self.sequences[ids[i]].stopped
                stopping[i] = stopping[i] or (ask is not None and ask(text))
        self.stopped[ids] = stopping
        self.rows.alive[alive] = ~(stopping | (step + 1 >= self.limits[alive]))

    def _step(self, step: int, token: Tensor) -> None:
        weights, arch = self.weights, self.arch
        if step == self.capacity:
            self._grow()
        # A finished row runs on until it is dropped, possibly past the end of the tables.
        positions = (self.starts + step).clamp_(max=arch.max_context - 1)
        cos, sin = weights.cos[positions].unsqueeze(1), weights.sin[positions].unsqueeze(1)
        x = F.embedding(token, weights.embed)
        for i, layer in enumerate(weights.layers):
            x = decoder_layer(weights, layer, x, cos, sin, partial(self._attend, i, step))
        self.logits = weights.head(rms_norm(x, weights.norm, arch.norm_eps)).float()

    def _attend(self, i: int, step: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        arch = self.arch
        self.keys[i][:, :, :, step] = key
        self.values[i][:, :, step] = value
        rows, stem = len(query), self.stem_mask.shape[-1]
        query = query.reshape(rows, arch.kv_heads, arch.queries_per_kv, arch.head_dim)
        to_stem = self._meet(query, self.stem_keys[i], self.stem_mask)
        # Where a row's result starts in memory decides its rounding; four columns more at most, and every row starts alike.
        to_own = (query @ self.keys[i][..., : (step + 4) // 4 * 4])[..., : step + 1]
        probs = torch.softmax(torch.cat([to_stem, to_own], dim=-1), dim=-1)
        out = self._meet(probs[..., :stem], self.stem_values[i])
        out = out + probs[..., stem:] @ self.values[i][:, :, : step + 1]
        return out.reshape(rows, arch.q_width)

    def _meet(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Tensor:
        """Multiply each row's [kv, per, m] with its prompt's [kv, m, n]: one product per prompt for all its rows.

        `mask` [prompts, 1, 1, n] is added to the result.
        """
        rows = self.rows
        if rows.grid is not None:
            left = left.index_select(0, rows.grid)
        n, slots = len(right), rows.slots
        kv, per, m = left.shape[1:]
        folded = left.reshape(n, slots, kv, per, m).transpose(1, 2).reshape(n, kv, slots * per, m)
        product = weighted(self.arch, folded, right) if mask is None else folded @ right + mask
        out = product.view(n, kv, slots, per, -1).transpose(1, 2).reshape(n * slots, kv, per, -1)
        return out if rows.cells is None else out.index_select(0, rows.cells)

    def _compact(self, token: Tensor) -> Tensor:
        """Drop finished rows (all but enough to keep MIN_ROWS) and return the tokens of the rows that stay."""
        alive = self.rows.alive
        spare = np.flatnonzero(~alive)[: max(0, MIN_ROWS - int(alive.sum()))]
        keep = np.sort(np.concatenate([np.flatnonzero(alive), spare]))
        chosen = keep.tolist()
        index = torch.from_numpy(keep).to(self.device)
        self.prompt_of = [self.prompt_of[row] for row in chosen]
        self.rows = _Rows([self.rows.ids[row] for row in chosen], alive=alive[keep])
        self._renumber_prompts()
        self._lay_out()
        self.keys = [tensor.index_select(0, index) for tensor in self.keys]
        self.values = [tensor.index_select(0, index) for tensor in self.values]
        self.picker.keep(chosen)
        self.limits, self.stop_sets = self.limits[keep], self.stop_sets[keep]
        return token.index_select(0, index)

    def _renumber_prompts(self) -> None:
        """Forget prompts that no row continues; `prompt_of` and `row_prompts` number those that are left."""
        used = sorted(set(self.prompt_of))
        if len(used) < len(self.stem_lengths):
            index = torch.tensor(used, device=self.device)
            self.stem_keys = [tensor.index_select(0, index) for tensor in self.stem_keys]
            self.stem_values = [tensor.index_select(0, index) for tensor in self.stem_values]
            self.stem_lengths = self.stem_lengths.index_select(0, index)
        columns = torch.arange(self.stem_values[0].shape[2], device=self.device)
        hidden = (columns[None, :] >= self.stem_lengths[:, None])[:, None, None, :]
        self.stem_mask = torch.zeros(hidden.shape, dtype=self.weights.dtype, device=self.device)
        self.stem_mask.masked_fill_(hidden, float("-inf"))
        place = {prompt: i for i, prompt in enumerate(used)}
        self.prompt_of = [place[prompt] for prompt in self.prompt_of]
        self.row_prompts = torch.tensor(self.prompt_of, device=self.device)
        self.starts = self.stem_lengths.index_select(0, self.row_prompts)

    def _lay_out(self) -> None:
        counts = np.bincount(self.prompt_of)
        slots, per = int(counts.max()), self.arch.queries_per_kv
        while even_rows(slots * per) != slots * per:
            slots += 1
        self.rows.slots = slots
        if bool((counts == slots).all()):
            return
        seen = np.zeros(len(counts), dtype=np.int64)
        grid = np.zeros(len(counts) * slots, dtype=np.int64)
        cells = np.zeros(len(self.prompt_of), dtype=np.int64)
        for row, prompt in enumerate(self.prompt_of):
            cells[row] = prompt * slots + seen[prompt]
            grid[cells[row]] = row
            seen[prompt] += 1
        self.rows.cells = torch.from_numpy(cells).to(self.device)
        self.rows.grid = torch.from_numpy(grid).to(self.device)

    def _grow(self) -> None:
        self.keys = [_extended(cache, 3, self.capacity) for cache in self.keys]
        self.values = [_extended(cache, 2, self.capacity) for cache in self.values]
        self.capacity *= 2

    def _stops(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return which tokens end a completion, [sets, vocab], and which set each row has [rows]."""
        sets = list(dict.fromkeys(s.stop_tokens for s in self.sequences))
        table = np.zeros((len(sets), self.arch.vocab), dtype=np.bool_)
        for row, tokens in enumerate(sets):
            table[row, [t for t in tokens if 0 <= t < self.arch.vocab]] = True
        number = {tokens: i for i, tokens in enumerate(sets)}
        return table, np.array([number[self.sequences[i].stop_tokens] for i in self.rows.ids])
