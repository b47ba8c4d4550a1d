"""What happens to a reward between the verdict and the advantage: some members are masked, some rewards are lowered.

Completions that were cut off at their token limit ("overlong") are one of

| `overlong` | | source |
|---|---|---|
| `judged` | nothing: the verdict counts | |
| `mask` | out of the loss and out of the baseline | DeepCoder 2025 |
| `mask_loss` | out of the loss; the reward stays in the baseline of the others | |
| `wrong` | correctness 0, whatever the verdict | |
| `penalty` | the reward sinks linearly from 0 to −`penalty` over the last `buffer` tokens before the limit | DAPO 2025, arXiv 2503.14476 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Overlong = Literal["judged", "mask", "mask_loss", "wrong", "penalty"]
Masked = Literal["sandbox_error", "checker_error", "overlong"]


@dataclass(frozen=True, slots=True)
class Member:
    """What shaping looks at in one member of a group: its reward (None where `no_verdict` says why), the part of it that is for being correct,
    and its length in sampled tokens beside the limit that it had."""

    reward: float | None
    correctness: float
    tokens: int
    max_tokens: int
    truncated: bool
    no_verdict: Masked | None = None


@dataclass(frozen=True, slots=True)
class Shaping:
    """How overlong completions are treated (`buffer` in tokens), and what length costs: `length_coef` for a whole token limit."""

    overlong: Overlong = "judged"
    buffer: int = 0
    penalty: float = 1.0
    length_coef: float = 0.0

    def outcome(self, member: Member) -> float | None:
        """The reward before any penalty for length: what group filters look at."""
        if member.reward is None or not self.in_baseline(member):
            return None
        return member.reward - (member.correctness if self.overlong == "wrong" and member.truncated else 0.0)

    def reward(self, member: Member) -> float | None:
        """The shaped reward; None where there is no verdict."""
        if member.reward is None:
            return None
        shaped = member.reward - (member.correctness if self.overlong == "wrong" and member.truncated else 0.0)
        if self.overlong == "penalty":
            buffer = min(self.buffer, member.max_tokens)  # a long prompt may leave less than the buffer
            free = member.max_tokens - buffer
            shaped -= self.penalty * min(max((member.tokens - free) / buffer, 0.0), 1.0)
        if self.length_coef:
            shaped -= self.length_coef * member.tokens / member.max_tokens
        return shaped

    def mask(self, member: Member) -> Masked | None:
        """Why a member is not trained on, or None. With `mask` it is no part of the baseline either."""
        if member.reward is None:
            return member.no_verdict
        return "overlong" if member.truncated and self.overlong in ("mask", "mask_loss") else None

    def in_baseline(self, member: Member) -> bool:
        """True when the others of the group are measured against this member too."""
        return member.reward is not None and not (self.overlong == "mask" and member.truncated)
