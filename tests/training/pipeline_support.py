"""Small real runs, and the sequential loop written out as the reference that `max_steps_off_policy=0` must reproduce."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from code_rl import compute_advantages, make_datum, should_skip
from code_rl.policy import derive_seed
from code_rl.training import read_metrics
from code_rl.training.assembly import assemble
from code_rl.training.config import make_config
from code_rl.training.console import Console
from code_rl.util.files import read_lines

SMALL = {
    "backend": "embedded",
    "executor": "embedded",
    "threads": "1",
    "batch_size": "16",
    "group_size": "4",
    "eval_limit": "4",
    "eval_samples": "2",
    "max_tokens": "64",
    "max_steps": "4",
    "save_every": "2",
    "eval_every": "-1",
}


def small(log_path: Path, **changes: Any) -> dict[str, str]:
    return {**SMALL, "log_path": str(log_path), **{name: str(value) for name, value in changes.items()}}


def untimed(log_path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if not k.startswith("time/")} for record in read_metrics(log_path)]


def rollouts(log_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (log_path / "rollouts.jsonl").read_text().splitlines()]


def sequential_reference(given: dict[str, str]) -> list[dict[str, Any]]:
    """Sample, score, train, one after the other, with nothing of `pipeline` or `loop`: each step's groups and
    trainer answers were."""

    async def whole() -> list[dict[str, Any]]:
        config = make_config(given)
        steps = []
        async with contextlib.AsyncExitStack() as stack:
            console = Console(config.max_steps)
            run = await assemble(config, Path(given["log_path"]), False, console, asyncio.Event(), stack)
            policy = await run.policy(0)
            for step in range(config.max_steps):
                prompts = run.shape.prompts
                problems = run.train_problems.batch(step * prompts, prompts)
                seeds = [derive_seed(config.seed, "sample", step, index) for index in range(prompts)]
                groups = await asyncio.gather(
                    *(
                        policy.roll_out(problem, run.shape.samples_per_prompt, run.eval_sampling, seed)
                        for problem, seed in zip(problems, seeds, strict=True)
                    )
                )
                datums, rewards = [], []
                for group in groups:
                    rewards_G = [run.objective.reward.of(member) for member in group.trajectories]
                    advantages = compute_advantages(rewards_G)
                    rewards += [reward for reward in rewards_G if reward is not None]
                    if should_skip(advantages):
                        continue
                    for member, advantage in zip(group.trajectories, advantages, strict=True):
                        tokens = [*group.prompt_tokens, *member.last.tokens]
                        datums.append(make_datum(tokens, list(member.logprobs), len(group.prompt_tokens), advantage))
                if datums:
                    answer = run.backend.trainer.forward_backward(datums, "importance_sampling")
                    run.backend.trainer.optim_step(run.adam_params).result()
                    loss = answer.result().metrics["loss:sum"]
                    policy = await run.policy(step + 1)
                steps.append(
                    {
                        "mean_reward": sum(rewards) / len(rewards),
                        "n_datums": len(datums),
                        "loss_sum": loss if datums else None,
                        "tokens": [[list(m.last.tokens) for m in group.trajectories] for group in groups],
                        "logprobs": [[list(m.logprobs) for m in group.trajectories] for group in groups],
                    }
                )
        return steps

    return asyncio.run(whole())


def reached(log_path: Path, event: str, step: int) -> bool:
    """Whether a run began to sample a step, to train on it, or logged it, after which it saves."""
    if event == "sample":
        return (log_path / "inflight" / f"{step:06d}.jsonl").exists()
    path = log_path / {"train": "rollouts.jsonl", "logged": "metrics.jsonl"}[event]
    return path.exists() and any(row["step"] == step for row in read_lines(path))
