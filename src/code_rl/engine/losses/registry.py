"""The losses by name. A run's `loss=` offers `POLICY_LOSSES`; the others are for servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from code_rl.engine.losses.base import Loss
from code_rl.engine.losses.cispo import CISPO
from code_rl.engine.losses.cross_entropy import CROSS_ENTROPY
from code_rl.engine.losses.dppo_tv import DPPO_TV
from code_rl.engine.losses.dro import DRO
from code_rl.engine.losses.gspo import GSPO
from code_rl.engine.losses.importance_sampling import IMPORTANCE_SAMPLING
from code_rl.engine.losses.mis import MIS
from code_rl.engine.losses.ppo import PPO
from code_rl.engine.losses.reinforce import REINFORCE
from code_rl.engine.losses.sapo import SAPO
from code_rl.engine.losses.tis import TIS
from code_rl.util.errors import ConfigError
from code_rl.util.registry import find

_POLICY = (IMPORTANCE_SAMPLING, REINFORCE, PPO, CISPO, GSPO, DPPO_TV, SAPO, TIS, MIS)
POLICY_LOSSES: Mapping[str, Loss] = {loss.name: replace(loss, by_name=True) for loss in _POLICY}
LOSSES: Mapping[str, Loss] = {"cross_entropy": CROSS_ENTROPY, **POLICY_LOSSES, "dro": DRO}


def get_loss(name: str) -> Loss:
    """Return the policy loss called `name`, or the `Loss` object `package.module:object`, under
    that name and to be computed here.

    Raises ConfigError for an unknown name (`cross_entropy` and `dro` are not policy losses), a
    module that cannot be imported, an object that is no `Loss`, and `stable_reinforce`.
    """
    if name == "stable_reinforce":
        raise ConfigError(
            f"loss={name} is hosted Tinker's alone and its formula is unpublished; for stale "
            "samples choose loss=tis or loss=mis"
        )
    loss = find("loss", name, POLICY_LOSSES)
    if not isinstance(loss, Loss):
        raise ConfigError(
            f"loss={name} is no Loss; wrap its formula: code_rl.Loss('name', formula, {{}})"
        )
    return loss if name in POLICY_LOSSES else replace(loss, name=name, by_name=False)
