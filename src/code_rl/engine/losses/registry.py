"""The losses by name. `POLICY_LOSSES` are those of a run's `loss=`; the others are for servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from code_rl.engine.losses.base import Loss
from code_rl.engine.losses.cispo import CISPO
from code_rl.engine.losses.cross_entropy import CROSS_ENTROPY
from code_rl.engine.losses.dro import DRO
from code_rl.engine.losses.gspo import GSPO
from code_rl.engine.losses.importance_sampling import IMPORTANCE_SAMPLING
from code_rl.engine.losses.ppo import PPO
from code_rl.engine.losses.reinforce import REINFORCE
from code_rl.util.errors import ConfigError
from code_rl.util.registry import find

POLICY_LOSSES: Mapping[str, Loss] = {
    loss.name: loss for loss in (IMPORTANCE_SAMPLING, REINFORCE, PPO, CISPO)
}
LOSSES: Mapping[str, Loss] = {
    "cross_entropy": CROSS_ENTROPY,
    **POLICY_LOSSES,
    "dro": DRO,
    "gspo": GSPO,
}


def get_loss(name: str) -> Loss:
    """The policy loss called `name`, or the `Loss` that `package.module:object` is, under that
    name. Raises ConfigError."""
    loss = find("loss", name, POLICY_LOSSES)
    if not isinstance(loss, Loss):
        raise ConfigError(
            f"loss={name} is no Loss; wrap its formula: code_rl.Loss('name', formula, {{}})"
        )
    return loss if name in POLICY_LOSSES else replace(loss, name=name)
