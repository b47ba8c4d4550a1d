"""Stage `difficulty`: how often a named model solves each problem, measured offline with the rollouts and the reward of training."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from code_rl.evaluation.figures import wilson
from code_rl.judging.verdict import VerdictKind
from code_rl.preparation.bench import Bench, Survivor
from code_rl.preparation.ledger import BROKEN_CHECKER, SANDBOX_ERROR, Decision, OnItem, drop
from code_rl.preparation.settings import PrepareConfig
from code_rl.problems.problem import Problem

if TYPE_CHECKING:
    from code_rl.config import Config
    from code_rl.rollouts.sample import Policy, Sampling

PROMPTS_IN_FLIGHT = 16


def judge_rate(passed: int, n: int, model: str, solved: str) -> Decision:
    """Keep or drop a problem that a model solved `passed` times out of `n`."""
    low, high = wilson(passed, n)
    shares = {"pass_rate": passed / n, "low": low, "high": high}
    rate = {"model": model, **{name: round(share, 4) for name, share in shares.items()}, "samples": n}
    if solved == "drop" and passed in (0, n):
        reason = "never_solved" if passed == 0 else "always_solved"
        return drop(reason, f"{passed} of {n} samples of {model} pass", difficulty=rate)
    return Decision(keep=True, card={"difficulty": rate})


async def run_difficulty(bench: Bench, survivors: Sequence[Survivor], on_item: OnItem) -> list[Decision]:
    """One decision a survivor."""
    config = bench.config
    modules = ("difficulty", "code_rl.judging")
    with bench.deciding("difficulty", modules, survivors, on_item, lambda s: (s.entry.digest, s.notes)) as decisions:
        if decisions.waiting:
            async with _policy(bench) as (policy, sampling):
                await decisions.at_once(
                    lambda one: _measured(bench.load(one), config, policy, sampling), PROMPTS_IN_FLIGHT
                )
        return decisions.made


async def _measured(problem: Problem, config: PrepareConfig, policy: Policy, sampling: Sampling) -> Decision:
    """One problem's rate; its draws depend on seed, prompt and weights alone."""
    from code_rl.rollouts.sample import derive_seed

    group = await policy.roll_out(problem, config.samples, sampling, derive_seed(config.seed, "difficulty", problem.id))
    verdicts = [trajectory.verdict for trajectory in group.trajectories]
    if any(verdict.kind is VerdictKind.CHECKER_ERROR for verdict in verdicts):
        return drop(BROKEN_CHECKER, "the checker fails on its own reference")
    lost = sum(verdict.undecided for verdict in verdicts)
    if lost:
        return drop(SANDBOX_ERROR, f"{lost} samples got no verdict")
    passed = sum(verdict.correct for verdict in verdicts)
    return judge_rate(passed, len(verdicts), str(config.model_name), config.solved)


def model_settings(config: PrepareConfig) -> Config:
    """The settings of a run that only samples this model. Raises ConfigError for what cannot be had."""
    from code_rl.config import make_config

    return make_config({"model_name": config.model_name, "backend": config.backend, "seed": config.seed})


def check_model(config: PrepareConfig) -> None:
    """Refuse a model or back end that cannot be had, before anything runs. Raises ConfigError."""
    from code_rl.backends.connect import preflight

    asyncio.run(preflight(model_settings(config)))


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
