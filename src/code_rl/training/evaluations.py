"""Evaluations of a run: when they are due, and how its policy is evaluated on held-out problems."""

from __future__ import annotations

import time
from typing import Any

from code_rl.evaluation import evaluate, evaluation_metrics
from code_rl.policy import Policy
from code_rl.training.config import Config
from code_rl.training.run import Run


async def evaluate_run(run: Run, policy: Policy, step: int = -1, *, full: bool) -> dict[str, Any]:
    """Evaluate on the held-out splits after `step` (−1: before training): greedily, and with `full`
    also with samples for Pass@1 and Pass@k.

    Samples and verdicts of an earlier process of this run are reused.
    """
    started = time.perf_counter()
    samples = run.config.eval_samples if full else 0
    with run.recorder.evaluating(run.test_splits, samples) as judged:
        results = await evaluate(
            policy,
            run.test_splits,
            samples=samples,
            sampling=run.eval_sampling,
            seed=run.config.seed,
            log=run.recorder.evaluation_log(step),
            on_verdict=judged,
        )
    parts = [
        each
        for result in results.values()
        for each in (result.greedy, result.sampled)
        if each is not None
    ]
    return dict(evaluation_metrics(results)) | {
        "tokens/eval_prefill": sum(each.prompt_tokens for each in parts),
        "time/eval": time.perf_counter() - started,
        "tokens/eval": sum(each.completion_tokens for each in parts),
    }


def evaluates_after(config: Config, completed_steps: int) -> bool:
    """True if the settings ask for an evaluation after this step."""
    if completed_steps == config.max_steps:
        return config.eval_every >= 0
    return config.eval_every > 0 and completed_steps % config.eval_every == 0
