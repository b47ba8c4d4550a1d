"""Builds a run from settings. Every part is built here, and checked before anything is sampled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import chz

from code_rl.data import (
    ProblemOrder,
    find_data,
    fingerprint_of,
    load_test_splits,
    trained_on,
)
from code_rl.data.load import RunData, load_train_problems, with_tests, within_difficulty
from code_rl.engine import Backend, connect, preflight
from code_rl.engine.checkpoints import read_config
from code_rl.engine.losses import check_loss
from code_rl.grading import Problem
from code_rl.grading.sandbox import Executor, check_executor, connect_executor
from code_rl.policy import cap_max_tokens, prompt_length, refuse_prompts
from code_rl.policy.environments import Environment
from code_rl.policy.renderers import get_renderer
from code_rl.training.algorithm.lengths import ContextSchedule
from code_rl.training.budget import Budget, Tokens, read_prices
from code_rl.training.config import (
    Config,
    batch_shape,
    context_schedule,
    refuse_buffer,
    refuse_settings,
)
from code_rl.training.console import Console
from code_rl.training.objective import Objective, environment_of, objective_of
from code_rl.training.report.token_decoder import keep_tokenizer
from code_rl.training.run import Run, sampling_of, unaffordable
from code_rl.training.runs.directory import BEGUN, ROLLOUTS, claimed, clear
from code_rl.training.runs.logs import setup_logging
from code_rl.training.runs.recorder import Recorder, read_metrics
from code_rl.training.runs.resume import Start, choose_start, find_checkpoint, go_back
from code_rl.training.runs.trackers import read_log_to
from code_rl.util.errors import ConfigError
from code_rl.util.files import write_atomically

if TYPE_CHECKING:
    from code_rl.engine import Survey


class NothingLeftError(Exception):
    """The run to resume has already done its steps."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A run to assemble, with checked settings. `survey` lists the back end's models; `stack`
    closes the run's parts."""

    config: Config
    log_path: Path
    goes_on: bool
    console: Console
    stop: asyncio.Event
    stack: contextlib.AsyncExitStack
    survey: Survey | None


@dataclass(frozen=True, slots=True)
class Data:
    """The problems of a run, the sandbox that was opened to read them, and a digest of each data
    set."""

    source: RunData
    executor: Executor
    train: Sequence[Problem]
    test: Mapping[str, Sequence[Problem]]
    digests: Mapping[str, str]


async def assemble(
    config: Config,
    log_path: Path | None,
    resumes: bool,
    console: Console,
    stop: asyncio.Event,
    stack: contextlib.AsyncExitStack,
) -> Run:
    """Build every part of a run, each from the earlier ones; `stack` closes them. The run directory
    (None: a new one) is locked first.

    A run that `resumes` continues from its last good checkpoint.

    Raises CheckpointError if no usable state is left to resume from. Raises NothingLeftError if the
    resumed run has already done `max_steps` steps and its logs are complete.
    """
    objective, environment = objective_of(config), environment_of(config)
    refuse_settings(config)
    claim = stack.enter_context(claimed(log_path, config.behavior_if_log_dir_exists, resumes))
    if not claim.resumes:
        write_atomically(claim.path / BEGUN, json.dumps(chz.asdict(config)))
    survey = await preflight(config)
    launch = Launch(config, claim.path, claim.resumes, console, stop, stack, survey)
    data = await read_data(launch)
    take_directory(launch, data)
    start, backend = await load_weights(launch)
    run = await begin(launch, data, start, backend, objective, environment)
    claim.started = True
    return run


async def read_data(launch: Launch) -> Data:
    """Open the sandbox, and read the training problems and the held-out problems. A resumed run
    reads the data set revisions that it began with."""
    config, say = launch.config, launch.console.notice
    pins = _resolved(launch.log_path).get("data", {}) if launch.goes_on else {}
    source = find_data(
        config.dataset, config.test_dataset, evaluates=config.eval_every >= 0, pins=pins
    )
    executor = connect_executor(**config.connection, stop=launch.stop)
    launch.stack.push_async_callback(executor.aclose)
    await check_executor(executor)
    every = await load_train_problems(source, executor, say)
    rated = every if config.difficulty is None else within_difficulty(every, config.difficulty)
    train = with_tests(rated, config.min_tests, config.max_tests)
    test = await load_test_splits(source, config.eval_limit, executor, say)
    parts = {"dataset=": train, **{f"test_dataset= ({name})": test[name] for name in test}}
    digests = {name: fingerprint_of(part) for name, part in parts.items()}
    return Data(source, executor, train, test, digests)


