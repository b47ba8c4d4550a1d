"""−stop_gradient(min(ρ, C)) · A · log p: a token's importance weight is truncated at C, its
gradient is not.

Truncated importance sampling (Ionides 2008), with C = 2 as in TRL. Yao et al. 2025, "Your Efficient
RL Framework Secretly Brings You Off-Policy RL Training", apply it per token to policies served
elsewhere. CISPO is the same with C = 4.
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import HIGH, Inputs, Loss, Settings, Tokens, constant, ratio


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return −stop_gradient(min(ρ, C)) · A · log p of each token, [T], where C is the upper bound
    in `settings` and ρ = p / q, with q and A from `inputs`. Truncated tokens keep a gradient."""
    truncated = ops.clip(ratio(ops, constant(logprobs), inputs), 0.0, settings[HIGH])
    return -(truncated * inputs["advantages"] * logprobs)


TIS = Loss(
    "tis",
    _formula,
    {HIGH: 2.0},
    about="−stop_gradient(min(ρ, C)) · A · log p\n"
    "Yao et al. 2025 (truncated importance sampling); TRL",
)
