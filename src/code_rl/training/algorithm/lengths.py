"""Iterative context lengthening: the token limit of completions, by step or by criterion.

`0:16384,200:32768` begins with 16,384 tokens and allows 32,768 from step 200 on. Instead of a step,
a stage may have a criterion: `truncated>0.2` (the share of truncated completions) or `plateau` (the
mean of correct completions no longer rises). Both look at the last `window` steps of the current
stage.

A stage with a step begins at that step even if criteria before it were never met; those stages are
skipped. So `0:16384,plateau:24576,200:32768` means 24,576 tokens at a plateau, and 32,768 tokens
from step 200 at the latest.

The stage of a step depends only on the settings and on the steps known when its sampling begins,
never on timing. A resumed run therefore finds the same stage as an uninterrupted one.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from code_rl.util.errors import ConfigError

_STAGE = re.compile(r"(?:([0-9]+)|truncated *> *(0?\.[0-9]+|0|1|1\.0)|plateau) *: *(0*[1-9][0-9]*)")


Metrics = Mapping[str, Any]
"""The metrics of a finished step; `truncated_rate` and `mean_correct` are read. None means that
there is no mean, and meets no criterion."""


@dataclass(frozen=True, slots=True)
class LengthStage:
    """A token limit and the condition at which it begins: a step, a share of truncated completions,
    or (neither given) a plateau."""

    max_tokens: int
    at_step: int | None = None
    truncated_above: float | None = None

    def criterion_met(self, steps: Sequence[Metrics], window: int) -> bool:
        """Return True if the known `steps` of the current stage, in order, meet the criterion of
        this one: over the last `window` steps the mean of `truncated_rate` is above the share, or
        the last `window` steps have no more correct completions than the `window` before. False
        with fewer steps, with a None among them, or for a stage with a step."""
        name, count = (
            ("mean_correct", 2 * window)
            if self.truncated_above is None
            else ("truncated_rate", window)
        )
        seen = [math.nan if step[name] is None else step[name] for step in steps[-count:]]
        if self.at_step is not None or len(seen) < count:
            return False
        if self.truncated_above is not None:
            return sum(seen) / window > self.truncated_above
        return sum(seen[window:]) <= sum(seen[:window])


@dataclass(frozen=True, slots=True)
class ContextSchedule:
    """The stages in order. `lag` is the number of steps before a step whose metrics are not yet
    known when its sampling begins."""

    stages: tuple[LengthStage, ...]
    window: int = 20
    lag: int = 0

    def stage(self, step: int, steps: Sequence[Metrics]) -> int:
        """Return the index of the stage in which `step` is sampled. `steps[t]` is step t, from step
        0 on; those from `step − lag` on are not read. The last stage never ends."""
        current = since = 0
        for t in range(step + 1):
            if current + 1 == len(self.stages):
                break
            known = steps[since : max(t - self.lag, since)]
            begun = [
                n
                for n, stage in enumerate(self.stages)
                if stage.at_step is not None and stage.at_step <= t
            ]
            if begun[-1] > current:
                current, since = begun[-1], t
            elif self.stages[current + 1].criterion_met(known, self.window):
                current, since = current + 1, t
        return current

    @property
    def longest(self) -> int:
        """The greatest limit of all stages, in tokens."""
        return max(stage.max_tokens for stage in self.stages)


def parse_schedule(text: str) -> tuple[LengthStage, ...]:
    """Return the stages of `max_tokens_schedule`, at least one, the first at step 0. Raises
    ConfigError that quotes the unreadable part, or if the first stage has another step or steps do
    not rise."""
    stages = [_stage(part.strip()) for part in text.split(",")]
    if stages[0].at_step != 0:
        raise ConfigError(
            f"max_tokens_schedule={text!r} must begin at step 0, as in 0:16384,200:32768"
        )
    steps = [stage.at_step for stage in stages if stage.at_step is not None]
    if any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        raise ConfigError(f"max_tokens_schedule={text!r} must have rising steps")
    return tuple(stages)


def _stage(part: str) -> LengthStage:
    """Return one stage of the schedule, read from its text. Raises ConfigError that quotes it."""
    found = _STAGE.fullmatch(part)
    if found is None:
        raise ConfigError(
            f"max_tokens_schedule has a part {part!r}; write STEP:TOKENS, truncated>SHARE:TOKENS "
            "or plateau:TOKENS"
        )
    step, share, tokens = found.groups()
    return LengthStage(int(tokens), int(step) if step else None, float(share) if share else None)
