"""−ρ · A, and 0 for every token of a sequence whose ratio s has left [low, high].

Masked importance sampling by sequence: Liu et al. 2025, "When Speed Kills Stability". s is the
geometric mean of ρ, as in verl's `rollout_rs=geometric`, so it does not grow with length. verl
advises 1.0002 to 1.001 for two engines with the same weights; the default here is wider, for
samples that are some steps old. The mask is a constant and ignores the advantage: it drops whole
sequences that the policy would no longer write.
"""

from __future__ import annotations

from types import ModuleType

from code_rl.engine.losses.base import (
    HIGH,
    LOW,
    SEQUENCE,
    Inputs,
    Loss,
    Settings,
    Tokens,
    ratio,
    sequence_ratio,
)


def _formula(ops: ModuleType, logprobs: Tokens, inputs: Inputs, settings: Settings) -> Tokens:
    """Return −ρ · A of each token of one sequence, [T], where ρ = p / q, with q and A from
    `inputs`. All are 0 if s, the geometric mean of ρ over the tokens of `sequence_ratio_mask`, is
    outside the two bounds of `settings`."""
    s = ops.exp(sequence_ratio(ops, logprobs, inputs))
    losses = -(ratio(ops, logprobs, inputs) * inputs["advantages"])
    return ops.where((s >= settings[LOW]) & (s <= settings[HIGH]), losses, 0 * logprobs)


MIS = Loss(
    "mis",
    _formula,
    {LOW: 0.98, HIGH: 1.02},
    ("logprobs", "advantages", SEQUENCE),
    ("advantages", SEQUENCE),
    whole=True,
    about="−ρ · A where s is within the interval, else 0; s the sequence's geometric mean of ρ\n"
    "Liu et al. 2025, When Speed Kills Stability; verl's rollout_rs=geometric",
)
