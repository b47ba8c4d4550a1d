"""−min(s · A, clip(s) · A): PPO's clipping with one ratio for a whole sequence.

Zheng et al. 2025 (GSPO-token), arXiv 2507.18071. s is the geometric mean of ρ over the tokens
marked in `sequence_ratio_mask`, as a constant, times p / stop_gradient(p). A sequence has no
gradient once s has left the interval in the direction of its advantage.
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import (
    HIGH,
    LOW,
    SEQUENCE,
    Inputs,
    Loss,
    Settings,
    Tokens,
    constant,
    sequence_ratio,
    surrogate,
)


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return PPO's clipped loss of each token of one sequence, [T], with the ratio s · p /
    stop_gradient(p). s is the geometric mean of ρ = p / q over the tokens of `sequence_ratio_mask`,
    as a constant."""
    log_s = sequence_ratio(ops, logprobs, inputs)
    ratios = ops.exp(log_s + logprobs - constant(logprobs))
    return surrogate(ops, ratios, inputs["advantages"], settings)


GSPO = Loss(
    "gspo",
    _formula,
    {LOW: 1 - 3e-4, HIGH: 1 + 4e-4},
    ("logprobs", "advantages", SEQUENCE),
    ("advantages", SEQUENCE),
    whole=True,
    about="−min(s · A, clip(s) · A), s the sequence's geometric mean of ρ\n"
    "Zheng et al. 2025, arXiv 2507.18071",
)
