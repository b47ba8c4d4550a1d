"""The metrics of a step. Every metric is declared here once; docs/metrics.md is generated from the
table.

`*` stands for a name: a verdict, a reason, a split, or a number of steps.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from code_rl.engine.losses import Loss, loss_settings
from code_rl.training.algorithm.datums import Example, Floats, with_sequence
from code_rl.util.registry import attribute_errors_to

if TYPE_CHECKING:
    from code_rl.training.objective import Objective, TrainedBatch


@dataclass(frozen=True, slots=True)
class Metric:
    """A name in `metrics.jsonl`, its unit, and its meaning."""

    name: str
    unit: str
    meaning: str


METRICS = (
    Metric("mean_reward", "", "mean shaped reward of completions with a verdict"),
    Metric("reward_part/*", "", "mean of a named part of your own reward=, before shaping"),
    Metric("mean_correct", "share", "completions that pass every test, of those with a verdict"),
    Metric("format_rate", "share", "completions with a program in a fenced block"),
    Metric("truncated_rate", "share", "completions cut off at the token limit"),
    Metric("groups_total", "groups", "groups sampled, replaced ones included"),
    Metric(
        "groups_skipped",
        "groups",
        "groups not trained on: equal rewards, or nothing left to compare",
    ),
    Metric("groups_refilled", "groups", "groups replaced by dynamic sampling"),
    Metric(
        "prompts_replaced",
        "prompts",
        "problems whose prompt leaves no room for an answer (absent: none)",
    ),
    Metric("curriculum/seen", "problems", "drawn so far, with a curriculum other than uniform"),
    Metric("curriculum/retired", "problems", "of weight 0 when the batch began"),
    Metric("curriculum/solve_rate", "share", "mean running solve rate of the problems seen"),
    Metric("n_datums", "datums", "training examples"),
    Metric("loss", "per token", "the loss, over the tokens trained on"),
    Metric("kl_sample_train", "nats", "mean of log q − log p over sampled tokens"),
    Metric("ratio_mean", "", "mean of p / q"),
    Metric("ratio_max", "", "largest distance of p / q from 1"),
    Metric(
        "sampler/gap_mean",
        "nats",
        "with sampler=: mean absolute difference of log q and log p at equal weights",
    ),
    Metric("sampler/gap_max", "nats", "largest of those"),
    Metric("clip_fraction", "share", "tokens that the loss clips or masks (losses that do)"),
    Metric("kl_reference", "nats", "mean of log q − log p_ref over sampled tokens (with kl_coef)"),
    Metric(
        "optim/grad_norm",
        "",
        "norm of the gradient before clipping, mean over optimizer steps",
    ),
    Metric("entropy", "nats", "mean of −log q over sampled tokens"),
    Metric("turns", "turns", "mean answers per trajectory (environments of several turns)"),
    Metric("max_tokens", "tokens", "limit of a completion in this step"),
    Metric("stage", "", "number of the stage of max_tokens_schedule"),
    Metric("tokens/prompt", "tokens", "prompts, each counted once; for cost, once per completion"),
    Metric("tokens/completion", "tokens", "sampled"),
    Metric("tokens/prefill", "tokens", "read before sampling, and by the reference model"),
    Metric("tokens/train", "tokens", "trained on, prompts included"),
    Metric("tokens/eval", "tokens", "sampled by the evaluation"),
    Metric("tokens/eval_prefill", "tokens", "read before sampling by the evaluation"),
    Metric("canary/groups", "groups", "impossible problems sampled beside the batch (canary=)"),
    Metric("canary/programs", "completions", "for those, with a program and a verdict, or passed"),
    Metric("canary/passed", "completions", "of those, passed or paid in full: must be 0"),
    Metric("canary/prefill", "tokens", "read before sampling them"),
    Metric("canary/tokens", "tokens", "sampled for them"),
    Metric("canary/program", "", "text of the first program that passed (absent: none)"),
    Metric("reward/wrong", "completions", "programs that fail a test"),
    Metric("reward/wrong_groups", "groups", "that have one"),
    Metric(
        "reward/wrong_paid",
        "completions",
        "of those programs, with a reward of 1 or more: should be 0",
    ),
    Metric("reward/wrong_program", "", "text of the first of those (absent: none)"),
    Metric("reward/judged_twice", "completions", "programs that passed and were judged once more"),
    Metric("reward/unstable", "completions", "of those, failed then: should be 0"),
    Metric(
        "reward/public_fpr",
        "share",
        "programs that pass every public test, of those that fail a test (where that is known)",
    ),
    Metric(
        "reward/fpr_upper",
        "share",
        "upper end of the 95% interval of paid programs among wrong ones, over the run so far",
    ),
    Metric("verdicts/*", "completions", "by verdict"),
    Metric("masked/*", "completions", "not trained on, by reason"),
    Metric(
        "staleness/*",
        "trajectories",
        "trained on, by the age of their weights in training steps",
    ),
    Metric("staleness/mean", "steps", "mean of those"),
    Metric("sandbox/retries", "tests", "tried again because the sandbox failed"),
    Metric("time/sample", "s", "until the last completion was sampled"),
    Metric("time/score", "s", "judging after that"),
    Metric("time/train", "s", "from the last verdict to the new weights"),
    Metric("time/wait", "s", "the trainer's wait for rollouts"),
    Metric("time/step", "s", "the whole step; with overlap not the sum of the others"),
    Metric("time/eval", "s", "the evaluation"),
    Metric("eval/mean_correct", "share", "greedy Pass@1, mean over splits"),
    Metric("eval/pass@1", "share", "Pass@1 at the run's temperature, mean over splits"),
    Metric(
        "eval/pass@*",
        "share",
        "Pass@k at the run's temperature, k = eval_samples, mean over splits; `pass@k` is the same",
    ),
    Metric("eval/format_rate", "share", "sampled completions with a program, mean over splits"),
    Metric(
        "eval/format_rate_greedy", "share", "greedy completions with a program, mean over splits"
    ),
    Metric("eval/truncated", "share", "sampled completions cut off, mean over splits"),
    Metric("eval/truncated_greedy", "share", "greedy completions cut off, mean over splits"),
    Metric(
        "eval/*/*",
        "",
        "the same of one split, with `pass@1_low` and `pass@1_high` (95%), `problems`, and "
        "`pass@k_problems` if fewer have k verdicts",
    ),
)


def _reward_parts(trained: TrainedBatch) -> dict[str, float | None]:
    """Return the mean of each named part of the rewards, by `reward_part/NAME` in alphabetical
    order. A part that a trajectory does not have counts as 0; trajectories without a reward are
    left out."""
    parts = [part for scored in trained.groups for part in scored.parts_G if part is not None]
    names = sorted({name for part in parts for name in part if name})
    return {f"reward_part/{name}": mean([part.get(name, 0.0) for part in parts]) for name in names}


def step_metrics(step: int, trained: TrainedBatch, objective: Objective) -> dict[str, Any]:
    """Return the metrics of one batch, by the names of `METRICS`. Completions without a verdict are
    left out of the means; a mean of none is None. Raises ConfigError for a failing loss."""
    groups = [scored.group for scored in trained.groups]
    done = [trajectory for group in groups for trajectory in group.trajectories]
    verdicts = Counter(each.verdict.kind.value for each in done)
    masked = Counter(
        reason
        for scored in trained.groups
        for reason in scored.mask_reasons_G
        if reason is not None
    )
    tokens_trained = sum(len(example.datum.model_input.to_ints()) for example in trained.examples)
    ages = Counter(
        step - scored.group.policy_step for scored in trained.groups for _ in scored.trained
    )
    sampled_logprobs = [logprob for each in done for logprob in each.logprobs]
    metrics = {
        "mean_reward": mean(
            [
                reward
                for scored in trained.groups
                for reward in scored.rewards_G
                if reward is not None
            ]
        ),
        "mean_correct": mean(
            [float(each.verdict.correct) for each in done if not each.verdict.undecided]
        ),
        **_reward_parts(trained),
        "format_rate": mean([float(each.format_ok) for each in done]),
        "groups_skipped": sum(scored.skipped is not None for scored in trained.groups),
        "groups_total": len(groups),
        "groups_refilled": sum(group.attempt > 0 for group in groups),
        "n_datums": len(trained.examples),
        **loss_metrics(trained.examples, trained.logprobs, objective.loss, objective.loss_config),
        "entropy": -math.fsum(sampled_logprobs) / len(sampled_logprobs)
        if sampled_logprobs
        else None,
        "truncated_rate": mean([float(each.truncated) for each in done]),
        "tokens/prompt": sum(len(group.prompt_tokens) for group in groups),
        "tokens/completion": sum(each.length for each in done),
        "tokens/prefill": sum(each.prefilled for each in done)
        + (tokens_trained + len(trained.examples) if trained.divergences else 0),
        "tokens/train": tokens_trained,
        **{f"verdicts/{kind}": count for kind, count in sorted(verdicts.items())},
        **{f"masked/{reason}": count for reason, count in sorted(masked.items())},
        **{f"staleness/{age}": count for age, count in sorted(ages.items())},
        **(
            {"staleness/mean": sum(age * count for age, count in ages.items()) / ages.total()}
            if ages
            else {}
        ),
    }
    turns = [len(each.turns) for each in done]
    some = {
        "optim/grad_norm": mean(trained.gradient_norms),
        "kl_reference": mean(trained.divergences),
    }
    some |= {"turns": mean(turns) if max(turns, default=1) > 1 else None}
    return metrics | {name: value for name, value in some.items() if value is not None}


def loss_metrics(
    examples: Sequence[Example],
    trained_logprobs: Sequence[Floats],
    loss: Loss,
    loss_config: Mapping[str, float],
) -> dict[str, float | None]:
    """Return the loss per sampled token, and how far the trained policy was from the sampling
    policy; every value is None without examples. Both are computed here from the trainer's
    logprobs, [T − 1] for each example in order, since a service may report neither.

    `clip_fraction` is missing if the loss clips nothing. Raises ConfigError for a loss of the
    user's own that fails.
    """
    settings = loss_settings(loss, loss_config)
    clips = loss.unlimited(settings) is not None
    names = [
        "loss",
        "kl_sample_train",
        "ratio_mean",
        "ratio_max",
        *(["clip_fraction"] if clips else []),
    ]
    if not examples:
        return dict.fromkeys(names)
    total, held_back, gaps = 0.0, 0, []
    for example, logprobs_T in zip(examples, trained_logprobs, strict=True):
        fields = with_sequence(example.datum, loss).loss_fn_inputs
        trained_on = np.any([fields[name].to_numpy() != 0 for name in loss.signal], axis=0)
        inputs = {name: fields[name].to_numpy()[trained_on] for name in loss.inputs}
        with attribute_errors_to("loss", loss.name):
            losses_T = loss.checked(np, logprobs_T[trained_on], inputs, settings)
        total += float(np.sum(losses_T))
        gaps.append((logprobs_T - example.array("logprobs"))[trained_on])
        held_back_T = loss.held_back(np, logprobs_T[trained_on], inputs, settings)
        held_back += 0 if held_back_T is None else int(np.sum(held_back_T))
    gap = np.concatenate(gaps).astype(np.float64)
    values = [
        total / gap.size,
        float(-gap.mean()),
        float(np.exp(gap).mean()),
        float(np.abs(np.expm1(gap)).max()),
    ]
    return dict(zip(names, [*values, *([held_back / gap.size] if clips else [])], strict=True))


def mean(values: Sequence[float]) -> float | None:
    """Return the mean, or None (a metric without a value) for no values."""
    return sum(values) / len(values) if values else None
