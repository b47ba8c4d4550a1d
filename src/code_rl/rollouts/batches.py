"""Batches: which problems, from which weights, and what is under way at the same time.

Batch n is sampled with the weights behind max(0, n − K) training steps, K = `max_steps_off_policy`. With K = 0 its sampling begins when
batch n − 1 has been trained on. With K above 0 it begins K steps earlier, so that up to K batches are sampled and scored while one
trains. The rule is a function of the settings: timing decides how long a step takes, never what is in it. Staleness is K from step K on.

Every completion and every verdict is kept on disk until no checkpoint needs it. A checkpoint after step s counts only when the batches
up to s + K − 1, sampled from weights that no longer exist, are there too: so a resumed run trains on the same groups.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from code_rl.algorithm.datums import Example, Floats
from code_rl.algorithm.metrics import stage_times, step_metrics
from code_rl.backends.connect import ready
from code_rl.budget import Tokens, worst_batch, worst_evaluation
from code_rl.concurrency import SideWork, abandon, results
from code_rl.config import Config
from code_rl.evaluation.evaluate import evaluate_run, evaluates_after
from code_rl.objective import Credit, solved_alike
from code_rl.rollouts.choice import Chosen
from code_rl.rollouts.lengths import StepFacts
from code_rl.rollouts.sample import Policy, Sampling
from code_rl.rollouts.trajectory import Group
from code_rl.run import Run
from code_rl.runs.recorder import read_metrics
from code_rl.sandbox.executor import retries_of

logger = logging.getLogger("code_rl")


@dataclass(slots=True)
class Learned:
    """One batch after training: its groups with their credit, the examples made from them, and what the trainer said of those."""

    credited: list[tuple[Group, Credit]] = field(default_factory=list)
    examples: list[Example] = field(default_factory=list)
    submitted: list[Any] = field(default_factory=list)
    logprobs: list[Floats] = field(default_factory=list)
    optimizer: list[Mapping[str, float]] = field(default_factory=list)
    reference: list[list[float]] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)

    async def answered(self) -> None:
        """Wait for what was submitted; `logprobs` then has the trainer's of every example, in order."""
        for request in self.submitted:
            answer = await ready(request)
            outputs = getattr(answer, "loss_fn_outputs", None)
            asked = "optim_step" if outputs is None else f"forward_backward of {len(outputs)} datums"
            logger.info("the back end answered %s: %s", asked, dict(getattr(answer, "metrics", None) or {}))
            if outputs is None:
                self.optimizer.append(dict(getattr(answer, "metrics", None) or {}))
            else:
                self.logprobs += [output["logprobs"].to_numpy() for output in outputs]


class Batch:
    """One step's rollouts, under way: one task per place, which gives its group, after those that it replaced."""

    def __init__(
        self, step: int, stage: int, max_tokens: int, places: Sequence[asyncio.Task[list[Group]]], replaced: int = 0
    ) -> None:
        self.step, self.stage, self.max_tokens, self.replaced = step, stage, max_tokens, replaced
        self.started = self.scored = time.perf_counter()
        self._places = list(places)
        for place in places:
            place.add_done_callback(self._noted)

    @property
    def size(self) -> int:
        """Places in the batch."""
        return len(self._places)

    def minibatches(self, part: int, parts: int, each: int) -> list[range]:
        """The places of each of the `each` minibatches of one of `parts` parts."""
        size = self.size // (parts * each)
        return [range(first * size, (first + 1) * size) for first in range(part * each, (part + 1) * each)]

    async def groups(self, places: range) -> list[list[Group]]:
        """Wait for these places; in their order, whichever is judged first."""
        return await results(self._places[places.start : places.stop])

    def _noted(self, _: asyncio.Task[list[Group]]) -> None:
        self.scored = time.perf_counter()

    async def complete(self) -> None:
        """Wait until everything is sampled and judged."""
        await results(self._places)

    async def abandon(self) -> None:
        """Cancel what is not done."""
        await abandon(self._places)


