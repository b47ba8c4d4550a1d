"""The algorithm on one page: GRPO, with rewards from programs that are really run.

    repeat   x ~ problems;   τ_1 … τ_G ~ π(·|x);   r_i = R(τ_i);   A = A(r);   θ ← Adam(∇ Σ_x Σ_i
    Σ_t L(τ_it, A_i))

The loss is a sum over tokens, not divided by |τ|, G or P. A group is skipped if all its R are equal
or all its A are 0: it teaches nothing.

Differences from the textbook: there is no critic (the group is the baseline) and no entropy term.
These are off by default: a KL term, division by the standard deviation, and any deduction for
length (`length_coef`, `overlong=penalty`). By default a batch gives one optimizer step
(`num_substeps`), its gradient is computed in one piece (`num_minibatches`), and stages do not
overlap.

Outside this page, `pipeline` decides which weights a batch is sampled from and what runs
concurrently; `run.recorder` saves enough to resume a run that is stopped at any point.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import cast

from code_rl.engine import logprobs_of
from code_rl.policy import Group
from code_rl.policy.rewards import total
from code_rl.training.algorithm.advantages import compute_advantages, should_skip
from code_rl.training.algorithm.datums import Example, forward_backward, make_datum, segments
from code_rl.training.algorithm.kl import penalise_kl
from code_rl.training.objective import Objective, ScoredGroup, TrainedBatch
from code_rl.training.pipeline import (
    Batch,
    Batches,
    MicroBatch,
    OptimizerStep,
    answered,
    evaluate_run,
)
from code_rl.training.run import Run
from code_rl.util.concurrency import gather_or_cancel
from code_rl.util.errors import BackendError


async def train(run: Run) -> None:
    """Train from `run.first_step` until `max_steps` (below 0: without end), or until `run.stop` is
    set; the current step is always finished, logged and saved first. A new run is evaluated first,
    unless `eval_every` is below 0.

    The first error of any stage is raised, after all work in progress is cancelled.
    """
    policy = await run.policy(run.first_step)
    if run.first_step == 0 and run.config.eval_every >= 0:
        run.before_training(await evaluate_run(run, policy, full=True))
    async with Batches(run) as batches:
        while run.goes_on(policy.step):
            # x and τ, sampled with the weights of this step or of K steps ago
            batch = batches.next(policy)
            # r, A, and a new θ
            trained = await train_on(run, batch)
            unchanged = None if trained.examples else policy
            policy = await run.policy(policy.step + 1, unchanged)
            # log, evaluate, save
            await batches.finish(batch, trained, policy)


async def train_on(run: Run, batch: Batch) -> TrainedBatch:
    """Train on one batch: `num_substeps` optimizer steps, each on an equal share of the batch. All
    are submitted, in order, before the first answer is awaited."""
    return await answered(
        [await optimizer_step(run, batch, substep) for substep in range(run.config.num_substeps)]
    )


async def optimizer_step(run: Run, batch: Batch, substep: int) -> OptimizerStep:
    """Submit one optimizer step, on the sum of its micro-batches' gradients, and return its
    futures. Without any example, Adam is not called and the weights stay.

    Each micro-batch goes to the trainer as soon as it is judged; with a KL penalty, once all are.
    """
    trainer, objective = run.backend.trainer, run.objective
    loss = (objective.loss, objective.loss_config, objective.temperature)
    judged = judged_micro_batches(run, batch, substep)
    micro_batches = with_kl_penalty(run, judged) if objective.kl_coef else judged
    gradients, adam = [], None
    async for part in micro_batches:
        # A micro-batch without examples has no gradient, and a step without gradients no Adam.
        gradient = None
        if part.examples:
            gradient = await asyncio.to_thread(forward_backward, trainer, part.datums, *loss)
        gradients.append((part, gradient))
    if any(part.examples for part, _ in gradients):
        adam = await asyncio.to_thread(trainer.optim_step, run.adam_params)
    return OptimizerStep(gradients, adam)


async def judged_micro_batches(run: Run, batch: Batch, substep: int) -> AsyncIterator[MicroBatch]:
    """Yield r, A and the examples of each of the `num_minibatches` micro-batches of one substep,
    once its trajectories are judged. They come in slot order, and their groups are written to
    `rollouts.jsonl` first.

    With `dynamic_sampling` one slot of the batch may give several groups, one for each problem that
    was sampled for it.
    """
    parts = run.config.num_minibatches
    for part in range(parts):
        groups = await batch.share(substep * parts + part, run.config.num_substeps * parts)
        scored = [score_group(group, run.objective) for group in groups]
        micro_batch = MicroBatch(
            scored, [example for each in scored for example in examples_of(each)]
        )
        run.recorder.scored(batch.step, scored)
        yield micro_batch


def score_group(group: Group, objective: Objective) -> ScoredGroup:
    """Return R, r and A of one group, in the order of its members. Masked members are left out
    (None), never set to zero; with `overlong=mask_loss` truncated members still count in the mean.

    The group is skipped if all its R are equal (only length would then tell its members apart) or
    if all its A are 0. Raises ConfigError for a user's reward or advantage that fails.
    """
    shaping, trajectories = objective.shaping, group.trajectories
    parts_G = [objective.reward.parts(each, group.problem) for each in trajectories]
    R_G = [total(parts) for parts in parts_G]
    r_G = [
        shaping.shaped(R, each.length, group.max_tokens, each.truncated)
        for R, each in zip(R_G, trajectories, strict=True)
    ]
    reasons_G = [shaping.mask_reason(each) for each in trajectories]
    unmasked_G = [reason is None for reason in reasons_G]
    counted_G = [True] * len(trajectories) if shaping.overlong == "mask_loss" else unmasked_G
    counted = only(counted_G, r_G)
    A_G = only(unmasked_G, compute_advantages(counted, objective.estimator, trajectories))
    reasons = {
        "all_masked": not any(unmasked_G),
        "rewards_alike": objective.compares
        and should_skip(compute_advantages(only(counted_G, R_G))),
        "no_advantage": should_skip(A_G),
    }
    skipped = next((reason for reason, holds in reasons.items() if holds), None)
    return ScoredGroup(group, tuple(r_G), tuple(A_G), tuple(reasons_G), skipped, tuple(parts_G))


def only(wanted_G: Sequence[bool], values_G: Sequence[float | None]) -> list[float | None]:
    """Return the values of the wanted members, and None in place of the others, so that positions
    stay those of the group."""
    return [value if wanted else None for wanted, value in zip(wanted_G, values_G, strict=True)]


def examples_of(scored: ScoredGroup) -> list[Example]:
    """Return the training examples of one group, one for each segment of its trajectories. Masked
    trajectories and skipped groups have none."""
    return [
        Example(make_datum(each.tokens, each.logprobs, each.prompt_length, advantage), each)
        for index, advantage in scored.trained
        for each in segments(scored.group.trajectories[index].turns)
    ]


async def with_kl_penalty(
    run: Run, micro_batches: AsyncIterator[MicroBatch]
) -> AsyncIterator[MicroBatch]:
    """Yield the micro-batches of one substep, in order, with β · (log q − log p_ref) subtracted
    from each sampled token's advantage, an estimate of β · KL(π ‖ π_ref).

    The penalty is centered over all trained tokens of the substep, so the first micro-batch is
    yielded only when the last is judged. Raises BackendError as `log_p_ref` does.
    """
    waiting = [each async for each in micro_batches]
    examples = [example for each in waiting for example in each.examples]
    penalized, divergence = penalise_kl(
        examples, await log_p_ref(run, examples), run.objective.kl_coef
    )
    rest = iter(penalized)
    for each in waiting:
        yield MicroBatch(each.groups, [next(rest) for _ in each.examples], divergence)


async def log_p_ref(run: Run, examples: Sequence[Example]) -> list[list[float]]:
    """Return the base model's log-probability of each example's sampled tokens, for each example in
    order. The run has a reference (`kl_coef` above 0). Raises BackendError if the back end leaves
    one out."""
    assert run.reference is not None
    temperature = run.objective.temperature
    answers = await gather_or_cancel(
        logprobs_of(run.reference, example.segment.tokens, temperature) for example in examples
    )
    found_T = [
        [answer[at + 1] for at in each.sampled]
        for each, answer in zip(examples, answers, strict=True)
    ]
    if any(None in each for each in found_T):
        raise BackendError(
            "the reference model (kl_coef) gave no log-probability for a token that was sampled"
        )
    return cast(list[list[float]], found_T)
