"""Masks and shaping of a group's rewards before they become advantages.

Completions that were truncated at their token limit ("overlong") are treated in one of these ways:

| `overlong` | | source |
|---|---|---|
| `judged` | nothing: the verdict counts | |
| `mask` | out of the loss and out of the baseline | DeepCoder 2025 |
| `mask_loss` | out of the loss; the reward stays in the baseline of the others | |
| `wrong` | no reward for the program, whatever the verdict (`rewards.Reward`) | |
| `penalty` | the reward sinks over the last `buffer` tokens | DAPO 2025, arXiv 2503.14476 |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast, get_args

from code_rl.util.errors import ConfigError

if TYPE_CHECKING:
    from code_rl.policy import Trajectory

Overlong = Literal["judged", "mask", "mask_loss", "wrong", "penalty"]


def parse_overlong(text: str) -> tuple[Overlong, int]:
    """Return the treatment, and the tokens of `penalty:TOKENS` (0 for the others). Raises
    ConfigError for anything else."""
    rule, _, tokens = text.partition(":")
    buffer = int(tokens) if rule == "penalty" and tokens.isdecimal() else 0
    if (
        rule not in get_args(Overlong)
        or (rule == "penalty") != (buffer > 0)
        or (buffer == 0 and rule != text)
    ):
        raise ConfigError(
            f"overlong={text!r} must be judged, mask, mask_loss, wrong or penalty:TOKENS"
        )
    return cast(Overlong, rule), buffer


@dataclass(frozen=True, slots=True)
class Shaping:
    """The treatment of overlong completions (`buffer` in tokens), and the cost of length.
    `length_coef` is the cost of a completion as long as the token limit."""

    overlong: Overlong = "judged"
    buffer: int = 0
    length_coef: float = 0.0

    def shaped(
        self, reward: float | None, tokens: int, max_tokens: int, truncated: bool
    ) -> float | None:
        """Return a reward minus the cost of its `tokens`; None stays None. With `penalty` the cost
        rises from 0 to 1 over the last `buffer` tokens before `max_tokens`, the limit of the
        group's trajectories, which must be above `buffer`. `length_coef` × `tokens` / `max_tokens`
        is subtracted too.

        A completion `truncated` earlier, because the context was full, has the whole penalty.
        """
        if reward is None:
            return None
        if self.overlong == "penalty":
            over = self.buffer if truncated else tokens - (max_tokens - self.buffer)
            reward -= min(max(over / self.buffer, 0.0), 1.0)
        return reward - self.length_coef * tokens / max_tokens if self.length_coef else reward

    def mask_reason(self, trajectory: Trajectory) -> str | None:
        """Return why a member is not trained on: `sandbox_error` or `checker_error` (no verdict),
        `overlong`, or None if it is trained on."""
        if trajectory.verdict.undecided:
            return trajectory.verdict.kind.value
        return (
            "overlong" if trajectory.truncated and self.overlong in ("mask", "mask_loss") else None
        )
