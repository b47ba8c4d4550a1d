"""Choosing tokens: seeded uniform numbers and the inverse of the cumulative distribution.

The uniform numbers of a sequence come from a counter-based generator keyed by (seed, index of the
sample within its request), so a completion does not depend on the rest of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 64
BELOW_ONE = 1 - 2.0**-23


@dataclass(frozen=True)
class Choice:
    """The sampling parameters of one sequence. `temperature` 0 is greedy; `top_k` −1 and `top_p` 1
    keep every token."""

    seed: int
    index: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0


class Uniforms:
    """One stream of numbers in [0, 1) per row."""

    def __init__(self, choices: Sequence[Choice], device: torch.device) -> None:
        """Begin one stream per row, which depends only on the seed and index of its choice."""
        mask = (1 << 64) - 1
        self._streams = [
            np.random.Generator(np.random.Philox(key=np.array([c.seed & mask, c.index], np.uint64)))
            for c in choices
        ]
        self._device = device
        # [numbers, rows]
        self._block = torch.empty((0, len(choices)), device=device)
        self._at = 0

    def take(self) -> Tensor:
        """Return the next number of each row [rows], fp32. A block of 64 steps is sent to the
        device at once."""
        if self._at == len(self._block):
            drawn = [stream.random(BLOCK, dtype=np.float32) for stream in self._streams]
            block = torch.from_numpy(np.stack(drawn, axis=1))
            self._block = block.to(self._device, non_blocking=True)
            self._at = 0
        self._at += 1
        return self._block[self._at - 1]

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows; the others' streams go on unchanged, in the order of `rows`."""
        self._streams = [self._streams[row] for row in rows]
        index = torch.from_numpy(np.array(rows)).to(self._device, non_blocking=True)
        self._block = self._block.index_select(1, index)


class Picker:
    """Draws one token per row from logits."""

    def __init__(self, choices: Sequence[Choice], device: torch.device) -> None:
        """Begin the streams of the rows; `choices` are their settings in order."""
        self._device = device
        self._choices = list(choices)
        self._uniforms = Uniforms(choices, device)
        self._prepare()

    def _prepare(self) -> None:
        """Compute the tensors and shortcuts that depend only on the current rows' settings."""
        choices = self._choices
        self._all_greedy = all(c.temperature == 0 for c in choices)
        self._any_greedy = any(c.temperature == 0 for c in choices)
        self._plain = all(c.temperature in (0, 1) for c in choices)
        self._filtered = any(c.temperature > 0 and (c.top_k > 0 or c.top_p < 1) for c in choices)
        self._temperature = torch.tensor(
            [c.temperature or 1.0 for c in choices], device=self._device
        )[:, None]
        self._greedy = torch.tensor([c.temperature == 0 for c in choices], device=self._device)
        self._top_k = torch.tensor(
            [c.top_k if c.top_k > 0 else 1 << 30 for c in choices], device=self._device
        )[:, None]
        self._top_p = torch.tensor([c.top_p for c in choices], device=self._device)[:, None]

    def keep(self, rows: Sequence[int]) -> None:
        """Drop all other rows; the others' numbers go on unchanged, in the order of `rows`."""
        self._choices = [self._choices[row] for row in rows]
        self._uniforms.keep(rows)
        self._prepare()

    def sample_tokens(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens [rows] and their log-probabilities [rows], in nats, given fp32 logits
        [rows, vocab], which are unchanged. Every call takes one number of each row's stream, greedy
        rows' too.

        Log-probabilities are at the row's temperature (greedy: 1), before top-k and top-p. The
        trainer has no such filters and computes the same. They are not a number if no logit is
        finite.
        """
        uniforms = self._uniforms.take()
        top = logits.amax(-1, keepdim=True)
        # In place: allocating rows of a large vocabulary takes longer than computing them.
        mass = logits - top
        if not self._plain:
            mass.div_(self._temperature)
        mass.exp_()
        log_total = mass.sum(-1).log()
        if self._all_greedy:
            token = logits.argmax(-1)
        else:
            token = self._draw(mass, uniforms)
            if self._any_greedy:
                token = torch.where(self._greedy, logits.argmax(-1), token)
        chosen = logits.gather(1, token[:, None]) - top
        return token, (chosen if self._plain else chosen / self._temperature)[:, 0] - log_total

    def _draw(self, mass: Tensor, uniforms: Tensor) -> Tensor:
        """Apply each row's top-k and top-p to the weights `mass` [rows, vocab], which need not sum
        to 1 and may be overwritten, then choose one token of nonzero mass per row by inverse
        transform sampling."""
        if self._filtered:
            mass = _filter(mass, self._top_k, self._top_p)
        cumulative = mass.cumsum_(-1)
        total = cumulative[:, -1]
        # Below the total even after rounding, so the chosen token has nonzero mass.
        target = torch.minimum(uniforms * total, total * BELOW_ONE)
        # If no logit is finite, no token is chosen; its log-probability then shows that.
        return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0].clamp_(
            max=mass.shape[1] - 1
        )


def _filter(mass: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Return `mass` [rows, vocab] with zeros for tokens beyond the k heaviest, then for tokens
    after the share p of the remaining mass. `top_k` and `top_p` are [rows, 1]; the heaviest token
    always stays."""
    ordered, order = mass.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(mass.shape[1], device=mass.device)[None, :]
    ordered = ordered.masked_fill(rank >= top_k, 0.0)
    before = ordered.cumsum(-1) - ordered
    share = before / ordered.sum(-1, keepdim=True)
    ordered = ordered.masked_fill((share >= top_p) & (top_p < 1) & (rank > 0), 0.0)
    return torch.zeros_like(mass).scatter_(1, order, ordered)
