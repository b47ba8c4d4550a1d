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
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from code_rl.util.errors import BackendError

from .device import Device, fuses
from .forward import (
    PREFILL_TOKENS,
    Prefilled,
    Prompt,
    Scored,
    decoder_layer,
    prefill,
    rms_norm,
    rotation,
)
from .kv_caches import BLOCK, caches_of, round_up
from .picking import Choice, Picker
from .weights import Architecture, Weights

MAX_ROWS = 256
MIN_ROWS = 16
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

    @classmethod
    def empty(cls, scored: Scored) -> Completion:
        """Return a completion of no tokens, which reached its limit, with its prompt's scores."""
        return cls(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.float32), False, scored)


@torch.inference_mode()
def decode(
    weights: Weights,
    waiting: deque[SequenceRequest],
    budget: int,
    arrived: Callable[[], None] = lambda: None,
) -> Iterator[tuple[SequenceRequest, Completion]]:
    """Sample queued requests in order and yield each with its completion as it finishes. `waiting`
    is emptied.

    `arrived` is called before every step and may add to `waiting`. The caches take at most `budget`
    bytes, unless a single row needs more. Requests share a prompt only if it is the same object.
    Raises BackendError if logits are not finite or the process is ending; unfinished requests then
    get no completion.
    """
    batches: list[_Batch] = []
    tried = (-1, 0)
    while waiting or batches:
        arrived()
        now = (sum(batch.caches.cells for batch in batches), len(waiting))
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
                    yield request, Completion.empty(filled.scored[numbers[request.prompt]])
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
    """Take the first requests from `waiting` that fit into `budget` bytes with the running batches,
    if they are enough for a batch of their own. If nothing runs, take at least one.

    A short prompt's keys take as much memory as the longest prompt's of its batch, so prompts of
    very different lengths go into several batches.
    """
    running, cells_of = sum(len(batch.ids) for batch in batches), caches_of(weights.device).cells_of
    left = budget // bytes_per_token(weights.arch, weights.dtype) - sum(
        batch.caches.cells for batch in batches
    )
    widths: dict[int, int] = {}
    counts: Counter[int] = Counter()
    count = limit = 0
    for request in itertools.islice(waiting, MAX_ROWS - running):
        widths[id(request.prompt)] = round_up(len(request.prompt.tokens))
        counts[id(request.prompt)] += 1
        limit, width = max(limit, round_up(request.max_tokens)), max(widths.values())
        cells = cells_of(counts.values(), width, limit)
        if cells > left or len(widths) * width > max(PREFILL_TOKENS, 2 * sum(widths.values())):
            break
        count += 1
    if not batches:
        count = max(count, 1)
    elif count < min(len(waiting), 1 + running // _WORTH_A_COHORT):
        count = 0
    return [waiting.popleft() for _ in range(min(count, len(waiting)))]


def bytes_per_token(arch: Architecture, dtype: torch.dtype) -> int:
    """Return the bytes of a token's keys and values in all layers plus one, since a layer is stored
    twice while its cache is copied."""
    return 2 * (arch.layers + 1) * arch.kv_width * dtype.itemsize


def _rows(parts: Sequence[Tensor], spare: int) -> Tensor:
    """Return the rows of all parts, in order, and `spare` rows of zeros after them."""
    joined = torch.cat(list(parts)) if len(parts) > 1 else parts[0]
    return F.pad(joined, (0, spare)) if spare else joined


def fetch(
    steps: Sequence[tuple[Tensor, Tensor]],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """Return tokens [steps, rows] and log-probabilities [steps, rows] of decoding steps, read from
    the device in one transfer, for which the host waits."""
    tokens = torch.stack([token for token, _ in steps]).to(torch.int32)
    # As the same bits in integers, both kinds of numbers travel together.
    bits = torch.stack([logprob for _, logprob in steps]).view(torch.int32)
    found = torch.stack([tokens, bits]).cpu().numpy()
    return found[0], found[1].view(np.float32)


def _step(weights: Weights, batches: Sequence[_Batch]) -> None:
    """Feed every row its last token: its keys and values join the caches, and each batch gets the
    logits [rows, vocab] of the next token, in fp32. At least `MIN_ROWS` rows are computed."""
    arch = weights.arch
    sizes = [len(batch.ids) for batch in batches]
    spare = max(0, MIN_ROWS - sum(sizes))
    sizes.append(spare)
    positions = _rows([batch.caches.begin() for batch in batches], spare)
    rotate = rotation(weights, positions, by_products=fuses(weights.device))
    x = F.embedding(_rows([batch.token for batch in batches], spare), weights.embed)
    for i, layer in enumerate(weights.layers):

        def attend(query: Tensor, key: Tensor, value: Tensor, i: int = i) -> Tensor:
            """Attend within each batch of layer `i`, and join the results; spare rows get zeros."""
            parts = zip(
                batches, *(torch.split(each, sizes) for each in (query, key, value)), strict=False
            )
            found = [batch.caches.attend(i, q, k, v) for batch, q, k, v in parts]
            return (
                torch.cat([*found, query.new_zeros(spare, arch.q_width)])
                if len(sizes) > 2 or spare
                else found[0]
            )

        x = decoder_layer(weights, layer, x, rotate, attend)
    logits = weights.head(rms_norm(x, weights.norm, arch.norm_eps)).float()
    for batch, part in zip(batches, torch.split(logits, sizes), strict=False):
        batch.logits = part
        batch.caches.step += 1


class Rows(ABC):
    """Sequences that began together: the logits of their next tokens, and their tokens so far.

    `ids` are the requests of the rows in the cache, and `alive` [rows] marks unfinished rows.
    """

    def __init__(
        self,
        requests: Sequence[SequenceRequest],
        scored: Sequence[Scored],
        logits: Tensor,
        arch: Architecture,
    ) -> None:
        """Begin completions of `requests`, each with its prompt's scores and the logits [rows,
        vocab] of its first token. Each has a token limit of at least 1."""
        self.requests, self.scored, self.logits = requests, scored, logits
        self.device, rows = logits.device, len(requests)
        self.ids, self.alive = list(range(rows)), np.ones(rows, dtype=np.bool_)
        self.limits = np.array([request.max_tokens for request in requests])
        self.token = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.look_every, self.sampled = Device(self.device).look_every, 0
        self.unread: list[tuple[Tensor, Tensor]] = []
        self.picker = Picker([request.choice for request in requests], self.device)
        self.stop_table, self.stop_sets = self._stops(arch.vocab)
        self.tokens = np.zeros((BLOCK, rows), dtype=np.int32)
        self.logprobs = np.zeros((BLOCK, rows), dtype=np.float32)
        self.texts: dict[int, list[int]] = {
            i: [] for i, request in enumerate(requests) if request.stopped is not None
        }

    @abstractmethod
    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows from the caches. `rows` are ascending; `limits` has been reduced to
        these rows before."""

    def sample_tokens(self) -> list[tuple[SequenceRequest, Completion]]:
        """Choose the next token of every row; return the sequences that are known to have ended.
        The caller then computes the next `logits` from `token`. Raises BackendError if a
        log-probability is not a number.

        On an accelerator the host looks at the tokens every few steps, since each look waits for
        the device. Rows that have ended by then run on until the look.
        """
        sampled = self.picker.sample_tokens(self.logits)
        self.token = sampled[0]
        self.unread.append(sampled)
        self.sampled += 1
        last = self.sampled >= self.limits[self.alive].max()
        if len(self.unread) < self.look_every and not last:
            return []
        tokens, logprobs = fetch(self.unread)
        if np.isnan(logprobs).any():
            raise BackendError(
                "the model's logits are not finite: its weights are damaged, or training has "
                "diverged"
            )
        first = self.sampled - len(self.unread)
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
        """Write the rows' tokens at `step` into the completions; return those that they end, by a
        stop or by their limit. Rows that ended before, whose tokens the device chose all the same,
        are skipped."""
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

    def _compact(self, token: Tensor) -> Tensor:
        """Drop finished rows from caches and settings, and return the tokens of the remaining rows,
        in their order. At least one row is unfinished."""
        keep = np.flatnonzero(self.alive)
        chosen = keep.tolist()
        self.ids, self.alive = [self.ids[row] for row in chosen], self.alive[keep]
        self.limits, self.stop_sets = self.limits[keep], self.stop_sets[keep]
        self.keep(chosen)
        self.picker.keep(chosen)
        return token.index_select(0, torch.from_numpy(keep).to(self.device))

    def _stops(self, vocab: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64]]:
        """Return which tokens end a completion, as booleans [sets, vocab], and the index of each
        row's set [rows], on the host. Ids outside the vocabulary are ignored."""
        sets = list(dict.fromkeys(request.stop_tokens for request in self.requests))
        table = np.zeros((len(sets), vocab), dtype=np.bool_)
        for row, tokens in enumerate(sets):
            table[row, [t for t in tokens if 0 <= t < vocab]] = True
        number = {tokens: i for i, tokens in enumerate(sets)}
        return table, np.array([number[request.stop_tokens] for request in self.requests])


class _Batch(Rows):
    """Rows of the engine's own pass, with their caches."""

    def __init__(
        self,
        weights: Weights,
        requests: Sequence[SequenceRequest],
        numbers: Mapping[Prompt, int],
        prompts: Prefilled,
    ) -> None:
        """Sort the requests by prompt, where `numbers` has each prompt's index in `prompts`, and
        make their caches of `prompts`, which must not be used afterwards."""
        requests = sorted(requests, key=lambda request: numbers[request.prompt])
        prompt_of = [numbers[request.prompt] for request in requests]
        logits = prompts.logits.index_select(0, torch.tensor(prompt_of, device=weights.device))
        super().__init__(
            requests, [prompts.scored[prompt] for prompt in prompt_of], logits, weights.arch
        )
        limit = round_up(int(self.limits.max()))
        self.caches = caches_of(weights.device)(weights, prompts, prompt_of, limit)

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows from the caches, which then hold as many tokens as the rest needs."""
        self.caches.keep(rows, round_up(int(self.limits.max())))
