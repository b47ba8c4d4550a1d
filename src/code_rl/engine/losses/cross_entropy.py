"""−w · log p: supervised training. Programs can request it; `loss=` does not offer it.

Tinker's `cross_entropy`. A position has the weight w.
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import Inputs, Loss, Settings, Tokens


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return −w · log p of each token, [T], with w from `inputs["weights"]`. It has no settings."""
    del ops, settings
    return -(inputs["weights"] * logprobs)


CROSS_ENTROPY = Loss("cross_entropy", _formula, {}, ("weights",), ("weights",), about="−w · log p")
