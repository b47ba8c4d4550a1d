"""−stop_gradient(clip(ρ)) · A · log p: a token's weight is clipped, its gradient is not.

MiniMax 2025, arXiv 2506.13585.
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import HIGH, LOW, Inputs, Loss, Settings, Tokens, constant, ratio


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return −stop_gradient(clip(ρ)) · A · log p of each token, [T], with the two bounds of
    `settings`. ρ = p / q, with q and A from `inputs`. Clipped tokens keep a gradient."""
    clipped = ops.clip(ratio(ops, constant(logprobs), inputs), settings[LOW], settings[HIGH])
    return -(clipped * inputs["advantages"] * logprobs)


CISPO = Loss(
    "cispo",
    _formula,
    {LOW: 0.0, HIGH: 4.0},
    about="−stop_gradient(clip(ρ)) · A · log p\nMiniMax 2025, arXiv 2506.13585",
)
