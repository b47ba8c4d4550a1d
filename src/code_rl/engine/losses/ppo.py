"""−min(ρ · A, clip(ρ) · A): a token whose ratio has left the interval in the direction of its
advantage has no gradient.

Schulman et al. 2017, arXiv 1707.06347. [0.8, 1.2] is the paper's; asymmetric bounds are DAPO's
clip-higher (arXiv 2503.14476).
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import HIGH, LOW, Inputs, Loss, Settings, Tokens, ratio, surrogate


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return −min(ρ · A, clip(ρ) · A) of each token, [T], with the two bounds of `settings`. ρ = p
    / q, with q and A from `inputs`."""
    return surrogate(ops, ratio(ops, logprobs, inputs), inputs["advantages"], settings)


PPO = Loss(
    "ppo",
    _formula,
    {LOW: 0.8, HIGH: 1.2},
    about="−min(ρ · A, clip(ρ) · A)\nSchulman et al. 2017, arXiv 1707.06347",
)
