"""A remote service's latencies over the embedded engine: the same answers, each handed over when a real service would.

Sampling takes a long-tailed time per completion, drawn from the request's seed. Training takes a time per request, one after the
other. Programs wait for one of a fixed number of sandboxes, each for a time of its own. Delays count from the submission, so that the engine's
own computing hides in them as long as it is shorter.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any

from tinker.lib.public_interfaces.api_future import AwaitableConcurrentFuture

from code_rl.engine.backends import Backend
from code_rl.grading.sandbox.executor import Execution, Executor, Job, OnDemand
from code_rl.policy.sample import derive_seed


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds. Sampling is log-normal: `sample_s` is its median, `spread` its sigma, cut at three of them."""

    sample_s: float = 0.5
    spread: float = 0.4
    train_s: float = 0.5
    score_s: float = 0.08
    sandboxes: int = 8

    def completion_s(self, seed: int, index: int) -> float:
        """How long one completion takes to be sampled; a function of its seed."""
        uniform = (derive_seed(seed, "latency", index) + 0.5) / 2**31
        deviate = min(max(NormalDist().inv_cdf(uniform), -3.0), 3.0)
        return self.sample_s * math.exp(self.spread * deviate)


@dataclass(slots=True)
class Spent:
    """The seconds of the stages, as they happened; not while `evaluating`, which nothing delays."""

    evaluating: bool = False

    sample: list[float] = field(default_factory=list)
    train: list[float] = field(default_factory=list)
    score: list[float] = field(default_factory=list)


class SlowSampler:
    """A sampling client that hands a completion over after its time; evaluations are not delayed."""

    def __init__(self, inner: Any, latency: Latency, spent: Spent, threads: ThreadPoolExecutor) -> None:
        self._inner, self._latency, self._spent, self._threads = inner, latency, spent, threads

    def sample(self, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        answer = self._inner.sample(prompt, num_samples, sampling_params)
        if num_samples > 1 or not sampling_params.temperature:  # an evaluation's
            return AwaitableConcurrentFuture(self._threads.submit(_when_due, answer, 0.0))
        started = time.monotonic()

        def drawn() -> Any:
            found = _when_due(answer, started + self._latency.completion_s(sampling_params.seed, 0))
            self._spent.sample.append(time.monotonic() - started)
            return found

        return AwaitableConcurrentFuture(self._threads.submit(drawn))


class SlowTrainer:
    """A training client that takes requests one after the other; `spent` notes how long each batch kept it busy."""

    def __init__(self, inner: Any, latency: Latency, spent: Spent, threads: ThreadPoolExecutor) -> None:
        self._inner, self._latency, self._spent, self._threads = inner, latency, spent, threads
        self._lock = threading.Lock()
        self._free = 0.0

    def forward_backward(self, data: Sequence[Any], loss_fn: str, loss_fn_config: Any = None) -> Any:
        busy = self._latency.train_s
        with self._lock:
            self._free = due = max(self._free, time.monotonic()) + busy
            self._spent.train.append(busy)
            answer = self._inner.forward_backward(data, loss_fn, loss_fn_config)
        return AwaitableConcurrentFuture(self._threads.submit(_when_due, answer, due))

    def optim_step(self, params: Any) -> Any:
        return self._after(self._inner.optim_step(params))

    def save_weights_and_get_sampling_client(self) -> Any:
        answer = self._inner.save_weights_and_get_sampling_client()
        with self._lock:
            due = self._free
        made = self._threads.submit(
            lambda: SlowSampler(_when_due(answer, due), self._latency, self._spent, self._threads)
        )
        return AwaitableConcurrentFuture(made)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _after(self, answer: Any) -> Any:
        with self._lock:
            due = self._free
        return AwaitableConcurrentFuture(self._threads.submit(_when_due, answer, due))


class SlowExecutor(OnDemand):
    """An executor with `sandboxes` places, each taken for `score_s` a program at least."""

    def __init__(self, inner: Executor, latency: Latency, spent: Spent) -> None:
        import asyncio

        super().__init__(lambda: inner)
        self._inner, self._latency, self._spent = inner, latency, spent
        self._places = asyncio.Semaphore(latency.sandboxes)

    @property
    def description(self) -> str:
        return f"{self._inner.description}, {self._latency.sandboxes} places of {self._latency.score_s:g} s a program"

    async def run(self, job: Job) -> AsyncIterator[Execution]:
        import asyncio

        if self._spent.evaluating:
            async for execution in self._inner.run(job):
                yield execution
            return
        async with self._places:
            started = time.monotonic()
            executions = [execution async for execution in self._inner.run(job)]
            await asyncio.sleep(max(0.0, started + self._latency.score_s - time.monotonic()))
            self._spent.score.append(time.monotonic() - started)
        for execution in executions:
            yield execution

    async def aclose(self) -> None:
        await self._inner.aclose()


def remote(backend: Backend, latency: Latency, spent: Spent) -> Backend:
    """The backend as a remote service with these latencies."""
    threads = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="latency")
    return replace(backend, trainer=SlowTrainer(backend.trainer, latency, spent, threads))  # type: ignore[arg-type]


def _when_due(answer: Any, due: float) -> Any:
    result = answer.result()
    time.sleep(max(0.0, due - time.monotonic()))
    return result
