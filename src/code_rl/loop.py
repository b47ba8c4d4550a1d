"""The algorithm on one page: sample, judge, advantages, train, log, evaluate, checkpoint.

What this loop leaves out of the textbook: no critic (the group is the baseline), no entropy term, and by default no KL term, one
optimizer step per batch and no overlap of the stages. `pipeline` decides which weights a batch is sampled from.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from code_rl.accounting import stage_times, step_metrics
from code_rl.backends.connect import Backend, ready
from code_rl.budget import Budget, Tokens
from code_rl.config import BatchShape, Config
from code_rl.evaluation.evaluate import evaluate, evaluation_metrics
from code_rl.grpo import submit_datums
from code_rl.objective import (
    Credit,
    Example,
    Trained,
    build_examples,
    credit,
    objective_of,
    penalise_kl,
    training_decision,
)
from code_rl.pipeline import Batch, Pipeline
from code_rl.problems.order import ProblemOrder
from code_rl.problems.problem import Problem
from code_rl.renderers import Renderer
from code_rl.reward.score import RewardConfig
from code_rl.rollouts import Group, Policy, Sampling
from code_rl.runs.recorder import Recorder
from code_rl.sandbox.executor import Executor, retries_of
from code_rl.schedule import ContextSchedule

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that one training run consists of, assembled; `first_step` is above 0 when it is resumed.

    `sampling` is that of evaluations; `schedule` has the token limits of training. `reference` samples from the base model,
    where a KL term needs it.
    """

    config: Config
    shape: BatchShape
    backend: Backend
    executor: Executor
    renderer: Renderer
    reward: RewardConfig
    sampling: Sampling
    schedule: ContextSchedule
    train_problems: ProblemOrder
    test_splits: Mapping[str, Sequence[Problem]]
    recorder: Recorder
    budget: Budget
    stop: asyncio.Event
    reference: tinker.SamplingClient | None = None
    first_step: int = 0


async def train(run: Run) -> None:
    """Train until `max_steps`, or until `run.stop` is set; the step in hand is finished, logged and saved then."""
    config = run.config
    policy = await current_policy(run, run.first_step)
    if run.first_step == 0 and config.eval_every >= 0:
        baseline = await run_evaluation(run, policy, -1, full=True)
        run.budget.spent += Tokens.of(baseline)
        run.recorder.log_step(-1, baseline)

    async with Pipeline(run) as pipeline:
        step, retries = run.first_step, retries_of(run.executor)
        while step != config.max_steps and not run.stop.is_set():
            started = time.perf_counter()
            batch = pipeline.next_batch(policy)
            learned = await learn(run, batch)
            step += 1
            policy = await current_policy(run, step) if learned.trained.examples else replace(policy, step=step)

            finished = step == config.max_steps
            evaluation = run_evaluation(run, policy, step - 1, full=finished) if evaluates_after(config, step) else None
            times = stage_times(batch, learned, started)
            health = {"sandbox/retries": retries_of(run.executor) - retries}
            retries = retries_of(run.executor)
            await pipeline.log(
                step - 1, step_metrics(batch, learned, objective_of(config)) | times | health, evaluation
            )
            if config.save_every and (finished or run.stop.is_set() or step % config.save_every == 0):
                await pipeline.save(step)
        run.recorder.decided("stop", step=step, why="asked to stop" if run.stop.is_set() else "max_steps")


@dataclass(slots=True)
class Learned:
    """One batch after training: its groups with their credit, and what the trainer said of the examples made from them."""

    credited: list[tuple[Group, Credit]] = field(default_factory=list)
    trained: Trained = field(default_factory=Trained)
    kl_reference: list[float] = field(default_factory=list)
    reference: list[list[float]] = field(default_factory=list)


