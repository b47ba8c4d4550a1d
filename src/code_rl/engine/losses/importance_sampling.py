"""−ρ · A: the policy gradient under older weights, corrected token by token; nothing is clipped.

Tinker's `importance_sampling`.
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import Inputs, Loss, Settings, Tokens, ratio


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return −ρ · A of each token, [T], where ρ = p / q, with q and A from `inputs`. It has no
    settings and clips nothing."""
    del settings
    return -(ratio(ops, logprobs, inputs) * inputs["advantages"])


IMPORTANCE_SAMPLING = Loss("importance_sampling", _formula, {}, about="−ρ · A\nTinker")
