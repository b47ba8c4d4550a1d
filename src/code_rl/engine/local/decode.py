"""Batched sampling: one prefill per distinct prompt, then steps over all unfinished sequences
together.

Batches. Sequences that begin together are a batch and share a step count. A batch begins as soon as
the caches' budget has room, without waiting for the longest row of an earlier batch. Matrix
products with weights run over the rows of all batches together; attention runs per batch.

Layout. A prompt's keys and values are stored once and shared by its completions: at each step, one
matrix product multiplies them with the queries of all its completions. A completion's own keys and
values are in a cache where token t has index t. Caches grow by `BLOCK` tokens, one layer at a time.
Finished rows are dropped once there are enough of them.

Independence from the batch. All operations but matrix products are computed row by row. For the
built-in model's sizes a matrix product gives a row the same bits for every number of other rows
that `even_rows` allows (measured with MKL on Intel and AMD processors). So a batch has at least
`MIN_ROWS` rows, and prompts are padded to multiples of `WIDTH`, where trailing zeros add nothing.
For large models, other libraries and GPUs, the last bits of logits may differ between batch shapes.
A token then changes only if its uniform number falls into that difference.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from code_rl.util.errors import BackendError

from .device import Device
from .forward import (
    PREFILL_TOKENS,
    WIDTH,
    Prefilled,
    Prompt,
    Scored,
    decoder_layer,
    extended,
    prefill,
    rms_norm,
    weighted,
)
from .picking import Choice, Picker
from .weights import Architecture, Weights, even_rows

MAX_ROWS = 256
MIN_ROWS = 16
BLOCK = 64
COMPACT_BELOW = 0.85
_WORTH_A_COHORT = 4


@dataclass(frozen=True)
class SequenceRequest:
    """One completion to sample: its owner, its prompt, its token limit, how its tokens are chosen,
    and where it stops.

    A token of `stop_tokens` ends the completion and is kept as its last token. `stopped(tokens)`,
    if given, is called after every token.
    """

    place: tuple[int, int]
    prompt: Prompt
    max_tokens: int
    choice: Choice
    stop_tokens: frozenset[int]
    stopped: Callable[[list[int]], bool] | None = None


@dataclass(frozen=True)
class Completion:
    """Tokens [n] int32 and log-probabilities [n] fp32 of a sampled sequence. `stopped` is False if
    it reached its token limit.

    `scored` has the prompt's scores.
    """

    tokens: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    stopped: bool
    scored: Scored


@torch.inference_mode()
def decode(
    weights: Weights,
    waiting: deque[SequenceRequest],
    budget: int,
    arrived: Callable[[], None] = lambda: None,
) -> Iterator[tuple[SequenceRequest, Completion]]:
    """Sample queued requests in order and yield each with its completion as it finishes.

    `arrived` is called before every step and may add to `waiting`. The caches take at most `budget`
    bytes, unless a single row needs more. Requests share a prompt only if it is the same object.
    """
    batches: list[_Batch] = []
    tried = (-1, 0)
    while waiting or batches:
        arrived()
        now = (sum(batch.cells for batch in batches), len(waiting))
        requests = _admitted(weights, batches, waiting, budget) if now != tried else []
        tried = (-1, 0) if requests else now
        if requests:
            numbers = {
                prompt: i
                for i, prompt in enumerate(dict.fromkeys(request.prompt for request in requests))
            }
            filled = prefill(weights, list(numbers))
            for request in requests:
                if not request.max_tokens:
                    nothing = np.empty(0)
                    scored = filled.scored[numbers[request.prompt]]
                    tokens, logprobs = nothing.astype(np.int32), nothing.astype(np.float32)
                    yield request, Completion(tokens, logprobs, False, scored)
            if sampled := [request for request in requests if request.max_tokens]:
                batches.append(_Batch(weights, sampled, numbers, filled))
            del filled
        for batch in batches:
            yield from batch.sample_tokens()
        batches = [batch for batch in batches if batch.alive.any()]
        if batches:
            _step(weights, batches)


def _admitted(
    weights: Weights, batches: Sequence[_Batch], waiting: deque[SequenceRequest], budget: int
) -> list[SequenceRequest]:
    """Take the requests from `waiting` that fit, if they are enough for a batch. If nothing runs,
    take at least one.

    A short prompt's keys take as much memory as the longest prompt's of its batch, so prompts of
    very different lengths go into several batches.
    """
    running = sum(len(batch.ids) for batch in batches)
    left = budget // cell_bytes(weights) - sum(batch.cells for batch in batches)
    prompts: dict[int, int] = {}
    count = limit = 0
    for request in itertools.islice(waiting, MAX_ROWS - running):
        prompts[id(request.prompt)] = _round_up(len(request.prompt.tokens))
        limit = max(limit, _round_up(request.max_tokens))
        cells = len(prompts) * max(prompts.values())
        if cells + (count + 1) * limit > left or cells > max(
            PREFILL_TOKENS, 2 * sum(prompts.values())
        ):
            break
        count += 1
    if not batches:
        count = max(count, 1)
    elif count < min(len(waiting), 1 + running // _WORTH_A_COHORT):
        count = 0
    return [waiting.popleft() for _ in range(min(count, len(waiting)))]


def cell_bytes(weights: Weights) -> int:
    """Return the bytes of a token's keys and values in all layers plus one, since a layer is stored
    twice while its cache is copied."""
    return bytes_per_token(weights.arch, weights.dtype)


def bytes_per_token(arch: Architecture, dtype: torch.dtype) -> int:
    """Return what `cell_bytes` returns, for weights of this shape."""
    return 2 * (arch.layers + 1) * arch.kv_width * dtype.itemsize


def _round_up(tokens: int) -> int:
    return -(-tokens // WIDTH) * WIDTH


def _rows(parts: Sequence[Tensor], spare: int) -> Tensor:
    """Return the rows of all parts and `spare` rows of zeros."""
    joined = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    return F.pad(joined, (0, spare)) if spare else joined


def fetch(
    steps: Sequence[tuple[Tensor, Tensor]],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return tokens [steps, rows] and log-probabilities [steps, rows] of decoding steps, read from
    the device in one transfer."""
    tokens = torch.stack([token for token, _ in steps]).to(torch.int32)
    # As the same bits in integers, both kinds of numbers travel together.
    bits = torch.stack([logprob for _, logprob in steps]).view(torch.int32)
    found = torch.stack([tokens, bits]).cpu().numpy()
    return found[0], found[1].view(np.float32)


