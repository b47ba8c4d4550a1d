"""Delays, exceptions and cancellations in every stage of the overlapped schedule: no hang, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from code_rl.grading.sandbox.executor import Execution, Executor, Job
from code_rl.loop import train
from code_rl.policy.completion_log import INFLIGHT, step_file, steps_in
from code_rl.training import read_metrics
from code_rl.training.assembly import assemble, prepare
from code_rl.training.console import Console
from code_rl.util.concurrency import cancelled_by_service
from code_rl.util.errors import BackendError, CodeRLError, SandboxError
from code_rl.util.files import read_lines
from tests.stand_in import StandIn
from tests.training.pipeline_support import rollouts, small

TIMEOUT_S = 240
STEPS = 3


class Chaos:
    """Decides, from a seed, the event at each call of each stage: nothing, a delay, an error, a cancellation."""

    def __init__(self, seed: int, rate: float) -> None:
        self.random, self.rate, self.struck = random.Random(seed), rate, Counter[str]()

    async def at(self, stage: str) -> None:
        await asyncio.sleep(self.random.choice((0, 0, 0.001, 0.02)))
        if self.random.random() < self.rate:
            kind = self.random.choice(("error", "cancel"))
            self.struck[f"{stage} {kind}"] += 1
            if kind == "cancel":
                raise asyncio.CancelledError
            raise SandboxError(f"{stage} struck") if stage == "score" else BackendError(f"{stage} struck")


class Struck:
    """A trainer's answer, in trouble when it is waited for; like a future, it need not be."""

    def __init__(self, chaos: Chaos, stage: str, answer: Any) -> None:
        self.chaos, self.stage, self.answer = chaos, stage, answer

    def __await__(self) -> Generator[Any, None, Any]:
        yield from self.chaos.at(self.stage).__await__()
        return (yield from self.answer.__await__())


class ChaoticSampler:
    def __init__(self, inner: Any, chaos: Chaos) -> None:
        self.inner, self.chaos = inner, chaos

    async def sample(self, *args: Any, **kwargs: Any) -> Any:
        await self.chaos.at("sample")
        return await self.inner.sample(*args, **kwargs)


class ChaoticTrainer:
    """Applies no optimizer step twice and counts those that it applied."""

    def __init__(self, inner: Any, chaos: Chaos) -> None:
        self.inner, self.chaos = inner, chaos

    def forward_backward(self, *args: Any) -> Any:
        return self._struck("train", self.inner.forward_backward(*args))

    def optim_step(self, *args: Any) -> Any:
        return self._struck("optimize", self.inner.optim_step(*args))

    def save_state(self, *args: Any, **kwargs: Any) -> Any:
        return self._struck("save", self.inner.save_state(*args, **kwargs))

    def save_weights_for_sampler(self, *args: Any, **kwargs: Any) -> Any:
        return self._struck("save", self.inner.save_weights_for_sampler(*args, **kwargs))

    async def save_weights_and_get_sampling_client(self) -> Any:
        await self.chaos.at("sync")
        return ChaoticSampler(await self.inner.save_weights_and_get_sampling_client(), self.chaos)

    def _struck(self, stage: str, answer: Any) -> Struck:
        return Struck(self.chaos, stage, answer)


class ChaoticExecutor(StandIn):
    def __init__(self, inner: Executor, chaos: Chaos) -> None:
        self.inner, self.chaos = inner, chaos

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        await self.chaos.at("score")
        async for execution in self.inner.run(job):
            yield execution

    async def aclose(self) -> None:
        await self.inner.aclose()


async def attempt(given: dict[str, str], chaos: Chaos) -> CodeRLError | None:
    """One process's worth of a run, to its end or to the error that stopped it."""
    config, log_path, resumes = prepare(given)
    async with contextlib.AsyncExitStack() as stack:
        run = await assemble(config, log_path, resumes, Console(STEPS), asyncio.Event(), stack)
        executor = ChaoticExecutor(run.executor, chaos)
        trainer: Any = ChaoticTrainer(run.backend.trainer, chaos)
        backend = replace(run.backend, trainer=trainer)
        before = asyncio.all_tasks()
        try:
            with cancelled_by_service():
                await train(replace(run, executor=executor, backend=backend))
        except CodeRLError as error:
            return error
        finally:
            left = asyncio.all_tasks() - before
            assert not left, f"tasks left behind: {left}"
    return None


def balanced(log_path: Path, finished: bool) -> None:
    """No group is logged twice, and no answer is sampled or kept twice; a finished run has all groups."""
    logged = Counter((group["step"], group["group"], group["attempt"]) for group in rollouts(log_path))
    folder = log_path / INFLIGHT
    kept = [(step, row["key"]) for step in steps_in(folder) for row in read_lines(step_file(folder, step))]
    requests = [(step, key.rpartition(" ")[2]) for step, key in kept if key.startswith("drawn ")]
    for counted in (logged, Counter(kept), Counter(requests)):
        assert set(counted.values()) <= {1}
    steps = [record["step"] for record in read_metrics(log_path)]
    assert steps == sorted(set(steps))
    if finished:
        assert steps == list(range(STEPS))
        assert logged == Counter({(step, place, 0): 1 for step in range(STEPS) for place in range(2)})


def survives(log_path: Path, seed: int) -> Counter[str]:
    """Run into trouble, resume until it is through; returns the strikes."""
    chooser = random.Random(seed)
    given = small(
        log_path, max_steps=STEPS, batch_size=4, group_size=2, save_every=1, max_tokens=64, seed=seed % 7,
        max_steps_off_policy=chooser.choice((0, 1, 1, 2)), num_minibatches=chooser.choice((1, 2)),
    )  # fmt: skip
    struck: Counter[str] = Counter()
    for trial in range(20):
        chaos = Chaos(seed * 1000 + trial, rate=0.1 if trial < 6 else 0.0)
        words = given if trial == 0 or not (log_path / "config.json").exists() else {"log_path": str(log_path)}
        error = asyncio.run(asyncio.wait_for(attempt(words, chaos), TIMEOUT_S))
        struck += chaos.struck
        balanced(log_path, finished=error is None)
        if error is None:
            return struck
        assert str(error)
        assert sum(chaos.struck.values()), f"failed without trouble: {error}"
    raise AssertionError("never finished")


@pytest.mark.long
def test_runs_in_trouble_stop_with_one_clear_error_and_end_whole_when_resumed(tmp_path):
    assert survives(tmp_path / "run", seed=0)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_two_hundred_runs_in_trouble(tmp_path):
    struck: Counter[str] = Counter()
    for seed in range(100, 300):
        struck += survives(tmp_path / str(seed), seed)
    for stage in ("sample", "score", "train", "optimize", "sync", "save"):
        assert struck[f"{stage} error"] > 0, stage
        assert struck[f"{stage} cancel"] > 0, stage
