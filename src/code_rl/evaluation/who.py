"""From settings to the one who is asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from code_rl.errors import ConfigError
from code_rl.evaluation.ask import Asked, Reference, Stored, Weights
from code_rl.evaluation.benchmarks import Benchmark
from code_rl.evaluation.endpoint import Endpoint
from code_rl.evaluation.samples import GREEDY, SAMPLED, Sample, read_stored
from code_rl.evaluation.settings import EvalConfig, narrowed, run_of
from code_rl.problems.files import file_sha256
from code_rl.runs.checkpoints import read_checkpoints
from code_rl.sandbox.executor import Executor


async def connect_weights(config: EvalConfig, out: Path, executor: Executor) -> Weights:
    """The model's weights on their back end, in their environment: a base model, or what a run's checkpoint holds."""
    from code_rl.backends.connect import connect, preflight
    from code_rl.config import make_config
    from code_rl.environments import get_environment
    from code_rl.renderers import get_renderer
    from code_rl.rollouts.sample import Policy, Sampling

    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    settings: dict[str, Any] = {
        "backend": config.backend,
        "device": config.device,
        "renderer": config.renderer,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "seed": config.seed,
    }
    state_path, facts = None, dict[str, Any](model=config.model, backend=config.backend)
    if config.checkpoint is not None:
        run, record = checkpoint_record(config.checkpoint)
        state_path = record["state_path"]
        facts |= {"run": run.name, "checkpoint": record["name"], "step": record.get("step")}
        settings |= _run_settings(run)
    environment = get_environment(config.environment, config.max_turns)
    how = ""
    if config.environment != "single":
        facts |= {"environment": config.environment, "max_turns": environment.max_turns}
        how = f", environment {config.environment} (up to {environment.max_turns} answers)"
    made = make_config({**settings, "model_name": config.model or "tiny"})
    backend = await connect(made, out / "state", state_path, await preflight(made))
    sampler = await (backend.base_sampler() if config.checkpoint is None else backend.sync_weights())
    where = f"checkpoint {facts['checkpoint']} of {facts['run']}" if config.checkpoint else str(config.model)
    renderer = get_renderer(made.renderer, backend.tokenizer)
    return Weights(
        Policy(sampler, renderer, executor, backend.context, environment, drawing=asyncio.Semaphore(config.asking)),
        Sampling(config.max_tokens, config.temperature, top_p=config.top_p, top_k=config.top_k),
        at_once=config.asking,
        description=f"{where} on {backend.description}{how}",
        facts=facts,
        close=backend.close,
    )


def checkpoint_record(checkpoint: str) -> tuple[Path, dict[str, Any]]:
    """The run and its checkpoint's record. Raises ConfigError for a name that the run does not have."""
    run, name = run_of(checkpoint)
    records = [record for record in read_checkpoints(run) if "state_path" in record]
    if not records:
        raise ConfigError(f"checkpoint={checkpoint}: the run has saved none yet (save_every=)")
    if name is None:
        return run, records[-1]
    for record in reversed(records):
        if record["name"] == name or Path(record["state_path"]).name == name:
            return run, record
    raise ConfigError(
        f"checkpoint={checkpoint}: the run has no {name!r}; it has {', '.join(r['name'] for r in records)}"
    )


def _run_settings(run: Path) -> dict[str, Any]:
    """What connecting needs to know of the run besides the evaluation's own settings."""
    from code_rl.runs.directory import read_config

    kept = read_config(run)
    return {name: kept[name] for name in ("lora_rank",) if kept.get(name) is not None}


def read_samples_file(path: str, benchmark: Benchmark) -> tuple[Stored, int, bool]:
    """The stored samples for a benchmark, the largest number of sampled ones per problem, and whether there are greedy ones."""
    if not Path(path).is_file():
        raise ConfigError(f"samples={path}: there is no such file")
    stored: Mapping[str, list[Sample]] = read_stored(path, {e.problem_id: e.continued for e in benchmark.entries})
    numbers = [sum(sample.mode == SAMPLED for sample in samples) for samples in stored.values()]
    greedy = any(sample.mode == GREEDY for samples in stored.values() for sample in samples)
    return Stored(Path(path).name, stored, file_sha256(Path(path))), max(numbers, default=0), greedy


def make_endpoint(config: EvalConfig) -> Endpoint:
    """The endpoint of these settings."""
    return Endpoint(
        config.endpoint or "",
        config.model or "",
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        narrowed=narrowed(config),
        at_once=config.asking,
        request_timeout_s=config.request_timeout,
        patience_s=config.patience,
        extra_body=config.extra_body,
        api_key_env=config.api_key_env,
    )


async def connect_asked(
    config: EvalConfig, out: Path, executor: Executor, stack: contextlib.AsyncExitStack
) -> Asked | None:
    """The one who is asked on every benchmark; None where it depends on the benchmark (a samples file)."""
    asked: Asked
    if config.who == "samples":
        return None
    if config.who == "reference":
        asked = Reference()
    elif config.who == "endpoint":
        asked = make_endpoint(config)
    else:
        asked = await connect_weights(config, out, executor)
    stack.push_async_callback(asked.aclose)
    return asked
