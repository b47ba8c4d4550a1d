"""−min(s · A, clip(s) · A): PPO's clipping with one ratio for a whole sequence.

Zheng et al. 2025 (GSPO-token), arXiv 2507.18071. s is the geometric mean of ρ over the tokens that
`sequence_ratio_mask` marks, as a constant, times p / stop_gradient(p).
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import (
    HIGH,
    LOW,
    Inputs,
    Loss,
    Settings,
    Tokens,
    constant,
    surrogate,
)


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    now, mask = constant(logprobs), inputs["sequence_ratio_mask"] != 0
    gap = ops.where(mask, now - inputs["logprobs"], 0 * now).sum() / max(int(mask.sum()), 1)
    return surrogate(ops, ops.exp(gap + logprobs - now), inputs["advantages"], settings)


GSPO = Loss(
    "gspo",
    _formula,
    {LOW: 1 - 3e-4, HIGH: 1 + 4e-4},
    ("logprobs", "advantages", "sequence_ratio_mask"),
    ("advantages", "sequence_ratio_mask"),
    whole=True,
    about="−min(s · A, clip(s) · A)\nZheng et al. 2025, arXiv 2507.18071",
)
