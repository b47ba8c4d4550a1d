"""L(θ): each loss once, for the engine that trains (torch) and for metrics (NumPy).

p is the probability of a token under the weights in training, q the probability with which it was
sampled, A its advantage, and ρ = p / q. The loss of a token is the formula at the head of the file
named after it. Losses are summed over tokens and datums, never averaged, as in Tinker. A position
whose advantage (or weight) is zero contributes nothing. `dro` is an exception: it counts every
sampled position, where log q is not 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from code_rl.util.door import door

if TYPE_CHECKING:
    from code_rl.engine.losses.base import (
        HIGH,
        LOW,
        SEQUENCE,
        Loss,
        Settings,
        check_loss,
        loss_settings,
    )
    from code_rl.engine.losses.registry import LOSSES, POLICY_LOSSES, get_loss
else:  # a type checker would take any name for one of ours
    __getattr__ = door(__name__)
