"""−(log p · A − ½ · beta · (log p − log q)²): a quadratic pull to the policy that sampled. Programs
can request it; `loss=` does not offer it.

Richemond et al. 2024, arXiv 2405.19107. The pull applies to every sampled token (log q is not 0),
whatever its advantage.
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import Inputs, Loss, Settings, Tokens


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return −(log p · A − ½ · beta · (log p − log q)²) of each token, [T], with log q and A from
    `inputs`. A token with log q = 0 and A = 0, such as a prompt's, has the loss 0."""
    sampled, advantages = inputs["logprobs"], inputs["advantages"]
    losses = 0.5 * settings["beta"] * (logprobs - sampled) ** 2 - logprobs * advantages
    return ops.where((sampled != 0) | (advantages != 0), losses, 0 * logprobs)


DRO = Loss(
    "dro",
    _formula,
    {"beta": None},
    signal=("advantages", "logprobs"),
    about="−(log p · A − ½ · beta · (log p − log q)²)\nRichemond et al. 2024, arXiv 2405.19107",
)
