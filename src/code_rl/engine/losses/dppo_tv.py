"""−keep · ρ · A + c · (log ρ)²: a token is masked once its probability has moved too far in the
direction of its advantage.

prime-rl's default loss combines the binary total-variation mask of DPPO (arXiv 2602.04879) with the
squared log-ratio of Kimi K2.5 (arXiv 2602.02276). `keep` is 0 where A > 0 and p − q > 0.2, and
where A < 0 and p − q < −0.2. The squared term, c = 0.001, also applies to masked tokens. Unlike
prime-rl's loss, this one leaves out tokens whose advantage is 0, like every loss here.
"""

from __future__ import annotations

import math
from types import ModuleType

from code_rl.engine.losses.base import Inputs, Loss, Settings, Tokens, ratio

MASK_LOW, MASK_HIGH, PULL = "mask_low", "mask_high", "log_ratio_coef"


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return −keep · ρ · A + log_ratio_coef · (log ρ)² of each token, [T], where ρ = p / q, with q
    and A from `inputs`. keep is 0 where p − q is above `mask_high` and A > 0, or below −`mask_low`
    and A < 0. Tokens whose advantage is 0 have the loss 0."""
    sampled, advantages = inputs["logprobs"], inputs["advantages"]
    moved = ops.exp(logprobs) - ops.exp(sampled)
    up, down = moved > settings[MASK_HIGH], moved < -settings[MASK_LOW]
    masked = ((advantages > 0) & up) | ((advantages < 0) & down)
    gain = ops.where(masked, 0 * logprobs, ratio(ops, logprobs, inputs) * advantages)
    losses = settings[PULL] * (logprobs - sampled) ** 2 - gain
    return ops.where(advantages != 0, losses, 0 * logprobs)


DPPO_TV = Loss(
    "dppo_tv",
    _formula,
    {MASK_LOW: 0.2, MASK_HIGH: 0.2, PULL: 1e-3},
    about="−keep · ρ · A + 0.001 · (log ρ)², keep 0 where p − q is beyond 0.2 in A's direction\n"
    "prime-rl's default; DPPO, arXiv 2602.04879",
    limits={MASK_LOW: math.inf, MASK_HIGH: math.inf},
)