class Batches:
    """Starts batches when their weights are known, and carries on the side what need not stop them: evaluating, logging, saving.

    Use it as an async context manager: leaving it waits for what is on the side, or (on an error) cancels all that is under way.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._facts = known_facts(run.recorder.log_path, run.first_step)
        self._batches: dict[int, Batch] = {}
        self._next = run.first_step
        self._side = SideWork(waits=run.config.max_steps_off_policy == 0)
        self._evaluation: asyncio.Task[dict[str, Any]] | None = None
        self._started, self._retries = time.perf_counter(), retries_of(run.executor)

    async def __aenter__(self) -> Batches:
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

    def next(self, policy: Policy) -> Batch:
        """Begin every batch that waited for the weights of `policy`, and return the one to train on with them."""
        run = self._run
        self._started = time.perf_counter()
        self._batches.pop(policy.step - 1, None)
        while self._next <= policy.step + run.config.max_steps_off_policy and run.has_step(self._next):
            if self._unaffordable() is not None:
                break
            if run.budget.capped:
                run.budget.reserve(f"batch {self._next}", worst_batch(run, self._next))
            self._batches[self._next] = self._begin(self._next, policy)
            self._next += 1
        return self._batches[policy.step]

    async def finish(self, batch: Batch, learned: Learned, policy: Policy) -> None:
        """Log a trained step, evaluate and save where that is due; `policy` has the weights after it.

        With K above 0 the evaluation runs while later steps train, and lines keep their order.
        """
        run, step = self._run, batch.step
        metrics = {**step_metrics(batch, learned, run.objective), **stage_times(batch, learned.credited, self._started)}
        retries, self._retries = self._retries, retries_of(run.executor)
        metrics["sandbox/retries"] = self._retries - retries
        metrics |= {"prompts_replaced": batch.replaced} if batch.replaced else {}
        self._facts.append(StepFacts.of(metrics))
        run.budget.settle(f"batch {step}", Tokens.of(metrics))
        due = evaluates_after(run.config, policy.step)
        self._stop_at_cap(policy.step, evaluates=due)
        closing = policy.step == run.config.max_steps or (run.stop.is_set() and run.config.max_steps < 0)
        due = due or (closing and run.config.eval_every >= 0)
        await self._log(step, metrics, evaluate_run(run, policy, step, full=closing) if due else None)
        every = run.config.save_every
        if every and (not run.goes_on(policy.step) or policy.step % every == 0):
            await self.save(policy.step)

    async def _log(
        self, step: int, metrics: dict[str, Any], evaluation: Coroutine[Any, Any, dict[str, Any]] | None
    ) -> None:
        run, name = self._run, f"evaluation {step}"
        task = None
        if evaluation is not None:
            if run.budget.capped:
                run.budget.reserve(name, worst_evaluation(run, full=True))
            if self._evaluation is not None:
                await asyncio.wait([self._evaluation])
            task = self._evaluation = asyncio.create_task(evaluation)

        async def write() -> None:
            evaluated = await task if task is not None else {}
            run.budget.settle(name, Tokens.of(evaluated))
            run.recorder.log_step(step, metrics | evaluated)

        await self._side.do(write)

    def _stop_at_cap(self, step: int, *, evaluates: bool) -> None:
        """Ask the loop to stop when the batch that it would take next is not under way and could pass a cap."""
        run = self._run
        if step in self._batches or not run.goes_on(step):
            return
        refused = self._unaffordable(2 if evaluates else 1)
        if refused is not None:
            run.recorder.console.notice(f"stopping after step {step - 1}: {refused}")
            run.stop.set()

    def _unaffordable(self, evaluations: int = 1) -> str | None:
        """Why the next batch, with the evaluations that may go with it, could pass a cap; None when it cannot."""
        run = self._run
        if not run.budget.capped:
            return None
        worst = worst_batch(run, self._next)
        for _ in range(evaluations if run.config.eval_every >= 0 else 0):
            worst += worst_evaluation(run, full=True)
        return run.budget.refusal(worst)

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
        chosen = run.choices.batch(step)
        kept_from = run.recorder.inflight.policy_step(step)
        run.recorder.samples(step, policy.step if kept_from is None else kept_from, stage, sampling.max_tokens, chosen)
        places = [
            asyncio.create_task(self._fill((step, place), each, policy, sampling)) for place, each in enumerate(chosen)
        ]
        replaced = sum(each.instead_of is not None for each in chosen)
        return Batch(step, stage, sampling.max_tokens, places, replaced)

    async def _fill(self, at: tuple[int, int], chosen: Chosen, policy: Policy, sampling: Sampling) -> list[Group]:
        """Roll out one place: again with another problem, up to `dynamic_sampling` times, while all are right or all wrong."""
        run = self._run
        groups = [await self._group((*at, 0), chosen, policy, sampling)]
        for attempt in range(1, run.config.dynamic_sampling + 1):
            if not solved_alike(groups[-1]):
                break
            chosen = run.choices.refill(*at, attempt)
            run.recorder.refills(*at, attempt, sampling.max_tokens, chosen)
            groups.append(await self._group((*at, attempt), chosen, policy, sampling))
        return groups

    async def _group(self, place: tuple[int, int, int], chosen: Chosen, policy: Policy, sampling: Sampling) -> Group:
        """One group; what an earlier process sampled and judged of it is used, what is new is kept on disk."""
        recorder = self._run.recorder
        slot = recorder.inflight.slot(place)
        group = await policy.roll_out(chosen.problem, self._run.shape.completions, sampling, chosen.seed, slot)
        recorder.judged(place, group)
        return group


def request_per(config: Config) -> Literal["group", "completion"]:
    """What one sampling request draws."""
    if config.sample_request == "auto":
        return "completion" if config.max_steps_off_policy else "group"
    return config.sample_request


def known_facts(log_path: Path, first_step: int) -> list[StepFacts]:
    """What the steps before `first_step` showed, from `metrics.jsonl`."""
    return [StepFacts.of(record) for record in read_metrics(log_path) if 0 <= record["step"] < first_step]
