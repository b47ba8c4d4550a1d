"""Figures of an evaluation: from one outcome per completion to pass@k with intervals, rates, counts. The loop and `code-rl eval` share it.

Completions without a verdict about themselves (`sandbox_error`, `checker_error`) are in no mean; they are counted in `verdicts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from code_rl.errors import SandboxError
from code_rl.evaluation.passk import Estimate, mean_with_interval, pass_at_k
from code_rl.reward.verdict import VerdictKind


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one completion. `format_ok`: it had a fenced block; `truncated`: it was cut by length."""

    kind: VerdictKind
    format_ok: bool
    truncated: bool
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def judged(self) -> bool:
        """True when the verdict is about the program."""
        return not self.kind.ours

    @property
    def correct(self) -> bool:
        """True when every test passed."""
        return self.kind is VerdictKind.PASSED


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one set of problems.

    `problems` counts those with at least one verdict, `samples` all completions. `pass_at` maps k to pass@k over the problems with k verdicts
    or more, and has no k that no problem has. Rates are over all completions.
    """

    problems: int
    samples: int
    pass_at: Mapping[int, Estimate]
    format_rate: float
    truncated_rate: float
    verdicts: Mapping[str, int]
    prompt_tokens: int
    completion_tokens: int


def figures(outcomes_P: Sequence[Sequence[Outcome]], ks: Iterable[int]) -> Figures:
    """Figures of completions by problem, for each k of `ks`. Raises SandboxError when no completion has a verdict."""
    everything = [outcome for outcomes in outcomes_P for outcome in outcomes]
    counted_P = [counts for outcomes in outcomes_P if (counts := verdict_counts(outcomes))[0]]
    if not counted_P:
        raise SandboxError("no completion of a held-out split got a verdict; the sandbox failed on all of them")
    return Figures(
        problems=len(counted_P),
        samples=len(everything),
        pass_at={
            k: mean_with_interval(values_P)
            for k in ks
            if (values_P := [pass_at_k(n, c, k) for n, c in counted_P if n >= k])
        },
        format_rate=sum(outcome.format_ok for outcome in everything) / len(everything),
        truncated_rate=sum(outcome.truncated for outcome in everything) / len(everything),
        verdicts=Counter(outcome.kind.value for outcome in everything),
        prompt_tokens=sum(outcome.prompt_tokens for outcome in everything),
        completion_tokens=sum(outcome.completion_tokens for outcome in everything),
    )


def verdict_counts(outcomes: Sequence[Outcome]) -> tuple[int, int]:
    """(completions with a verdict, those that passed)."""
    judged = [outcome for outcome in outcomes if outcome.judged]
    return len(judged), sum(outcome.correct for outcome in judged)
