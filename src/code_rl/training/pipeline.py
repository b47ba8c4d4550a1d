"""Batches: their problems, the weights that they are sampled from, and the overlap of stages.

Batch n is sampled with the weights after max(0, n − K) training steps, K = `max_steps_off_policy`.
With K = 0 its sampling begins when batch n − 1 has been trained on. With K above 0 it begins K
steps earlier, so up to K batches are sampled and scored while one trains. From step K on, every
batch is K steps stale. Timing decides how long a step takes, never its content.

Every completion and verdict is kept on disk until no checkpoint needs it. A checkpoint after step s
becomes valid when the batches up to s + K − 1 are complete on disk: the weights that they were
sampled from no longer exist. So a resumed run trains on the same groups.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from code_rl.engine import ready
from code_rl.evaluation import evaluate, evaluation_metrics
from code_rl.policy import Group, Policy, Sampling
from code_rl.training.algorithm.datums import Example
from code_rl.training.algorithm.metrics import step_metrics
from code_rl.training.budget import Tokens
from code_rl.training.objective import ScoredGroup, TrainedBatch
from code_rl.training.reward_errors import canary_metrics, reward_metrics, second_judgment
from code_rl.training.run import Run, unaffordable, worst_batch, worst_evaluation
from code_rl.training.runs.directory import read_metrics
from code_rl.util.concurrency import BackgroundTasks, cancel_all, gather_tasks

if TYPE_CHECKING:
    import tinker

    from code_rl.training.problem_sampler import SampledProblem

logger = logging.getLogger("code_rl")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Scored groups and the examples made from them; one request computes their gradient.

    With a KL term `divergence` is the mean of log q − log p_ref over the optimizer step.
    """

    groups: Sequence[ScoredGroup]
    examples: Sequence[Example]
    divergence: float | None = None

    @property
    def datums(self) -> list[tinker.types.Datum]:
        """The datums of the examples, in their order."""
        return [example.datum for example in self.examples]


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """A submitted optimizer step: its micro-batches, each with the future of its gradient, and the
    future of Adam's step.

    A future is None if there is no example to train on.
    """

    gradients: Sequence[tuple[MicroBatch, Any]]
    adam: Any


async def answered(steps: Sequence[OptimizerStep]) -> TrainedBatch:
    """Wait for submitted optimizer steps, in order, and return the trained batch, with groups,
    examples and logprobs in the order of the micro-batches. Raises what the back end raises."""
    futures = [
        future
        for step in steps
        for future in [*(gradient for _, gradient in step.gradients), step.adam]
    ]
    answers = [await _answer(future) for future in futures if future is not None]
    micro_batches = [each for step in steps for each, _ in step.gradients]
    return TrainedBatch(
        groups=[group for each in micro_batches for group in each.groups],
        examples=[example for each in micro_batches for example in each.examples],
        divergences=[gap for step in steps if (gap := step.gradients[0][0].divergence) is not None],
        logprobs=[
            output["logprobs"].to_numpy() for _, outputs in answers for output in outputs or ()
        ],
        gradient_norms=[
            float(metrics[name])
            for metrics, outputs in answers
            if outputs is None
            for name in metrics
            if name.partition(":")[0] == "grad_norm"
        ],
    )


async def _answer(future: Any) -> tuple[dict[str, Any], Sequence[Any] | None]:
    """Wait for a request; return its metrics and, for a gradient, its outputs by datum (None for
    Adam's step). The answer is written to `logs.log`."""
    answer = await ready(future)
    metrics, outputs = (
        dict(getattr(answer, "metrics", None) or {}),
        getattr(answer, "loss_fn_outputs", None),
    )
    asked = "optim_step" if outputs is None else f"forward_backward of {len(outputs)} datums"
    logger.info("the back end answered %s: %s", asked, metrics)
    return metrics, outputs


@dataclass(slots=True)
class Batch:
    """One step's rollouts in progress. Each of `slots` gives the groups that it replaced, then its
    final one; `judged` is when the last slot was done.

    `metrics` are the metrics known when the batch began. `canaries` are impossible problems, kept
    apart from the slots.
    """

    step: int
    slots: Sequence[asyncio.Task[list[Group]]]
    canaries: Sequence[asyncio.Task[Group]]
    metrics: Mapping[str, float]
    started: float = field(default_factory=time.perf_counter)
    judged: float = 0.0

    async def share(self, number: int, shares: int) -> list[Group]:
        """Wait for share `number` (from 0) of `shares` equal shares of the slots, whose number is a
        multiple of `shares`. Return its groups in slot order, in whatever order they were judged.
        Raises the first failure of a slot; the others go on."""
        size = len(self.slots) // shares
        return list(
            itertools.chain(*await gather_tasks(self.slots[number * size : (number + 1) * size]))
        )

    def times(self, asked_for: float) -> dict[str, float]:
        """Return the seconds per stage (`time/…`) of a step that ends now; the loop began to wait
        for its batch at `asked_for` (`time.perf_counter`). All slots must be done. Judging begins
        as completions arrive."""
        ended = time.perf_counter()
        sample = max(group.sample_s for slot in self.slots for group in slot.result())
        return {
            "time/sample": sample,
            "time/score": max(self.judged - self.started - sample, 0.0),
            "time/train": ended - max(self.judged, asked_for),
            "time/wait": max(self.judged - asked_for, 0.0),
            "time/step": ended - asked_for,
        }