def take_directory(launch: Launch, data: Data) -> None:
    """Delete a run that is not resumed. Raises ConfigError if the run that is resumed has other
    problems."""
    log_path = launch.log_path
    if not launch.goes_on:
        clear(log_path)  # also what an interrupted deletion, or start, left
    for name, known in _resolved(log_path).get("problems", {}).items() if launch.goes_on else ():
        if data.digests.get(name, known) != known:  # none where the resume leaves evaluations out
            raise ConfigError(
                f"{name} has other problems than when the run in {log_path} began; restore them, "
                "or begin a new run"
            )


async def load_weights(launch: Launch) -> tuple[Start, Backend]:
    """Connect the back end. A resumed run loads the latest usable checkpoint, and later steps are
    removed from the directory."""
    config, log_path = launch.config, launch.log_path

    async def load(start: Start) -> Backend:
        state = start.state_path(log_path)
        if state is None and config.init_from is not None:
            state = find_checkpoint(config.init_from, config)
        backend = await connect(config, log_path / "checkpoints", state, launch.survey)
        launch.stack.callback(backend.close)
        return backend

    if not launch.goes_on:
        return Start(), await load(Start())
    start, backend = await choose_start(log_path, launch.console.notice, load)
    if not start.step > config.max_steps > 0:
        go_back(log_path, start, launch.console.notice)
    if start.step >= config.max_steps > 0:
        raise NothingLeftError(
            f"nothing to do: the run in {log_path} has done {start.step} steps and "
            f"max_steps={config.max_steps}; give a larger max_steps to continue"
        )
    return start, backend


async def begin(
    launch: Launch,
    data: Data,
    start: Start,
    backend: Backend,
    objective: Objective,
    environment: Environment,
) -> Run:
    """Fit the settings to the loaded model, open the run's logs, and build the run.

    Raises ConfigError or DataError for settings and prompts that do not fit the model, and
    ConfigError if the first step could exceed a cap.
    """
    config, say = launch.config, launch.console.notice
    check_room(config, backend, launch.log_path, say)
    objective = trainable(objective, backend, config, say)
    keep_tokenizer(launch.log_path, backend.tokenizer)
    renderer = get_renderer(config.renderer, backend.tokenizer)
    lengths = [
        (problem.id, prompt_length(problem, environment, renderer, backend.context))
        for problem in itertools.chain(*data.test.values())
    ]
    refuse_prompts(lengths, backend.context, "held-out")
    schedule, room = _fitting_schedule(config, backend, launch.console)
    prices = read_prices(config.prices)[0] if config.prices is not None else None
    spent = sum(map(Tokens.of, read_metrics(launch.log_path)), Tokens())
    recorder = _open_recorder(launch, data)
    logging.getLogger("code_rl").info(
        "backend %s; %s", backend.description, backend.capabilities.describe()
    )
    run = Run(
        config=config,
        shape=batch_shape(config),
        objective=objective,
        environment=environment,
        backend=backend,
        executor=data.executor,
        renderer=renderer,
        eval_sampling=sampling_of(config, room),
        schedule=schedule,
        train_problems=ProblemOrder(data.train, config.seed),
        test_splits=data.test,
        recorder=recorder,
        budget=Budget(config.max_tokens_total, config.max_cost, prices, spent),
        stop=launch.stop,
        reference=await backend.base_sampler() if config.kl_coef else None,
        first_step=start.step,
    )
    run.problem_sampler.recall(launch.log_path / ROLLOUTS)
    run.problem_sampler.batch(start.step)  # raises where no prompt leaves room for an answer
    launch.console.resume_at(start.step)
    refused = unaffordable(run, start.step, evaluations=1 if start.step else 2)
    if refused is not None:
        raise ConfigError(
            f"{refused}: nothing can be started; raise the cap, or make the batch or the "
            "evaluations smaller"
        )
    return run


