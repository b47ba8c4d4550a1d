"""One way to make a run of settings: every part is built here, and checked before anything is sampled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import chz

from code_rl.data.load import RunData, find_data, load_test_splits, load_train_problems, with_tests, within_difficulty
from code_rl.data.order import ProblemOrder, all_keys, trained_on
from code_rl.engine.checkpoints import is_run, read_config
from code_rl.engine.connect import Backend, connect, preflight
from code_rl.engine.losses import POLICY_LOSSES, check_loss
from code_rl.grading.problem import Problem
from code_rl.grading.sandbox.connect import check_executor, connect_executor
from code_rl.grading.sandbox.executor import Executor
from code_rl.policy.lengths import cap_max_tokens, prompt_length, refuse_prompts
from code_rl.policy.renderers import get_renderer
from code_rl.training.budget import Budget, Tokens, read_prices
from code_rl.training.config import Config, batch_shape, context_schedule, recipe_models, refuse_buffer, refuse_settings
from code_rl.training.console import Console
from code_rl.training.objective import Objective, environment_of, objective_of
from code_rl.training.report.pieces import keep_tokenizer
from code_rl.training.run import Run, sampling_of, unaffordable
from code_rl.training.runs.directory import BEGUN, LOCK, check_log_dir
from code_rl.training.runs.logs import setup_logging
from code_rl.training.runs.recorder import Recorder, read_metrics
from code_rl.training.runs.resume import Start, choose_start, find_checkpoint, go_back
from code_rl.training.runs.trackers import read_log_to
from code_rl.util.errors import ConfigError
from code_rl.util.files import TEMPORARY, digest, only_writer, write_atomically


class NothingLeftError(Exception):
    """A resumed run that has done its steps."""


async def assemble(
    config: Config,
    log_path: Path,
    resumes: bool,
    console: Console,
    stop: asyncio.Event,
    stack: contextlib.AsyncExitStack,
) -> Run:
    """Build every part of a run; what must be closed is left to `stack`. A run that `resumes` goes on from its last good checkpoint.

    Raises CheckpointError: there is nothing left that the run could go on from; NothingLeftError: the run to be resumed has done `max_steps` steps
    already; what a kill at its end left undone in its logs is done.
    """
    objective = objective_of(config)
    environment = environment_of(config)
    if is_run(log_path):
        _lock(log_path, stack)
    goes_on = resumes and is_run(log_path)
    refuse_settings(config)
    found = await preflight(config, recipe_models())
    pins = _pins(config, log_path)
    data, executor, train_problems, test_splits = await open_data(config, pins, stack, stop, console.notice)
    check_log_dir(log_path, config.behavior_if_log_dir_exists)
    if not (log_path / LOCK).exists():
        _lock(log_path, stack)
    known = digest(all_keys(train_problems), {name: all_keys(split) for name, split in test_splits.items()})
    if goes_on and _resolved(log_path).get("problems") != known:
        raise ConfigError(
            f"dataset= or test_dataset= has other problems than when the run in {log_path} began; restore them, or begin a new run"
        )
    if not goes_on:
        write_atomically(log_path / BEGUN, json.dumps(chz.asdict(config)))
    shape = batch_shape(config)
    order = ProblemOrder(train_problems, config.seed)

    async def load(start: Start) -> Backend:
        state = start.state_path(log_path)
        if state is None and config.init_from is not None:
            state = find_checkpoint(config.init_from, config)
        return await connect(config, log_path / "checkpoints", state, found)

    start, backend = await choose_start(log_path, console.notice, load) if goes_on else (Start(), await load(Start()))
    stack.callback(backend.close)
    if goes_on:
        if not start.step > config.max_steps > 0:
            go_back(log_path, start)
        if start.step >= config.max_steps > 0:
            raise NothingLeftError(
                f"nothing to do: the run in {log_path} has done {start.step} steps and max_steps={config.max_steps}; "
                "give a larger one to go on"
            )
    objective = trainable(objective, backend, config, console.notice)
    keep_tokenizer(log_path, backend.tokenizer)
    renderer = get_renderer(config.renderer, backend.tokenizer)
    held_out = itertools.chain(*test_splits.values())
    lengths = [(problem.id, prompt_length(problem, environment, renderer)) for problem in held_out]
    refuse_prompts(lengths, backend.context, "held-out")
    wanted = max(config.max_tokens, context_schedule(config, backend.context).longest)
    room = cap_max_tokens(wanted, backend.context, console.notice)
    schedule = context_schedule(config, room)
    refuse_buffer(
        config, [stage.max_tokens for stage in schedule.stages], "what the model's context leaves for an answer"
    )
    prices = read_prices(config.prices)[0] if config.prices is not None else None
    spent = sum(map(Tokens.of, read_metrics(log_path)), Tokens())
    budget = Budget(config.max_tokens_total, config.max_cost, prices, spent)
    twice = trained_on(train_problems, test_splits)
    for name, ids in twice.items():
        if ids:
            shown = ", ".join(ids[:3]) + (" …" if len(ids) > 3 else "")
            console.notice(
                f"{len(ids)} of the {len(test_splits[name])} held-out problems of {name} are also among those to train on, by id or text ({shown}): "
                "their scores say little; code-rl prepare decontaminate= leaves such problems out"
            )
    logs = setup_logging(log_path, _kept(config, data.describe(), twice, known), read_log_to(config.log_to))
    (log_path / BEGUN).unlink(missing_ok=True)
    stack.enter_context(console.outages_shown())
    recorder = Recorder(log_path, logs, console, config.keep_checkpoints)
    stack.callback(recorder.close)
    logging.getLogger("code_rl").info("backend %s; %s", backend.description, backend.capabilities.describe())
    run = Run(
        config=config,
        shape=shape,
        objective=objective,
        environment=environment,
        backend=backend,
        executor=executor,
        renderer=renderer,
        eval_sampling=sampling_of(config, room),
        schedule=schedule,
        train_problems=order,
        test_splits=test_splits,
        recorder=recorder,
        budget=budget,
        stop=stop,
        reference=await backend.base_sampler() if config.kl_coef else None,
        first_step=start.step,
    )
    run.choices.batch(start.step)  # raises where no prompt leaves room for an answer
    console.resume_at(start.step)
    refused = unaffordable(run, start.step, evaluations=1 if start.step else 2)
    if refused is not None:
        raise ConfigError(
            f"{refused}: nothing can be started; raise the cap, or make the batch or the evaluations smaller"
        )
    return run


async def open_data(
    config: Config,
    pins: Mapping[str, list[str]],
    stack: contextlib.AsyncExitStack,
    stop: asyncio.Event | None = None,
    say: Callable[[str], None] = print,
) -> tuple[RunData, Executor, Sequence[Problem], Mapping[str, Sequence[Problem]]]:
    """What a run reads: its data (at the commits `pins`), the sandbox, the problems to train on, and those held out. `stack` closes the sandbox."""
    data = find_data(config.dataset, config.test_dataset, evaluates=config.eval_every >= 0, pins=pins)
    executor = connect_executor(
        config.executor,
        isolation=config.isolation,
        concurrency=config.sandbox_concurrency,
        patience_s=config.patience,
        stop=stop,
    )
    stack.push_async_callback(executor.aclose)
    await check_executor(executor)
    problems = await load_train_problems(data, executor, say)
    if config.difficulty is not None:
        problems = within_difficulty(problems, config.difficulty)
    problems = with_tests(problems, config.min_tests, config.max_tests)
    return data, executor, problems, await load_test_splits(data, config.eval_limit, executor, say)


def trainable(objective: Objective, backend: Backend, config: Config, say: Callable[[str], None]) -> Objective:
    """`objective` as this back end can train it. Raises ConfigError for a loss or a temperature that it cannot."""
    capabilities, temperature = backend.capabilities, config.temperature
    own = config.loss not in POLICY_LOSSES
    if own:
        check_loss(objective.loss, objective.loss_config)
    else:
        capabilities.require_loss(config.loss, config.loss_config)
    capabilities.require_temperature(temperature, custom_loss=own)
    notice = capabilities.temperature_notice(temperature)
    if notice is not None:
        say(notice)
    return replace(objective, temperature=capabilities.pass_temperature(temperature))


def _lock(log_path: Path, stack: contextlib.AsyncExitStack) -> None:
    """Hold the run directory until `stack` closes; what a killed process left half replaced goes."""
    stack.enter_context(only_writer(log_path / LOCK, f"log_path={log_path}"))
    for left in [*log_path.glob(f".*{TEMPORARY}"), *log_path.glob(f"*/.*{TEMPORARY}")]:
        left.unlink(missing_ok=True)


def _kept(
    config: Config, data: Mapping[str, list[str]], trained: Mapping[str, list[str]], known: str
) -> dict[str, Any]:
    """The settings as `config.json` has them: `known` is the hash of all problems' ids and statements."""
    shape = batch_shape(config)
    resolved = {
        "prompts": shape.prompts,
        "completions": shape.samples_per_prompt,
        "data": data,
        "trained_on": {name: len(ids) for name, ids in trained.items()},
        "problems": known,
    }
    return {**chz.asdict(config), "resolved": resolved}


def _pins(config: Config, log_path: Path) -> dict[str, list[str]]:
    """The data sets, at their commits, that the run to be resumed was made with: a branch of the hub may have moved since."""
    resumes = is_run(log_path) and config.behavior_if_log_dir_exists in ("resume", "ask")
    return dict(_resolved(log_path).get("data", {})) if resumes else {}


def _resolved(log_path: Path) -> dict[str, Any]:
    """What a run noted beside its settings."""
    return dict(read_config(log_path).get("resolved", {}))
