"""The overlapped schedule: which batch is sampled from which weights, and what is under way at the same time.

Batch n is sampled with the weights behind max(0, n − K) training steps, K = `max_steps_off_policy`. With K = 0 its sampling begins when
batch n − 1 has been trained on. With K above 0 it begins K steps earlier, so that up to K batches are sampled and scored while one
trains. The rule is a function of the settings: timing decides how long a step takes, never what is in it. Staleness is K from step K on.

Every completion and every verdict is kept on disk until no checkpoint needs it. A checkpoint after step s counts only when the batches
up to s + K − 1, sampled from weights that no longer exist, are there too: so a resumed run trains on the same groups.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from code_rl.accounting import worst_batch, worst_evaluation
from code_rl.budget import Tokens
from code_rl.concurrency import abandon, results
from code_rl.config import Config
from code_rl.objective import credit, objective_of
from code_rl.problems.order import ProblemOrder
from code_rl.problems.problem import Problem
from code_rl.rollouts import Group, Policy, Sampling, derive_seed
from code_rl.runs.recorder import read_metrics
from code_rl.schedule import StepFacts

if TYPE_CHECKING:
    from code_rl.loop import Run


class Batch:
    """One step's rollouts, under way: one task per place, which gives its group, after those that it replaced."""

    def __init__(self, step: int, stage: int, max_tokens: int, places: Sequence[asyncio.Task[list[Group]]]) -> None:
        self.step, self.stage, self.max_tokens = step, stage, max_tokens
        self.started = self.scored = time.perf_counter()
        self._places = list(places)
        for place in places:
            place.add_done_callback(self._noted)

    @property
    def size(self) -> int:
        """Places in the batch."""
        return len(self._places)

    async def groups(self, first: int, count: int) -> list[list[Group]]:
        """Wait for `count` places from `first` on; in their order, whichever is scored first."""
        return await results(self._places[first : first + count])

    def _noted(self, _: asyncio.Task[list[Group]]) -> None:
        self.scored = time.perf_counter()

    async def complete(self) -> None:
        """Wait until everything is sampled and scored."""
        await results(self._places)

    async def abandon(self) -> None:
        """Cancel what is not done."""
        await abandon(self._places)


