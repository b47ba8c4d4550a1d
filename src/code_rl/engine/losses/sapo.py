"""−(4 / τ) · sigmoid(τ · (ρ − 1)) · A, with τ by the sign of A: a soft gate that closes as ρ moves
away from 1.

Gao et al. 2025 (Soft Adaptive Policy Optimization), arXiv 2511.20347; τ is 1 where A > 0, else
1.05, as in the paper and TRL. At ρ = 1 the gradient equals that of −ρ · A; nothing is clipped.
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import Inputs, Loss, Settings, Tokens, ratio

POSITIVE, NEGATIVE = "tau_positive", "tau_negative"


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return −(4 / τ) · sigmoid(τ · (ρ − 1)) · A of each token, [T], where ρ = p / q, with q and A
    from `inputs`. τ is `tau_positive` where A > 0, else `tau_negative`."""
    advantages, ones = inputs["advantages"], 1 + 0 * inputs["advantages"]
    tau = ops.where(advantages > 0, settings[POSITIVE] * ones, settings[NEGATIVE] * ones)
    gate = 1 / (1 + ops.exp(-tau * (ratio(ops, logprobs, inputs) - 1)))
    return -(4 / tau * gate * advantages)


SAPO = Loss(
    "sapo",
    _formula,
    {POSITIVE: 1.0, NEGATIVE: 1.05},
    about="−(4 / τ) · sigmoid(τ · (ρ − 1)) · A, τ by the sign of A\n"
    "Gao et al. 2025, arXiv 2511.20347",
)