async def learn(run: Run, batch: Batch) -> Learned:
    """Train on one batch: an optimizer step per substep, each on minibatches that go to the trainer as soon as they are scored."""
    config, trainer, objective = run.config, run.backend.trainer, objective_of(run.config)
    learned = Learned()
    answers: list[Any] = []
    first, size = 0, run.shape.prompts // (config.num_substeps * config.num_minibatches)
    for substep in range(config.num_substeps):
        submitted = 0
        for _ in range(config.num_minibatches):
            places = await batch.groups(first, size)
            credited = [[(group, credit(group, objective)) for group in groups] for groups in places]
            examples = build_examples([pair for pairs in credited for pair in pairs])
            if run.reference is not None and examples:
                reference = await reference_logprobs(run, examples)
                examples, divergence = penalise_kl(examples, reference, config.kl_coef)
                learned.kl_reference.append(divergence)
                learned.reference += reference
            run.recorder.log_rollouts(batch.step, first, credited)
            decision = training_decision(first, credited, examples)
            run.recorder.decided("train" if examples else "skip", step=batch.step, substep=substep, **decision)
            if examples:
                datums = [example.datum for example in examples]
                answers.append(
                    await asyncio.to_thread(submit_datums, trainer, datums, objective.loss, objective.loss_config)
                )
                submitted += len(examples)
            learned.credited += [pair for pairs in credited for pair in pairs]
            learned.trained.examples += examples
            first += size
        if submitted:
            run.recorder.decided(
                "optimize", step=batch.step, substep=substep, datums=submitted, learning_rate=config.learning_rate
            )
            optim_step: Callable[..., Any] = trainer.optim_step
            answers.append(await asyncio.to_thread(optim_step, adam_params(config)))
    for answer in answers:
        outcome = await ready(answer)
        results = getattr(outcome, "loss_fn_outputs", ())
        learned.trained.logprobs += [result["logprobs"].to_numpy() for result in results]
    run.recorder.log_trained(batch.step, learned.trained, learned.reference)
    return learned


async def current_policy(run: Run, step: int) -> Policy:
    """A policy over a fresh snapshot of the weights: sampling from an older one would be silently off-policy."""
    sampler = await run.backend.sync_weights()
    return Policy(sampler, run.renderer, run.executor, run.reward, run.backend.context, step)


async def reference_logprobs(run: Run, examples: Sequence[Example]) -> list[list[float]]:
    """The base model's log-probabilities of each example's completion tokens."""
    from tinker import types

    assert run.reference is not None
    requests = []
    for example in examples:
        tokens = [
            *example.datum.model_input.to_ints(),
            int(example.datum.loss_fn_inputs["target_tokens"].to_numpy()[-1]),
        ]
        requests.append(run.reference.compute_logprobs(types.ModelInput.from_ints(tokens)))
    known = [await ready(request) for request in requests]
    return [list(logprobs[example.start + 1 :]) for example, logprobs in zip(examples, known, strict=True)]


def adam_params(config: Config) -> tinker.types.AdamParams:
    """Adam's settings: no weight decay, no gradient clipping."""
    from tinker import types

    return types.AdamParams(learning_rate=config.learning_rate, beta1=config.beta1, beta2=config.beta2, eps=config.eps)


async def run_evaluation(run: Run, policy: Policy, step: int = -1, *, full: bool) -> dict[str, Any]:
    """Evaluate on the held-out splits after `step` (−1: before training): greedily, and (full) with samples for Pass@1 and Pass@k.

    What an earlier process of this run has finished is not done again.
    """
    started = time.perf_counter()
    samples = run.config.eval_samples if full else 0
    known = run.recorder.evaluated(step, samples)
    if known is not None:
        return known
    prompts = sum(len(policy.prompt_tokens(problem)) for problems in run.test_splits.values() for problem in problems)
    count = sum(map(len, run.test_splits.values())) * (1 + samples)
    worst = Tokens(prefill=prompts * (1 + samples), sample=count * run.sampling.max_tokens)
    run.recorder.decided("evaluate", step=step, samples=samples, policy_step=policy.step, worst=asdict(worst))
    with run.recorder.evaluating(run.test_splits, samples):
        results = await evaluate(
            policy,
            run.test_splits,
            samples=samples,
            sampling=run.sampling,
            seed=run.config.seed,
            slot=run.recorder.evaluation_slot(step),
        )
    metrics = dict(evaluation_metrics(results)) | {
        "tokens/eval_prefill": prompts * (1 + samples),
        "time/eval": time.perf_counter() - started,
        "tokens/eval": sum(result.completion_tokens for result in results.values()),
    }
    run.recorder.evaluation_done(step, samples, metrics)
    return metrics


def evaluates_after(config: Config, completed_steps: int) -> bool:
    """True when the settings ask for an evaluation after so many steps."""
    if completed_steps == config.max_steps:
        return config.eval_every >= 0
    return config.eval_every > 0 and completed_steps % config.eval_every == 0
