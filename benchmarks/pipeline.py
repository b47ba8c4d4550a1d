"""Throughput and staleness for K = 0, 1, 2, 4 on a back end with a remote service's latencies, beside the planner's forecast.

The service is the embedded engine behind `latency`: real completions, programs, verdicts and training; waits on top. Rows: seconds a step
(without evaluations, after the pipeline has filled), throughput against K = 0, the slowest stage, the planner's forecast from the
stage times of the K = 0 run, mean staleness, and final Pass@1 over the three splits.

`engine=true` runs the bare embedded engine instead (stages share the processor cores), sequential against K = 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import chz
from rich.console import Console as Rich
from rich.table import Table

import code_rl.evaluation.held_out
from code_rl.cli.main import run_script
from code_rl.engine.local import share_cores
from code_rl.loop import train
from code_rl.training import read_metrics
from code_rl.training.assembly import assemble, prepare
from code_rl.training.console import Console
from code_rl.training.run import Run
from code_rl.util.concurrency import cancelled_by_service

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.latency import Latency, SlowExecutor, Spent, remote
from benchmarks.shared_cores import Plan, StageTimes, simulate, simulate_shared


@chz.chz
class PipelineConfig:
    """Settings of the benchmark."""

    lags: str = chz.field(default="0,1,2,4", doc="Values of max_steps_off_policy.")
    steps: int = chz.field(default=10, doc="Training steps of each run.")
    seeds: str = chz.field(default="0", doc="RL seeds, comma-separated.")
    prompts: int = chz.field(default=4, doc="Prompts a step.")
    group: int = chz.field(default=4, doc="Completions a prompt.")
    sample_s: float = chz.field(default=3.0, doc="Median seconds of a completion; log-normal, sigma 0.4.")
    train_s: float = chz.field(default=5.5, doc="Trainer's seconds a batch.")
    score_s: float = chz.field(default=0.6, doc="Seconds a program.")
    sandboxes: int = chz.field(default=2, doc="Programs at once.")
    minibatches: int = chz.field(default=1, doc="num_minibatches.")
    engine: bool = chz.field(default=False, doc="The bare embedded engine, without added latencies.")
    eval_limit: int = chz.field(default=16, doc="Held-out problems a split after the last step; 0: no evaluation.")
    out: str | None = chz.field(default=None, doc="JSON lines file that results are appended to.")


@dataclass(slots=True)
class Result:
    """One run."""

    lag: int
    seed: int
    step_s: float
    whole_s: float
    stages: dict[str, float]
    staleness: float
    pass_1: float | None
    times: StageTimes


def measure(config: PipelineConfig, lag: int, seed: int) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        given = {
            "backend": "embedded", "executor": "embedded", "recipe": "tiny", "threads": 1, "seed": seed, "log_path": folder + "/run",
            "groups_per_batch": config.prompts, "group_size": config.group, "max_steps": config.steps, "save_every": 0,
            "max_steps_off_policy": lag, "num_minibatches": config.minibatches,
            "eval_every": 0 if config.eval_limit else -1, "eval_limit": config.eval_limit or 1,
        }  # fmt: skip
        if config.engine and lag == 0:
            del given["threads"]
        latency = Latency(config.sample_s, 0.4, config.train_s / config.minibatches, config.score_s, config.sandboxes)
        spent = Spent()
        started = time.perf_counter()
        asyncio.run(_train({name: str(value) for name, value in given.items()}, latency, spent, config.engine))
        whole = time.perf_counter() - started
        records = read_metrics(Path(folder) / "run")
    steps = [record for record in records if record["step"] >= 0]
    evaluated = [record["eval/pass@1"] for record in records if "eval/pass@1" in record]
    warm = steps[min(len(steps) // 4, 5) :]
    sample = [record["time/sample"] for record in warm]
    programs = config.prompts * config.group
    score = spent.score or [record["time/score"] * config.sandboxes / programs for record in warm]
    train = [record["time/train"] for record in warm]
    stages = {
        "sample": _mean(sample),
        "score": sum(spent.score) / config.sandboxes / len(steps)
        if spent.score
        else _mean([r["time/score"] for r in warm]),
        "train": sum(spent.train) / len(steps) if spent.train else _mean(train),
    }
    times = StageTimes(spent.sample or sample, score, spent.train or train)
    aged = [record["staleness/mean"] for record in steps if "staleness/mean" in record]
    return Result(
        lag,
        seed,
        _mean([r["time/step"] for r in warm]),
        whole,
        stages,
        _mean(aged),
        evaluated[-1] if evaluated else None,
        times,
    )


@contextlib.contextmanager
def _evaluations_at_once(spent: Spent) -> Iterator[None]:
    """Evaluations are not measured: before the first step and after the last, programs are not delayed."""
    evaluate = code_rl.evaluation.held_out.evaluate

    async def undelayed(*args: Any, **kwargs: Any) -> dict[str, Any]:
        spent.evaluating = True
        try:
            return await evaluate(*args, **kwargs)
        finally:
            spent.evaluating = False

    with patch.object(code_rl.evaluation.held_out, "evaluate", undelayed):
        yield


async def _train(given: dict[str, str], latency: Latency, spent: Spent, bare: bool) -> None:
    config, log_path, resumes = prepare(given)
    async with contextlib.AsyncExitStack() as stack:
        console = Console(config.max_steps)
        console.rich.quiet = True
        run: Run = await assemble(config, log_path, resumes, console, asyncio.Event(), stack)
        if not bare:
            executor = SlowExecutor(run.executor, latency, spent)
            run = replace(run, backend=remote(run.backend, latency, spent), executor=executor)
        with _evaluations_at_once(spent), cancelled_by_service():
            await train(run)


def main(config: PipelineConfig) -> int:
    share_cores()
    lags = [int(lag) for lag in config.lags.split(",")]
    seeds = [int(seed) for seed in config.seeds.split(",")]
    rows: list[dict[str, Any]] = []
    base: dict[int, Result] = {}
    for seed in seeds:
        for lag in lags:
            result = measure(config, lag, seed)
            base.setdefault(seed, result)
            plan = Plan(
                max_steps_off_policy=lag,
                completions=config.prompts * config.group,
                programs=max(len(base[seed].times.score_s) // config.steps, 1)
                if not config.engine
                else config.prompts * config.group,
                sandboxes=config.sandboxes,
                steps=200,
            )
            times, cores = base[seed].times, float(os.cpu_count() or 2)
            foretold = (
                simulate_shared(times, plan, cores, batch_sampling=True) if config.engine else simulate(times, plan)
            )
            rows.append({
                "K": lag, "seed": seed, "step_s": result.step_s, "speedup": base[seed].step_s / result.step_s,
                "slowest": max(result.stages.values()), **{f"stage_{k}": v for k, v in result.stages.items()},
                "planned": foretold.step_s, "staleness": result.staleness, "pass@1": result.pass_1, "whole_s": result.whole_s,
            })  # fmt: skip
            if config.out:
                with Path(config.out).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    show(rows)
    return 0


def show(rows: list[dict[str, Any]]) -> None:
    table = Table()
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()))
    Rich(width=200).print(table)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


if __name__ == "__main__":
    run_script(PipelineConfig, main, __doc__ or "")
