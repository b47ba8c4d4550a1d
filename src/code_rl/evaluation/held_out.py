"""The evaluations of a training run: its policy on the held-out problems, kept in the run's
directory, as metrics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from code_rl.evaluation.generators import EvalEntry, PolicyGenerator
from code_rl.evaluation.pass_at_k import Figures, figures, verdict_counts
from code_rl.evaluation.runner import Evaluation, Plan
from code_rl.evaluation.samples import GREEDY, SAMPLED, Mode
from code_rl.grading import Problem
from code_rl.policy import Policy, Sampling
from code_rl.policy.completion_log import GroupLog

IN_FLIGHT = 256
"""Groups in flight, over all splits: as many as fit one batch of the embedded engine. Problems are
in memory only while they are in flight, however large their split."""

EvaluationLog = Callable[[str], GroupLog]
"""A function from a problem's id in the evaluation to the log of its groups."""


@dataclass(frozen=True, slots=True)
class SplitResult:
    """One split's results: greedy, and with `k` samples per problem (None: only greedy).

    `outcomes` has, by mode and problem, the numbers of completions with a verdict and of those that
    passed.
    """

    greedy: Figures
    sampled: Figures | None
    k: int
    outcomes: Mapping[Mode, Mapping[str, tuple[int, int]]]


async def evaluate(
    policy: Policy,
    splits: Mapping[str, Sequence[Problem]],
    *,
    samples: int,
    sampling: Sampling,
    seed: int,
    log: EvaluationLog = lambda _: GroupLog(),
    on_verdict: Callable[[], object] = lambda: None,
) -> dict[str, SplitResult]:
    """Evaluate each split: greedily, and with `samples` completions per problem (0: only greedily).
    Return the results in the order of the splits. Equal seeds give equal requests, whatever else
    runs.

    `log` keeps each group, so that an interrupted evaluation can continue. `on_verdict` is called
    for each judged completion. Raises SandboxError if no completion of a split has a verdict, and
    any error of the policy.
    """
    entries_of = {
        name: [EvalEntry(f"{name}/{i}", name, i) for i in range(len(split))]
        for name, split in splits.items()
    }
    entries = list(itertools.chain(*entries_of.values()))
    evaluation = Evaluation(
        entries,
        lambda entry: (splits[entry.split][entry.index], None),
        PolicyGenerator(policy, sampling, at_once=IN_FLIGHT),
        Plan(samples, greedy=True, seed=seed),
        log=log,
    )
    evaluation.on_verdict = lambda _: on_verdict()
    found = await evaluation.run()
    results = {}
    for name, entries in entries_of.items():
        greedy, sampled = (found.by_problem(entries, mode) for mode in (GREEDY, SAMPLED))
        counts = {
            mode: {problem: verdict_counts(outcomes) for problem, outcomes in by_problem.items()}
            for mode, by_problem in ((GREEDY, greedy), (SAMPLED, sampled))
        }
        shown = figures([*sampled.values()], {1, samples}) if samples else None
        results[name] = SplitResult(figures([*greedy.values()], (1,)), shown, samples, counts)
    return results


def evaluation_metrics(results: Mapping[str, SplitResult]) -> dict[str, float]:
    """Return flat `eval/…` metrics: each split's own, and plain means over splits.

    `eval/mean_correct` is greedy Pass@1. `eval/pass@1`, `eval/pass@k` and the format rate are from
    samples at the run's temperature; without samples they are left out.
    """
    metrics: dict[str, float] = {}
    columns: dict[str, list[float]] = {}
    for name, result in results.items():
        greedy, sampled = result.greedy, result.sampled
        row = {
            "mean_correct": greedy.pass_at[1].value,
            "format_rate_greedy": greedy.format_rate,
            "truncated_greedy": greedy.truncated_rate,
            "problems": (sampled or greedy).problems,
        }
        if sampled is not None:
            row |= {f"pass@{k}": estimate.value for k, estimate in sampled.pass_at.items()}
            row |= {"pass@1_low": sampled.pass_at[1].low, "pass@1_high": sampled.pass_at[1].high}
            few = {
                k: each.problems
                for k, each in sampled.pass_at.items()
                if each.problems < sampled.problems
            }
            row |= {f"pass@{k}_problems": problems for k, problems in few.items()}
            row |= {"format_rate": sampled.format_rate, "truncated": sampled.truncated_rate}
        for key, value in row.items():
            metrics[f"eval/{name}/{key}"] = value
            columns.setdefault(key, []).append(value)
    for key, values in columns.items():
        if not key.endswith(("_low", "_high", "problems")):
            metrics[f"eval/{key}"] = sum(values) / len(values)
    largest = f"pass@{next(iter(results.values())).k}" if results else ""
    if largest in columns:
        metrics["eval/pass@k"] = metrics[f"eval/{largest}"]
    return metrics