def _fitting_schedule(
    config: Config, backend: Backend, console: Console
) -> tuple[ContextSchedule, int]:
    """Return the stages of the token limit, and the most tokens of a completion, as the model's
    context allows them."""
    wanted = max(config.max_tokens, context_schedule(config, backend.context).longest)
    room = cap_max_tokens(wanted, backend.context, console.notice)
    schedule = context_schedule(config, room)
    limits = [stage.max_tokens for stage in schedule.stages]
    refuse_buffer(config, limits, "what the model's context leaves for an answer")
    return schedule, room


def _open_recorder(launch: Launch, data: Data) -> Recorder:
    """Write `config.json`, which marks the directory as a run, and open the run's logs."""
    config, console, log_path = launch.config, launch.console, launch.log_path
    disjoint = data.source.train is None and not data.source.test  # all built in, or none held out
    twice = {name: [] for name in data.test} if disjoint else trained_on(data.train, data.test)
    for name, ids in twice.items():
        if ids:
            shown = ", ".join(ids[:3]) + (" …" if len(ids) > 3 else "")
            console.notice(
                f"{len(ids)} of the {len(data.test[name])} held-out problems of {name} are also "
                f"among those to train on, by id or text ({shown}): "
                "their scores say little. code-rl prepare decontaminate= removes such problems"
            )
    shape = batch_shape(config)
    earlier = _resolved(log_path) if launch.goes_on else {}
    resolved = {
        "prompts": shape.prompts,
        "completions": shape.samples_per_prompt,
        "data": {**earlier.get("data", {}), **data.source.describe()},
        "trained_on": {name: len(ids) for name, ids in twice.items()},
        "problems": {**earlier.get("problems", {}), **data.digests},
        "id": earlier.get("id") or uuid4().hex,
    }
    settings = {**chz.asdict(config), "resolved": resolved}
    logs = setup_logging(log_path, settings, read_log_to(config.log_to))
    (log_path / BEGUN).unlink(missing_ok=True)
    launch.stack.enter_context(console.outages_shown())
    recorder = Recorder(log_path, logs, console, config.keep_checkpoints)
    launch.stack.callback(recorder.close)
    return recorder


def check_room(
    config: Config, backend: Backend, log_path: Path, say: Callable[[str], None]
) -> None:
    """Raise ConfigError if one checkpoint does not fit on the disk; warn if not all will."""
    size = getattr(
        backend.trainer, "checkpoint_bytes", 0
    )  # a remote back end keeps checkpoints itself
    if not (size and config.save_every):
        return
    free = shutil.disk_usage(log_path).free
    if size > free:
        raise ConfigError(
            f"log_path={log_path}: a checkpoint takes {size / 1e6:,.0f} MB and the disk has "
            f"{free / 1e6:,.0f} MB left; choose another disk, a lower lora_rank, or save_every=0"
        )
    count = max(1, config.max_steps // config.save_every)
    kept = min(count, config.keep_checkpoints or count)
    if kept * size > free:
        say(
            f"{kept} checkpoints of {size / 1e6:,.0f} MB do not fit into the {free / 1e6:,.0f} MB "
            f"that {log_path} has left; give keep_checkpoints=2, or a larger save_every"
        )


def trainable(
    objective: Objective, backend: Backend, config: Config, say: Callable[[str], None]
) -> Objective:
    """Return `objective` in the form that this back end can train. Raises ConfigError for a loss or
    a temperature that it does not support."""
    capabilities, temperature = backend.capabilities, config.temperature
    by_name = objective.loss.by_name and capabilities.has_loss(config.loss, config.loss_config)
    if not objective.loss.by_name:
        check_loss(objective.loss, objective.loss_config)
    elif not by_name:
        say(f"loss={config.loss} is computed here: backend={config.backend} has none of that name")
    objective = replace(objective, loss=replace(objective.loss, by_name=by_name))
    capabilities.require_temperature(temperature, custom_loss=not by_name)
    notice = capabilities.temperature_notice(temperature)
    if notice is not None:
        say(notice)
    if (
        not objective.compares
    ):  # samples are training targets, at whatever temperature they were drawn
        return objective
    return replace(objective, temperature=capabilities.pass_temperature(temperature))


def _resolved(log_path: Path) -> dict[str, Any]:
    """Return the values that `config.json` has beside the settings."""
    return dict(read_config(log_path).get("resolved", {}))
