"""Stage `difficulty`: how often a named model solves each problem, measured offline with the rollouts and the reward of training."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING

from code_rl.data.preparation.bench import Bench, Survivor
from code_rl.data.preparation.ledger import BROKEN_CHECKER, SANDBOX_ERROR, Decision, OnItem, drop
from code_rl.data.preparation.settings import PrepareConfig
from code_rl.evaluation.figures import wilson
from code_rl.grading.problem import Problem
from code_rl.grading.verdict import VerdictKind

if TYPE_CHECKING:
    from code_rl.evaluation.completers import Weights

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
    modules = ("difficulty", "code_rl.grading")
    with bench.deciding("difficulty", modules, survivors, on_item, lambda s: (s.entry.digest, s.notes)) as decisions:
        if decisions.waiting:
            from code_rl.evaluation.completers import connect_weights
            from code_rl.evaluation.settings import EvalConfig

            same = {name: getattr(bench.config, name) for name in ("backend", "seed", "max_tokens", "temperature")}
            model = EvalConfig(model=bench.config.model_name, **same)
            async with aclosing(await connect_weights(model, bench.work / "model", bench.executor())) as weights:
                await decisions.at_once(lambda s: _measured(bench.load(s), bench.config, weights), PROMPTS_IN_FLIGHT)
        return decisions.made


async def _measured(problem: Problem, config: PrepareConfig, weights: Weights) -> Decision:
    """One problem's rate; its draws depend on seed, prompt and weights alone."""
    from code_rl.policy.sample import derive_seed

    seed = derive_seed(config.seed, "difficulty", problem.id)
    group = await weights.policy.roll_out(problem, config.samples, weights.sampling, seed)
    verdicts = [trajectory.verdict for trajectory in group.trajectories]
    if any(verdict.kind is VerdictKind.CHECKER_ERROR for verdict in verdicts):
        return drop(BROKEN_CHECKER, "the checker fails on its own reference")
    lost = sum(verdict.undecided for verdict in verdicts)
    if lost:
        return drop(SANDBOX_ERROR, f"{lost} samples got no verdict")
    passed = sum(verdict.correct for verdict in verdicts)
    return judge_rate(passed, len(verdicts), str(config.model_name), config.solved)


def check_model(config: PrepareConfig) -> None:
    """Refuse a model or back end that cannot be had, before anything runs. Raises ConfigError."""
    from code_rl.engine.connect import preflight
    from code_rl.training.config import make_config

    settings = {"model_name": config.model_name, "backend": config.backend, "seed": config.seed}
    asyncio.run(preflight(make_config(settings)))