class Batches:
    """Begins batches when their weights are known, and evaluates, logs and saves in the background
    where it can.

    Use it as an async context manager. Leaving it waits for the background work, or cancels all
    work in progress if an exception was raised.
    """

    def __init__(self, run: Run) -> None:
        """Prepare the batches from `run.first_step` on; earlier steps are read from
        `metrics.jsonl`. Nothing is sampled yet."""
        self._run = run
        logged = read_metrics(run.recorder.log_path)
        self._logged = [record for record in logged if 0 <= record["step"] < run.first_step]
        self._batches: dict[int, Batch] = {}
        self._next, self._retries = run.first_step, run.executor.retries
        self._side = BackgroundTasks(waits=run.config.max_steps_off_policy == 0)
        self._started = time.perf_counter()

    async def __aenter__(self) -> Batches:
        """Open the background work."""
        await self._side.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> None:
        """Finish the background work, or cancel it if an exception was raised; then cancel every
        batch in progress. The first error is raised."""
        try:
            await self._side.__aexit__(*raised)
        finally:
            for batch in self._batches.values():
                await cancel_all([*batch.slots, *batch.canaries])

    def next(self, policy: Policy) -> Batch:
        """Begin every batch that waited for the weights of `policy`, and return the next batch to
        train on, that of step `policy.step`. The loop calls it once per step, in order. Batches
        that could exceed a cap are not begun."""
        run = self._run
        self._started = time.perf_counter()
        self._batches.pop(policy.step - 1, None)
        while self._next <= policy.step + run.config.max_steps_off_policy and run.has_step(
            self._next
        ):
            if unaffordable(run, self._next) is not None:
                break
            if run.budget.capped:
                run.budget.reserve(f"batch {self._next}", worst_batch(run, self._next))
            self._batches[self._next] = self._begin_batch(self._next, policy)
            self._next += 1
        return self._batches[policy.step]

    async def finish(self, batch: Batch, trained: TrainedBatch, policy: Policy) -> None:
        """Log a trained step, then evaluate and save if due. `policy` has the weights after the
        step, and no later step may be submitted to the trainer before this returns. Raises the
        first failure of a canary or of a job.

        With K above 0 the evaluation runs while later steps train; log lines keep their order.
        """
        canaries = await gather_tasks(batch.canaries)
        run = self._run
        again = await second_judgment(trained.groups, run.executor, run.config.reward_timeout)
        run.problem_sampler.observe(batch.step, trained.groups)
        await self._log(batch.step, self._measure(batch, trained, canaries) | again, policy)
        every = run.config.save_every
        if every and (not run.goes_on(policy.step) or policy.step % every == 0):
            await self._save(policy.step)

    def _measure(
        self, batch: Batch, trained: TrainedBatch, canaries: Sequence[Group]
    ) -> dict[str, Any]:
        """Return the metrics of a trained step, once: its tokens are charged to the budget, and
        later schedules and rates read the metrics."""
        run = self._run
        metrics = {
            **step_metrics(batch.step, trained, run.objective),
            **batch.metrics,
            **batch.times(self._started),
            **(canary_metrics(canaries, run.objective) if run.config.canary else {}),
        }
        retries, self._retries = self._retries, run.executor.retries
        metrics["sandbox/retries"] = self._retries - retries
        if run.backend.vllm:
            metrics |= run.backend.vllm.measured()
        metrics |= reward_metrics(trained.groups, [*self._logged, metrics])
        self._logged.append(metrics)
        run.budget.settle(f"batch {batch.step}", Tokens.of(metrics))
        return metrics

    def _evaluation_after(self, done: int) -> tuple[bool, bool]:
        """Return two flags: an evaluation is due after `done` steps, and it is a full one, as after
        `max_steps` steps or at the end of a run without that limit. Set `run.stop` first, with a
        notice, if the next step could exceed a cap."""
        run = self._run
        every = run.config.eval_every
        due = every > 0 and done % every == 0
        if done not in self._batches and run.goes_on(done):
            # The next batch would not be started.
            refused = unaffordable(run, self._next, 2 if due else 1)
            if refused is not None:
                run.recorder.console.notice(f"stopping after step {done - 1}: {refused}")
                run.stop.set()
        closing = done == run.config.max_steps or (run.stop.is_set() and run.config.max_steps < 0)
        return due or (closing and every >= 0), closing

    async def _log(self, step: int, metrics: Mapping[str, Any], policy: Policy) -> None:
        """Log a step, with its evaluation by `policy` if that is due, behind the lines of earlier
        steps."""
        run, name = self._run, f"evaluation {step}"
        due, full = self._evaluation_after(policy.step)
        if due:
            if run.budget.capped:
                run.budget.reserve(name, worst_evaluation(run))
            await self._side.rest()  # one evaluation at a time

        async def log() -> None:
            """Evaluate if that is due, and write the step's line and the page."""
            evaluated = await evaluate_run(run, policy, step, full=full) if due else {}
            run.budget.settle(name, Tokens.of(evaluated))
            run.recorder.log_step(step, {**metrics, **evaluated})
            await run.recorder.write_page()

        await self._side.do(log)

    async def _save(self, step: int) -> None:
        """Request the current weights at once, and record the checkpoint after `step` steps when
        everything else that a resumed run needs is on disk: earlier log lines, and the batches that
        were sampled from weights that are gone by then."""
        run = self._run
        saving = await run.recorder.begin_checkpoint(run.backend.trainer, step)
        behind = step + run.config.max_steps_off_policy
        ahead = [batch for batch in self._batches.values() if step <= batch.step < behind]

        async def commit() -> None:
            """Wait for the batches ahead, and record the checkpoint."""
            for batch in ahead:
                await gather_tasks([*batch.slots, *batch.canaries])
            offset = step * run.shape.prompts
            await run.recorder.commit_checkpoint(
                saving, step, offset, [batch.step for batch in ahead]
            )

        await self._side.do(commit)

    def _begin_batch(self, step: int, policy: Policy) -> Batch:
        """Start the tasks of a step's groups and canaries. Its token limit and its problems follow
        from the settings and the steps logged so far. Raises DataError if no prompt fits."""
        run, config = self._run, self._run.config
        stage = run.schedule.stage(step, self._logged)
        request_per: Literal["group", "completion"] = (
            "completion" if config.max_steps_off_policy else "group"
        )
        sampling = replace(
            run.eval_sampling,
            max_tokens=run.schedule.stages[stage].max_tokens,
            request_per=request_per,
        )
        chosen = run.problem_sampler.batch(step)
        run.recorder.begins(step, chosen)
        slots = [
            asyncio.create_task(self._fill((step, slot), policy, sampling))
            for slot in range(len(chosen))
        ]
        canaries = [
            asyncio.create_task(self._canary(step, number, each, policy, sampling))
            for number, each in enumerate(run.problem_sampler.canaries(step))
        ]
        replaced = sum(each.replaced is not None for each in chosen)
        metrics = {
            "max_tokens": sampling.max_tokens,
            "stage": stage,
            **run.problem_sampler.measured(step),
        }
        return Batch(
            step, slots, canaries, metrics | ({"prompts_replaced": replaced} if replaced else {})
        )

    async def _fill(self, at: tuple[int, int], policy: Policy, sampling: Sampling) -> list[Group]:
        """Roll out the slot `at` = (step, slot), and return its groups, the final one last. While
        the group is all right or all wrong, roll the slot out again with another problem, up to
        `dynamic_sampling` times.

        Samples and verdicts of an earlier process are reused; new ones are kept on disk.
        """
        run, inflight = self._run, self._run.recorder.inflight
        groups: list[Group] = []
        for attempt in range(run.config.dynamic_sampling + 1):
            chosen = run.problem_sampler.at(*at, attempt)
            log = inflight.group_log(at[0], f"{at[1]}.{attempt}")
            group = await policy.roll_out(
                chosen.problem, run.shape.samples_per_prompt, sampling, chosen.seed, log
            )
            groups.append(replace(group, slot=at[1], attempt=attempt))
            if not group.solved_alike:
                break
        self._batches[at[0]].judged = time.perf_counter()
        return groups

    async def _canary(
        self, step: int, number: int, chosen: SampledProblem, policy: Policy, sampling: Sampling
    ) -> Group:
        """Roll out the impossible problem `number` of a step with seeds of its own; its log is kept
        on disk like the others."""
        run = self._run
        log = run.recorder.inflight.group_log(step, f"canary.{number}")
        count = run.shape.samples_per_prompt
        return await policy.roll_out(chosen.problem, count, sampling, chosen.seed, log)


async def evaluate_run(run: Run, policy: Policy, step: int = -1, *, full: bool) -> dict[str, Any]:
    """Evaluate on the held-out splits after `step` (−1: before training): greedily, and with `full`
    also with `eval_samples` samples per problem for Pass@1 and Pass@k. Return the `eval/…` metrics,
    their tokens and seconds; nothing is logged here.

    Samples and verdicts of an earlier process of this run are reused.
    """
    started = time.perf_counter()
    samples = run.config.eval_samples if full else 0
    count = sum(map(len, run.test_splits.values()))
    with run.recorder.console.evaluating(count, samples) as judged:
        results = await evaluate(
            policy,
            run.test_splits,
            samples=samples,
            sampling=run.eval_sampling,
            seed=run.config.seed,
            log=run.recorder.evaluation_log(step),
            on_verdict=judged,
        )
    both = [part for each in results.values() for part in (each.greedy, each.sampled)]
    parts = [part for part in both if part is not None]
    return dict(evaluation_metrics(results)) | {
        "tokens/eval_prefill": sum(part.prompt_tokens for part in parts),
        "time/eval": time.perf_counter() - started,
        "tokens/eval": sum(part.completion_tokens for part in parts),
    }