class Pipeline:
    """Starts batches when their weights are known, and carries on the side what need not stop them: evaluating, logging, saving.

    Use it as an async context manager: leaving it waits for what is on the side, or (on an error) cancels all that is under way.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._objective = objective_of(run.config)
        self._refills = ProblemOrder(run.train_problems.problems, derive_seed(run.config.seed, "refill"))
        self._facts = known_facts(run.recorder.log_path, run.first_step)
        self._batches: dict[int, Batch] = {}
        self._next = run.first_step
        self._side = SideWork(waits=run.config.max_steps_off_policy == 0)
        self._evaluation: asyncio.Task[dict[str, Any]] | None = None

    async def __aenter__(self) -> Pipeline:
        self._side.interrupts(asyncio.current_task())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self._side.finish()
            else:
                self._side.explain(kind)
        finally:
            await self._side.abandon()
            if self._evaluation is not None:
                await abandon([self._evaluation])
            for batch in self._batches.values():
                await batch.abandon()

    def next_batch(self, policy: Policy) -> Batch:
        """Begin every batch that waited for the weights of `policy`, and return the one to train on with them."""
        config = self._run.config
        self._batches.pop(policy.step - 1, None)
        while self._next <= policy.step + config.max_steps_off_policy and self._next != config.max_steps:
            if self._unaffordable() is not None:
                break
            if self._run.budget.capped:
                self._run.budget.reserve(f"batch {self._next}", worst_batch(self._run, self._next))
            self._batches[self._next] = self._begin(self._next, policy)
            self._next += 1
        return self._batches[policy.step]

    async def log(
        self, step: int, metrics: dict[str, Any], evaluation: Coroutine[Any, Any, dict[str, Any]] | None
    ) -> None:
        """Log a trained step; with K above 0 its evaluation runs while later steps train, and lines keep their order."""
        run, name = self._run, f"evaluation {step}"
        self._facts.append(StepFacts.of(metrics))
        run.budget.settle(f"batch {step}", Tokens.of(metrics))
        if evaluation is not None and run.budget.capped:
            run.budget.reserve(name, worst_evaluation(run, full=True))
        task = None
        if evaluation is not None:
            if self._evaluation is not None:
                await asyncio.wait([self._evaluation])
            task = self._evaluation = asyncio.create_task(evaluation)

        async def write() -> None:
            evaluated = await task if task is not None else {}
            run.budget.settle(name, Tokens.of(evaluated))
            run.recorder.log_step(step, metrics | evaluated)

        await self._side.do(write)
        self._stop_at_cap(step + 1)

    def _stop_at_cap(self, step: int) -> None:
        """Ask the loop to stop when the batch that it would take next is not under way and could pass a cap."""
        run = self._run
        if step in self._batches or step == run.config.max_steps or run.stop.is_set():
            return
        refused = self._unaffordable()
        if refused is not None:
            run.recorder.console.notice(f"stopping after step {step - 1}: {refused}")
            run.stop.set()

    def _unaffordable(self) -> str | None:
        """Why the next batch, with the evaluation that may follow it, could pass a cap; None when it cannot."""
        run = self._run
        if not run.budget.capped:
            return None
        follows = run.config.eval_every >= 0
        worst = worst_batch(run, self._next)
        return run.budget.refusal(worst + worst_evaluation(run, full=True) if follows else worst)

    async def save(self, step: int) -> None:
        """Save the weights as they are now; the checkpoint counts once all that a resumed run needs beside them is on disk."""
        run = self._run
        saving = await run.recorder.begin_checkpoint(run.backend.trainer, step)
        needed = [batch for batch in self._batches.values() if batch.step >= step]
        ahead = [batch for batch in needed if batch.step < step + run.config.max_steps_off_policy]

        async def commit() -> None:
            for batch in ahead:
                await batch.complete()
            steps = [batch.step for batch in ahead]
            await run.recorder.commit_checkpoint(saving, step, step * run.shape.prompts, steps)

        await self._side.do(commit)

    def _begin(self, step: int, policy: Policy) -> Batch:
        run, config = self._run, self._run.config
        stage = run.schedule.stage(step, self._facts)
        sampling = Sampling(run.schedule.stages[stage].max_tokens, config.temperature, request_per(config))
        problems = run.train_problems.batch(step * run.shape.prompts, run.shape.prompts)
        seeds = batch_seeds(config.seed, step, len(problems))
        kept_from = run.recorder.inflight.policy_step(step)
        run.recorder.decided(
            "sample",
            step=step,
            policy_step=policy.step if kept_from is None else kept_from,
            stage=stage,
            max_tokens=sampling.max_tokens,
            prompt_tokens=[len(policy.prompt_tokens(problem)) for problem in problems],
            problems=[problem.id for problem in problems],
            seeds=seeds,
        )
        places = [
            asyncio.create_task(self._fill((step, place), problem, seed, policy, sampling))
            for place, (problem, seed) in enumerate(zip(problems, seeds, strict=True))
        ]
        return Batch(step, stage, sampling.max_tokens, places)

    async def _fill(
        self, at: tuple[int, int], problem: Problem, seed: int, policy: Policy, sampling: Sampling
    ) -> list[Group]:
        """Roll out one place: again with another problem, up to `dynamic_sampling` times, while its group has no variance."""
        run, (step, place) = self._run, at
        groups = [await self._group((*at, 0), problem, seed, policy, sampling)]
        for attempt in range(1, run.config.dynamic_sampling + 1):
            if not credit(groups[-1], self._objective).skipped:
                break
            position = (step * run.shape.prompts + place) * run.config.dynamic_sampling + attempt - 1
            (problem,) = self._refills.batch(position, 1)
            seed = derive_seed(run.config.seed, "refill", step, place, attempt)
            run.recorder.decided(
                "refill",
                step=step,
                place=place,
                attempt=attempt,
                problem=problem.id,
                seed=seed,
                max_tokens=sampling.max_tokens,
                prompt_tokens=len(policy.prompt_tokens(problem)),
            )
            groups.append(await self._group((*at, attempt), problem, seed, policy, sampling))
        return groups

    async def _group(
        self, place: tuple[int, int, int], problem: Problem, seed: int, policy: Policy, sampling: Sampling
    ) -> Group:
        """One group; what an earlier process sampled and judged of it is used, what is new is kept on disk."""
        recorder, (step, number, attempt) = self._run.recorder, place
        slot = recorder.inflight.slot(place)
        group = await policy.roll_out(problem, self._run.shape.completions, sampling, seed, slot)
        recorder.decided(
            "scored",
            step=step,
            place=number,
            attempt=attempt,
            problem=problem.id,
            policy_step=group.policy_step,
            verdicts=[completion.score.verdict.kind.value for completion in group.completions],
            rewards=group.rewards_G,
        )
        return group


class SideWork:
    """Jobs that run one after the other, beside the loop or (`waits`) before `do` returns. The first error ends it, and the loop."""

    def __init__(self, *, waits: bool) -> None:
        self._waits = waits
        self._jobs: asyncio.Queue[Callable[[], Awaitable[None]] | None] = asyncio.Queue()
        self._worker: asyncio.Task[None] | None = None
        self._loop_task: asyncio.Task[Any] | None = None
        self._interrupted = self._abandoned = False

    def interrupts(self, task: asyncio.Task[Any] | None) -> None:
        """Cancel this task as soon as a job fails, wherever it waits: a step may take long, and be paid for in vain."""
        self._loop_task = task

    async def do(self, job: Callable[[], Awaitable[None]]) -> None:
        """Run a job, or queue it; raises what an earlier one raised."""
        if self._waits:
            await job()
            return
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())
            self._worker.add_done_callback(self._failed)
        if self._worker.done():
            self._worker.result()
        self._jobs.put_nowait(job)

    async def finish(self) -> None:
        """Wait until all jobs are done; raises what one of them raised."""
        if self._worker is not None:
            self._jobs.put_nowait(None)
            try:
                await self._worker
            except BaseException as error:
                self.explain(type(error))
                raise

    def explain(self, kind: type[BaseException]) -> None:
        """When the loop ends because a job failed, raise what the job raised."""
        if self._interrupted and self._loop_task is not None and self._worker is not None:
            self._interrupted = False
            self._loop_task.uncancel()
            if issubclass(kind, asyncio.CancelledError):
                self._worker.result()

    async def abandon(self) -> None:
        """Cancel what is not done."""
        self._abandoned = True
        if self._worker is not None:
            await abandon([self._worker])

    def _failed(self, worker: asyncio.Task[None]) -> None:
        failed = worker.cancelled() or worker.exception() is not None
        if failed and not self._abandoned and self._loop_task is not None:
            self._interrupted = True
            self._loop_task.cancel()

    async def _work(self) -> None:
        while (job := await self._jobs.get()) is not None:
            await job()


def batch_seeds(seed: int, step: int, prompts: int) -> list[int]:
    """The seed of each place's draw."""
    return [derive_seed(seed, "sample", step, place) for place in range(prompts)]


def decide_batch(order: ProblemOrder, seed: int, step: int, prompts: int) -> tuple[list[str], list[int]]:
    """Ids of the problems of a step's batch, and their seeds: what the journal has of it, and a resumed run must find again."""
    return [problem.id for problem in order.batch(step * prompts, prompts)], batch_seeds(seed, step, prompts)


def request_per(config: Config) -> Literal["group", "completion"]:
    """What one sampling request draws."""
    if config.sample_request == "auto":
        return "completion" if config.max_steps_off_policy else "group"
    return config.sample_request


def known_facts(log_path: Path, first_step: int) -> list[StepFacts]:
    """What the steps before `first_step` showed, from `metrics.jsonl`."""
    return [StepFacts.of(record) for record in read_metrics(log_path) if 0 <= record["step"] < first_step]