def _step(weights: Weights, batches: Sequence[_Batch]) -> None:
    """Feed every row its last token, and give each batch the logits of the next."""
    arch = weights.arch
    sizes = [len(batch.ids) for batch in batches]
    spare = max(0, MIN_ROWS - sum(sizes))
    sizes.append(spare)
    positions = _rows([batch.begin() for batch in batches], spare)
    cos, sin = weights.cos[positions].unsqueeze(1), weights.sin[positions].unsqueeze(1)
    x = F.embedding(_rows([batch.token for batch in batches], spare), weights.embed)
    for i, layer in enumerate(weights.layers):

        def attend(query: Tensor, key: Tensor, value: Tensor, i: int = i) -> Tensor:
            parts = zip(
                batches, *(torch.split(each, sizes) for each in (query, key, value)), strict=False
            )
            found = [batch.attend(i, q, k, v) for batch, q, k, v in parts]
            return (
                torch.cat([*found, query.new_zeros(spare, arch.q_width)])
                if len(sizes) > 2 or spare
                else found[0]
            )

        x = decoder_layer(weights, layer, x, cos, sin, attend)
    logits = weights.head(rms_norm(x, weights.norm, arch.norm_eps)).float()
    for batch, part in zip(batches, torch.split(logits, sizes), strict=False):
        batch.logits = part
        batch.step += 1


