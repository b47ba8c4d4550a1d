"""The algorithm on one page: GRPO on programs that are really run.

    repeat   x ~ problems;   τ_1 … τ_G ~ π(·|x);   r_i = R(τ_i);   A = A(r);   θ ← Adam(∇ Σ_i L(τ_i, A_i))

Left out of the textbook: no critic (the group is the baseline), no entropy term, and by default no KL term, no division by the standard
deviation, one optimizer step per batch and no overlap of the stages. Beside the page: `rollouts.batches` decides which weights a batch is
sampled from and what runs at the same time; `run.recorder` keeps all that happens, so that a run can be cut anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from code_rl.algorithm.advantages import compute_advantages, should_skip
from code_rl.algorithm.datums import Example, forward_backward, make_datum, segments, train_step
from code_rl.algorithm.kl import penalise_kl
from code_rl.backends.connect import logprobs_of
from code_rl.concurrency import together
from code_rl.evaluation.evaluate import evaluate_run
from code_rl.objective import Credit, Objective
from code_rl.rollouts.batches import Batch, Batches, Learned
from code_rl.rollouts.trajectory import Group
from code_rl.run import Run


async def train(run: Run) -> None:
    """Train until `max_steps`, or until `run.stop` is set; the step in hand is finished, logged and saved then."""
    policy = await run.policy(run.first_step)
    if run.first_step == 0 and run.config.eval_every >= 0:
        run.before_training(await evaluate_run(run, policy, full=True))
    async with Batches(run) as batches:
        while run.goes_on(policy.step):
            batch = batches.next(policy)  # x and τ, under way
            learned = await learn(run, batch)  # r, A, and a new θ
            policy = await run.policy(policy.step + 1, unchanged=None if learned.examples else policy)
            await batches.finish(batch, learned, policy)  # log, evaluate, save
    run.recorder.ended(policy.step, asked=run.stop.is_set())


async def learn(run: Run, batch: Batch) -> Learned:
    """One batch: for each of its parts an optimizer step, whose minibatches go to the trainer as soon as they are judged."""
    trainer, objective, learned = run.backend.trainer, run.objective, Learned()
    for part in range(run.config.num_substeps):
        minibatches = minibatches_of_examples(run, batch, part, learned)
        if objective.kl_coef:
            minibatches = with_kl_penalty(run, minibatches, learned)
        waiting = 0
        async for examples, last in minibatches:
            datums = [example.datum for example in examples]
            learned.examples += examples
            waiting += len(datums)
            loss = (objective.loss, objective.loss_config, objective.temperature)
            if last and waiting:
                adam = run.adam_params(batch.step)
                run.recorder.optimizes(batch.step, part, waiting, adam.learning_rate)
                await asyncio.to_thread(train_step, trainer, datums, adam, *loss, futures=learned.submitted)
            elif datums:
                learned.submitted.append(await asyncio.to_thread(forward_backward, trainer, datums, *loss))
    await learned.answered()
    run.recorder.log_trained(batch.step, learned.examples, learned.logprobs, learned.reference)
    return learned


async def minibatches_of_examples(
    run: Run, batch: Batch, part: int, learned: Learned
) -> AsyncIterator[tuple[list[Example], bool]]:
    """The examples of each minibatch of one part, and whether it is the last: r and A, as soon as its trajectories are judged."""
    config = run.config
    for number, places in enumerate(batch.minibatches(part, config.num_substeps, config.num_minibatches), 1):
        groups = await batch.groups(places)
        graded = [[(group, credit(group, run.objective)) for group in attempts] for attempts in groups]
        pairs = [pair for attempts in graded for pair in attempts]
        examples = [example for group, each in pairs for example in examples_of(group, each)]
        learned.credited += pairs
        run.recorder.credited(batch.step, part, places.start, graded, examples)
        yield examples, number == config.num_minibatches


def credit(group: Group, objective: Objective) -> Credit:
    """r and A of one group. Masked members are left out, never set to zero."""
    shaping, members = objective.shaping, objective.members(group)
    rewards_G = [shaping.reward(member) for member in members]
    masked_G = [shaping.mask(member) for member in members]
    baseline_G = [r if shaping.in_baseline(each) else None for r, each in zip(rewards_G, members, strict=True)]
    advantages_G = compute_advantages(baseline_G, objective.estimator)
    advantages_G = [None if masked else A for A, masked in zip(advantages_G, masked_G, strict=True)]
    alike = should_skip(compute_advantages([shaping.outcome(member) for member in members]))
    return Credit(tuple(rewards_G), tuple(advantages_G), tuple(masked_G), alike or should_skip(advantages_G))


def examples_of(group: Group, credit: Credit) -> list[Example]:
    """The datums of one group: one for each segment of its trajectories, none for those that are masked or of a group that is skipped."""
    return [
        Example(make_datum(each.tokens, each.logprobs, each.ob_len, advantage), each.sampled)
        for index, advantage in credit.trained
        for each in segments(group.trajectories[index].turns)
    ]


async def with_kl_penalty(
    run: Run, minibatches: AsyncIterator[tuple[list[Example], bool]], learned: Learned
) -> AsyncIterator[tuple[list[Example], bool]]:
    """The same minibatches with β · KL(π ‖ π_ref) in their advantages, centred over all of them: they wait for each other."""
    parts = [part async for part in minibatches]
    examples = [example for part, _ in parts for example in part]
    if examples:
        reference = await reference_logprobs(run, examples)
        examples, divergence = penalise_kl(examples, reference, run.objective.kl_coef)
        learned.reference += reference
        learned.divergences.append(divergence)
    each = iter(examples)
    for part, last in parts:
        yield [next(each) for _ in part], last


async def reference_logprobs(run: Run, examples: Sequence[Example]) -> list[list[float]]:
    """log π_ref of each example's sampled tokens."""
    assert run.reference is not None
    temperature = run.objective.temperature
    answers = await together(logprobs_of(run.reference, example.tokens, temperature) for example in examples)
    return [
        [logprobs[at + 1] or 0.0 for at in example.sampled] for example, logprobs in zip(examples, answers, strict=True)
    ]
