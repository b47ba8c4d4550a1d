"""Stage `difficulty`: how often a named model solves each problem, measured offline with the rollouts and the reward of training."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from typing import TYPE_CHECKING

from code_rl.evaluation.figures import wilson
from code_rl.preparation.bench import KEEP, Bench, ByteBudget, Decision, Ledger, OnItem, Survivor, content_key, drop
from code_rl.preparation.settings import PrepareConfig
from code_rl.preparation.verify import BROKEN_CHECKER
from code_rl.reward.verdict import VerdictKind

if TYPE_CHECKING:
    from code_rl.config import Config
    from code_rl.rollouts.sample import Policy, Sampling

PROMPTS_IN_FLIGHT = 16


def judge_rate(passed: int, n: int, model: str, solved: str) -> Decision:
    """Keep or drop a problem that a model solved `passed` times out of `n`."""
    low, high = wilson(passed, n)
    rate = {
        "model": model,
        "pass_rate": round(passed / n, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "samples": n,
    }
    if solved == "drop" and passed in (0, n):
        reason = "never_solved" if passed == 0 else "always_solved"
        return drop(reason, f"{passed} of {n} samples of {model} pass", difficulty=rate)
    return Decision(keep=True, card={"difficulty": rate})


async def run_difficulty(bench: Bench, survivors: Sequence[Survivor], on_item: OnItem) -> list[Decision]:
    """One decision a survivor; all are kept where no model is named."""
    config = bench.config
    if config.model_name is None:
        return [KEEP] * len(survivors)
    settings = bench.settings("difficulty", "difficulty", "code_rl.reward")
    keys = [content_key(settings, survivor.entry.digest, survivor.notes) for survivor in survivors]
    with bench.ledger("difficulty", keys) as ledger:
        missing = [index for index, key in enumerate(keys) if ledger.get(key) is None]
        found: dict[int, Decision] = {}
        if missing:
            async with _policy(bench) as (policy, sampling):
                run = _Sampling(bench, survivors, keys, ledger, found, on_item)
                async with asyncio.TaskGroup() as group:
                    queue = iter(missing)
                    for _ in range(min(PROMPTS_IN_FLIGHT, len(missing))):
                        group.create_task(run.work(policy, sampling, queue))
        return [ledger.get(key) or found[index] for index, key in enumerate(keys)]


class _Sampling:
    """Several problems at once, each one's draws depending on seed, prompt and weights alone."""

    def __init__(
        self,
        bench: Bench,
        survivors: Sequence[Survivor],
        keys: list[str],
        ledger: Ledger,
        found: dict[int, Decision],
        on_item: OnItem,
    ) -> None:
        self._bench, self._survivors, self._keys, self._ledger = bench, survivors, keys, ledger
        self._found, self._on_item = found, on_item
        self._budget = ByteBudget()

    async def work(self, policy: Policy, sampling: Sampling, queue: Iterator[int]) -> None:
        """Take problems from the queue until it is empty."""
        for index in queue:
            async with self._budget.take(self._survivors[index].entry.length):
                await self._one(policy, sampling, index)

    async def _one(self, policy: Policy, sampling: Sampling, index: int) -> None:
        from code_rl.rollouts.sample import derive_seed

        config = self._bench.config
        problem = self._bench.load(self._survivors[index])
        seed = derive_seed(config.seed, "difficulty", problem.id)
        group = await policy.roll_out(problem, config.samples, sampling, seed)
        verdicts = [trajectory.verdict for trajectory in group.trajectories]
        judged = [verdict for verdict in verdicts if not verdict.ours]
        if any(verdict.kind is VerdictKind.CHECKER_ERROR for verdict in verdicts):
            decision = drop(BROKEN_CHECKER, "the checker fails on its own reference")
            self._ledger.put(self._keys[index], decision)
        elif len(judged) < len(verdicts):
            decision = drop("sandbox_error", f"{len(verdicts) - len(judged)} samples got no verdict")
        else:
            passed = sum(verdict.correct for verdict in judged)
            decision = judge_rate(passed, len(judged), str(config.model_name), config.solved)
            self._ledger.put(self._keys[index], decision)
        self._found[index] = decision
        self._on_item()


def model_settings(config: PrepareConfig) -> Config:
    """The settings of a run that only samples this model. Raises ConfigError for what cannot be had."""
    from code_rl.config import make_config

    return make_config({"model_name": config.model_name, "backend": config.backend, "seed": config.seed})


def check_model(config: PrepareConfig) -> None:
    """Refuse a model or back end that cannot be had, before anything runs. Raises ConfigError."""
    from code_rl.backends.connect import preflight

    asyncio.run(_ask(preflight(model_settings(config))))


async def _ask(question: Awaitable[object]) -> None:
    await question


@contextlib.asynccontextmanager
async def _policy(bench: Bench) -> AsyncIterator[tuple[Policy, Sampling]]:
    """The named model as a policy that samples and scores as in training."""
    from code_rl.backends.connect import connect
    from code_rl.renderers import get_renderer
    from code_rl.rollouts.sample import Policy, Sampling

    config = bench.config
    backend = await connect(model_settings(config), bench.work / "model")
    try:
        sampler = await backend.base_sampler()
        policy = Policy(sampler, get_renderer("auto", backend.tokenizer), bench.executor(), backend.context)
        yield policy, Sampling(max_tokens=config.max_tokens, temperature=config.temperature)
    finally:
        backend.close()