class _Batch:
    """Sequences that began together: their caches, the logits of their next tokens, and their
    tokens so far.

    `ids` are the requests of the rows in the cache, and `alive` [rows] marks unfinished rows.
    `places` [rows] maps rows to a grid of prompts × slots; `grid` [prompts · slots] maps slots to
    rows. Both are None if the rows fill the grid in order.
    """

    def __init__(
        self,
        weights: Weights,
        requests: Sequence[SequenceRequest],
        numbers: Mapping[Prompt, int],
        prompts: Prefilled,
    ) -> None:
        self.weights, self.arch, self.device = weights, weights.arch, weights.device
        self.requests = sorted(requests, key=lambda request: numbers[request.prompt])
        self.prompt_of = [numbers[request.prompt] for request in self.requests]
        self.scored = [prompts.scored[prompt] for prompt in self.prompt_of]
        self.prefix_keys, self.prefix_values = prompts.keys, prompts.values
        self.prefix_lengths = prompts.lengths
        self.logits = prompts.logits.index_select(
            0, torch.tensor(self.prompt_of, device=self.device)
        )
        self._renumber_prompts()
        rows, kv, d = len(requests), self.arch.kv_heads, self.arch.head_dim
        self.ids, self.alive = list(range(rows)), np.ones(rows, dtype=np.bool_)
        self.places: Tensor | None
        self.grid: Tensor | None
        self._lay_out()
        self.step = self.capacity = 0
        self.keys = [self.prefix_values[0].new_zeros(rows, kv, d, 0) for _ in weights.layers]
        self.values = [self.prefix_values[0].new_zeros(rows, kv, 0, d) for _ in weights.layers]
        self.token = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.look_every = Device(self.device).look_every
        self.unread: list[tuple[Tensor, Tensor]] = []
        self.picker = Picker([request.choice for request in self.requests], self.device)
        self.limits = np.array([request.max_tokens for request in self.requests])
        self.stop_table, self.stop_sets = self._stops()
        self.tokens = np.zeros((BLOCK, rows), dtype=np.int32)
        self.logprobs = np.zeros((BLOCK, rows), dtype=np.float32)
        self.texts: dict[int, list[int]] = {
            i: [] for i, request in enumerate(self.requests) if request.stopped is not None
        }

    @property
    def cells(self) -> int:
        """The number of tokens that the caches hold at their largest."""
        own = max(self.capacity, _round_up(int(self.limits.max())))
        return len(self.prefix_lengths) * self.prefix_values[0].shape[2] + len(self.ids) * own

    def sample_tokens(self) -> list[tuple[SequenceRequest, Completion]]:
        """Choose the next token of every row; return the sequences that are known to have ended.

        On an accelerator the host looks at the tokens every few steps, since each look waits for
        the device. Rows that have ended by then run on until the look.
        """
        sampled = self.picker.sample_tokens(self.logits)
        self.token = sampled[0]
        self.unread.append(sampled)
        last = self.step + 1 >= self.limits[self.alive].max()
        if len(self.unread) < self.look_every and not last:
            return []
        tokens, logprobs = fetch(self.unread)
        if np.isnan(logprobs).any():
            raise BackendError(
                "the model's logits are not finite: its weights are damaged, or training has "
                "diverged"
            )
        first = self.step + 1 - len(self.unread)
        self.unread.clear()
        ended = [
            found
            for i, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True))
            for found in self._record(first + i, token, logprob)
        ]
        alive = int(self.alive.sum())
        if 0 < alive <= COMPACT_BELOW * len(self.ids):
            self.token = self._compact(self.token)
        return ended

    def _record(
        self, step: int, token: npt.NDArray[np.int32], logprob: npt.NDArray[np.float32]
    ) -> list[tuple[SequenceRequest, Completion]]:
        """Note the rows' tokens at `step`; return the sequences that they end. Rows that ended
        before, whose tokens the device chose all the same, are skipped."""
        if step == len(self.tokens):
            self.tokens = np.concatenate([self.tokens, np.zeros_like(self.tokens)])
            self.logprobs = np.concatenate([self.logprobs, np.zeros_like(self.logprobs)])
        alive = np.flatnonzero(self.alive)
        ids = np.asarray(self.ids)[alive]
        self.tokens[step, ids] = token[alive]
        self.logprobs[step, ids] = logprob[alive]
        n = step + 1
        stopping = self.stop_table[self.stop_sets[alive], token[alive]]
        for i, row in enumerate(alive) if self.texts else ():
            text = self.texts.get(int(ids[i]))
            if text is not None:
                text.append(int(token[row]))
                ask = self.requests[ids[i]].stopped
                stopping[i] = stopping[i] or (ask is not None and ask(text))
        ending = stopping | (n >= self.limits[alive])
        self.alive[alive] = ~ending
        return [
            (
                self.requests[i],
                Completion(
                    self.tokens[:n, i].copy(), self.logprobs[:n, i].copy(), stop, self.scored[i]
                ),
            )
            for i, stop in zip(ids[ending].tolist(), stopping[ending].tolist(), strict=True)
        ]

    def begin(self) -> Tensor:
        """Make room for the step's keys and values; return the position of each row's last token
        [rows]."""
        if self.step == self.capacity:
            self.capacity = min(self.capacity + BLOCK, _round_up(int(self.limits.max())))
            for i in range(self.arch.layers):
                self.keys[i] = extended(self.keys[i], 3, self.capacity)
                self.values[i] = extended(self.values[i], 2, self.capacity)
        # A finished row runs on until it is dropped, possibly beyond the end of the tables.
        return (self.starts + self.step).clamp_(max=self.arch.max_context - 1)

    def attend(self, i: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return layer i's attention of the rows' last tokens, [rows, heads · d], from queries
        [rows, heads, d], keys and values [rows, kv, d]."""
        arch, step = self.arch, self.step
        self.keys[i][:, :, :, step] = key
        self.values[i][:, :, step] = value
        rows, prefix = len(query), self.prefix_mask.shape[-1]
        query = query.reshape(rows, arch.kv_heads, arch.queries_per_kv, arch.head_dim)
        to_prefix = self._prefix_matmul(query, self.prefix_keys[i], self.prefix_mask)
        # Rounding depends on a row's alignment in memory. Up to four more columns give all rows the
        # same alignment.
        to_own = (query @ self.keys[i][..., : (step + 4) // 4 * 4])[..., : step + 1]
        probs = torch.softmax(torch.cat([to_prefix, to_own], dim=-1), dim=-1)
        out = self._prefix_matmul(probs[..., :prefix], self.prefix_values[i])
        out = out + probs[..., prefix:] @ self.values[i][:, :, : step + 1]
        return out.reshape(rows, arch.q_width)

    def _prefix_matmul(self, left: Tensor, right: Tensor, mask: Tensor | None = None) -> Tensor:
        """Multiply each row's [kv, per, m] with its prompt's [kv, m, n], one product per prompt for
        all its rows.

        `mask` [prompts, 1, 1, n] is added to the result.
        """
        if self.grid is not None:
            left = left.index_select(0, self.grid)
        n, slots = len(right), self.slots
        kv, per, m = left.shape[1:]
        folded = left.reshape(n, slots, kv, per, m).transpose(1, 2).reshape(n, kv, slots * per, m)
        product = weighted(self.arch, folded, right) if mask is None else folded @ right + mask
        out = product.view(n, kv, slots, per, -1).transpose(1, 2).reshape(n * slots, kv, per, -1)
        return out if self.places is None else out.index_select(0, self.places)

    def _compact(self, token: Tensor) -> Tensor:
        """Drop finished rows and return the tokens of the remaining rows."""
        keep = np.flatnonzero(self.alive)
        chosen = keep.tolist()
        index = torch.from_numpy(keep).to(self.device)
        self.prompt_of = [self.prompt_of[row] for row in chosen]
        self.ids, self.alive = [self.ids[row] for row in chosen], self.alive[keep]
        self._renumber_prompts()
        self._lay_out()
        _select(self.keys, index)
        _select(self.values, index)
        self.picker.keep(chosen)
        self.limits, self.stop_sets = self.limits[keep], self.stop_sets[keep]
        return token.index_select(0, index)

    def _renumber_prompts(self) -> None:
        """Forget prompts without a remaining row, and renumber `prompt_of`."""
        used = sorted(set(self.prompt_of))
        if len(used) < len(self.prefix_lengths):
            index = torch.tensor(used, device=self.device)
            _select(self.prefix_keys, index)
            _select(self.prefix_values, index)
            self.prefix_lengths = self.prefix_lengths.index_select(0, index)
        columns = torch.arange(self.prefix_values[0].shape[2], device=self.device)
        hidden = (columns[None, :] >= self.prefix_lengths[:, None])[:, None, None, :]
        self.prefix_mask = torch.zeros(hidden.shape, dtype=self.weights.dtype, device=self.device)
        self.prefix_mask.masked_fill_(hidden, float("-inf"))
        place = {prompt: i for i, prompt in enumerate(used)}
        self.prompt_of = [place[prompt] for prompt in self.prompt_of]
        self.starts = self.prefix_lengths.index_select(
            0, torch.tensor(self.prompt_of, device=self.device)
        )

    def _lay_out(self) -> None:
        counts = np.bincount(self.prompt_of)
        slots, per = int(counts.max()), self.arch.queries_per_kv
        while even_rows(slots * per) != slots * per:
            slots += 1
        self.slots = slots
        self.places = self.grid = None
        if bool((counts == slots).all()):
            return
        seen = np.zeros(len(counts), dtype=np.int64)
        grid = np.zeros(len(counts) * slots, dtype=np.int64)
        places = np.zeros(len(self.prompt_of), dtype=np.int64)
        for row, prompt in enumerate(self.prompt_of):
            places[row] = prompt * slots + seen[prompt]
            grid[places[row]] = row
            seen[prompt] += 1
        self.places = torch.from_numpy(places).to(self.device)
        self.grid = torch.from_numpy(grid).to(self.device)

    def _stops(self) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return the tokens that end a completion, [sets, vocab], and the index of each row's set
        [rows]."""
        sets = list(dict.fromkeys(request.stop_tokens for request in self.requests))
        table = np.zeros((len(sets), self.arch.vocab), dtype=np.bool_)
        for row, tokens in enumerate(sets):
            table[row, [t for t in tokens if 0 <= t < self.arch.vocab]] = True
        number = {tokens: i for i, tokens in enumerate(sets)}
        return table, np.array([number[request.stop_tokens] for request in self.requests])


def _select(caches: list[Tensor], index: Tensor) -> None:
    """Keep these rows of every layer's cache. Layers are copied one at a time, so at most one is
    stored twice."""
    for i, cache in enumerate(caches):
        caches[i] = cache.index_select(0, index)
