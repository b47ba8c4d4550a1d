"""−A · log p: the policy gradient as if the weights had not changed; nothing is clipped.

Williams 1992. With `advantage=ones` it is cross-entropy on the policy's own samples.
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import Inputs, Loss, Settings, Tokens


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return −A · log p of each token, [T], with A from `inputs`. It has no settings and does not
    correct for older weights."""
    del ops, settings
    return -(inputs["advantages"] * logprobs)


REINFORCE = Loss(
    "reinforce",
    _formula,
    {},
    about="−A · log p\nWilliams 1992: no correction for older weights",
)
