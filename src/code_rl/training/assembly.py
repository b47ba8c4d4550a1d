"""Builds a run from settings: check them, read the problems, connect the back end, and begin. Every
part is checked before anything is sampled."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import chz

from code_rl.data import (
    ProblemOrder,
    find_data,
    fingerprint_of,
    load_test_splits,
    trained_on,
)
from code_rl.data.load import (
    RunData,
    Say,
    in_language,
    load_train_problems,
    with_tests,
    within_difficulty,
)
from code_rl.engine import Backend, Survey, connect, preflight
from code_rl.engine.checkpoints import is_run, read_config
from code_rl.engine.losses import check_loss
from code_rl.grading import Problem
from code_rl.grading.sandbox import Executor, check_executor, connect_executor
from code_rl.policy import cap_max_tokens, prompt_length, refuse_prompts
from code_rl.policy.environments import Environment
from code_rl.policy.renderers import Renderer, get_renderer
from code_rl.training.algorithm.lengths import ContextSchedule
from code_rl.training.budget import Budget, Tokens, read_prices
from code_rl.training.config import (
    Config,
    batch_shape,
    changed_settings,
    make_config,
    refuse_idle,
    refuse_settings,
)
from code_rl.training.console import Console
from code_rl.training.objective import Objective, environment_of, objective_of
from code_rl.training.report.token_decoder import keep_tokenizer
from code_rl.training.run import Run, sampling_of, unaffordable
from code_rl.training.runs.directory import (
    BEGUN,
    REPLACED,
    RESUMES,
    ROLLOUTS,
    Claim,
    begun_settings,
    claimed,
    read_metrics,
    settings_of,
)
from code_rl.training.runs.metrics_log import read_log_to, setup_logging
from code_rl.training.runs.recorder import Recorder
from code_rl.training.runs.resume import Start, choose_start, find_checkpoint, go_back
from code_rl.util.errors import ConfigError
from code_rl.util.files import write_atomically
from code_rl.util.registry import require_given


class NothingLeftError(Exception):
    """The run to resume has already done its steps."""


@dataclass(frozen=True, slots=True)
class Data:
    """The problems of a run, and a digest of each data set."""

    source: RunData
    train: Sequence[Problem]
    test: Mapping[str, Sequence[Problem]]
    digests: Mapping[str, str]


def prepare(given: Mapping[str, Any]) -> tuple[Config, Path | None, bool]:
    """Return the settings, the run directory (None: a new one), and True if an earlier run is
    resumed there. Nothing is written yet; parts `package.module:object` are imported.

    Raises ConfigError for a wrong setting, or one that differs from the run to be resumed, and
    CheckpointError for a damaged `init_from`.
    """
    log_path = Path(given["log_path"]).expanduser() if given.get("log_path") else None
    behavior = given.get("behavior_if_log_dir_exists", "resume")
    earlier = begun = None
    if log_path is not None:
        earlier = settings_of(log_path) if behavior in RESUMES and is_run(log_path) else None
        begun = begun_settings(log_path, behavior, given.get("recipe"))
    config = make_config(given, earlier or begun)
    if config.init_from is not None and earlier is None:
        find_checkpoint(config.init_from, config)
        if log_path is not None and Path(config.init_from).parent.resolve() == log_path.resolve():
            raise ConfigError(
                f"init_from={config.init_from} is a checkpoint of log_path={log_path}, which a "
                "new run replaces; choose another log_path"
            )
    refuse_idle(config)
    require_given(chz.asdict(config))
    objective_of(config), environment_of(config)
    read_log_to(config.log_to)
    if log_path is None or earlier is None:
        return config, log_path, False
    was = make_config({}, earlier)
    for name in changed_settings(was, config):
        raise ConfigError(
            f"{name}={getattr(config, name)} differs from the run in {log_path} "
            f"({name}={getattr(was, name)}); "
            "a resumed run keeps it: leave it out, or choose another log_path"
        )
    return config, log_path, True


async def assemble(
    config: Config,
    log_path: Path | None,
    resumes: bool,
    console: Console,
    stop: asyncio.Event,
    stack: contextlib.AsyncExitStack,
) -> Run:
    """Build every part of a run, each from the earlier ones, and write its first files; `stack`
    closes the parts. The run directory (None: a new one) is locked first. A run that `resumes`
    continues from its last good checkpoint; otherwise an error leaves the directory as it was.

    Raises CheckpointError if no checkpoint is usable, NothingLeftError if it has done `max_steps`
    steps and its logs are complete, ConfigError or DataError for settings and prompts that do not
    fit the model, and ConfigError if the first step could exceed a cap.
    """
    refuse_settings(config)
    claim = stack.enter_context(claimed(log_path, config.behavior_if_log_dir_exists, resumes))
    folder, say = claim.path, console.notice
    if not claim.resumes:
        note_begun(config, folder, say)
    survey = await preflight(config, config.training)
    earlier = read_config(folder).get("resolved", {}) if claim.resumes else {}

    executor = connect_executor(**config.connection, stop=stop)
    stack.push_async_callback(executor.aclose)
    await check_executor(executor, config.language)
    data = await read_data(config, executor, earlier, say)
    if not claim.resumes:
        claim.clear()

    start, backend = await open_backend(config, claim, survey, say, stack)
    check_room(config, backend, folder, say)
    environment = environment_of(config)
    renderer = get_renderer(config.renderer, backend.tokenizer)
    check_held_out(data, environment, renderer, backend.context)
    schedule, room = fit_lengths(config, backend.context, say)
    prices = read_prices(config.prices)[0] if config.prices is not None else None
    spent = sum(map(Tokens.of, read_metrics(folder)), Tokens())
    run = Run(
        config=config,
        shape=batch_shape(config),
        objective=trainable(objective_of(config), backend, config, say),
        environment=environment,
        backend=backend,
        executor=executor,
        renderer=renderer,
        eval_sampling=sampling_of(config, room),
        schedule=schedule,
        train_problems=ProblemOrder(data.train, config.seed),
        test_splits=data.test,
        recorder=open_recorder(config, folder, data, earlier, console, stack),
        budget=Budget(config.max_tokens_total, config.max_cost, prices, spent),
        stop=stop,
        reference=await backend.base_sampler() if config.kl_coef else None,
        first_step=start.step,
    )
    begin(run, folder, console)
    claim.begin()
    return run


def note_begun(config: Config, folder: Path, say: Say) -> None:
    """Write the settings of a run that begins, for a command that repeats its start. A notice says
    if this command repeats an interrupted start."""
    if begun_settings(folder, config.behavior_if_log_dir_exists, config.recipe) is not None:
        say(
            f"a start in {folder} was interrupted: settings that this command does not give are "
            "those of that start; behavior_if_log_dir_exists=delete drops them"
        )
    write_atomically(folder / BEGUN, json.dumps(chz.asdict(config)))


async def open_backend(
    config: Config,
    claim: Claim,
    survey: Survey | None,
    say: Say,
    stack: contextlib.AsyncExitStack,
) -> tuple[Start, Backend]:
    """Connect the back end with the weights of the run's start: new ones, those of `init_from`, or
    those of the last good checkpoint, whose later steps are removed from the directory. `stack`
    closes it. Raises CheckpointError if no start is usable, and NothingLeftError if `max_steps`
    steps are done."""
    folder = claim.path

    async def load(start: Start) -> Backend:
        """Connect the back end with the weights of one start; `choose_start` tries the next if it
        raises CheckpointError."""
        state = start.state_path(folder)
        if state is None and config.init_from is not None:
            state = find_checkpoint(config.init_from, config)
        backend = await connect(config, config.training, folder / "checkpoints", state, survey)
        stack.callback(backend.close)
        return backend

    start, backend = await choose_start(folder, say, load)
    if claim.resumes and not start.step > config.max_steps > 0:
        go_back(folder, start, say)
    if start.step >= config.max_steps > 0:
        raise NothingLeftError(
            f"nothing to do: the run in {folder} has done {start.step} steps and "
            f"max_steps={config.max_steps}; give a larger max_steps to continue"
        )
    return start, backend


def check_held_out(data: Data, environment: Environment, renderer: Renderer, context: int) -> None:
    """Raise DataError if a held-out prompt has `context` tokens or more, and so leaves no room for
    an answer."""
    lengths = [
        (problem.id, prompt_length(problem, environment, renderer))
        for problem in itertools.chain(*data.test.values())
    ]
    refuse_prompts(lengths, context, "held-out")


def begin(run: Run, folder: Path, console: Console) -> None:
    """Keep the tokenizer in `folder`, log the back end, recall the problems of earlier steps, and
    show where the run begins. Raises DataError if no prompt fits for a problem of the first batch,
    ConfigError if a cap does not allow the step."""
    backend, step = run.backend, run.first_step
    keep_tokenizer(folder, backend.tokenizer)
    logging.getLogger("code_rl").info(
        "backend %s; %s", backend.description, backend.capabilities.describe()
    )
    run.problem_sampler.recall(folder / ROLLOUTS)
    run.problem_sampler.batch(step)
    console.resume_at(step)
    refused = unaffordable(run, step, evaluations=1 if step else 2)
    if refused is not None:
        raise ConfigError(
            f"{refused}: nothing can be started; raise the cap, or make the batch or the "
            "evaluations smaller"
        )


async def read_data(
    config: Config, executor: Executor, earlier: Mapping[str, Any], say: Say
) -> Data:
    """Read the training problems and the held-out problems, filtered by difficulty, tests and
    language. A resumed run (`earlier` is its record `resolved`, else empty) reads the data set
    revisions that it began with. Raises ConfigError if they are other problems or none is left, and
    DataError for unusable files."""
    pins = earlier.get("data", {})
    source = find_data(
        config.dataset, config.test_dataset, evaluates=config.eval_every >= 0, pins=pins
    )
    every = await load_train_problems(source, executor, say)
    rated = every if config.difficulty is None else within_difficulty(every, config.difficulty)
    tested = with_tests(rated, config.min_tests, config.max_tests)
    train = in_language(tested, config.language, say)
    splits = await load_test_splits(source, config.eval_limit, executor, say)
    test = {name: in_language(split, config.language, say) for name, split in splits.items()}
    parts = {"dataset=": train, **{f"test_dataset= ({name})": test[name] for name in test}}
    digests = {name: fingerprint_of(part) for name, part in parts.items()}
    for name, known in earlier.get("problems", {}).items():
        if digests.get(name, known) != known:  # none where the resume leaves evaluations out
            raise ConfigError(
                f"{name} has other problems than when the run in {config.log_path} began; restore "
                "them, or begin a new run"
            )
    return Data(source, train, test, digests)


def fit_lengths(config: Config, context: int, say: Say) -> tuple[ContextSchedule, int]:
    """Return the stages of the token limit, and the most tokens of a completion (training or
    evaluation), lowered with a notice to the model's `context` − 1."""
    wanted = max(config.max_tokens, config.schedule(context).longest)
    room = cap_max_tokens(wanted, context, say)
    return config.schedule(room), room


def open_recorder(
    config: Config,
    folder: Path,
    data: Data,
    earlier: Mapping[str, Any],
    console: Console,
    stack: contextlib.AsyncExitStack,
) -> Recorder:
    """Write `config.json`, which marks the directory as a run, open the run's logs, and connect the
    trackers; `stack` closes them. `begun.json` is deleted. A notice names held-out problems that
    are also trained on. `earlier` is the record `resolved` of a resumed run, whose `id` is kept."""
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
    resolved = {
        "prompts": shape.prompts,
        "completions": shape.samples_per_prompt,
        "data": {**earlier.get("data", {}), **data.source.describe()},
        "trained_on": {name: len(ids) for name, ids in twice.items()},
        "problems": {**earlier.get("problems", {}), **data.digests},
        "id": earlier.get("id") or uuid4().hex,
    }
    settings = {**chz.asdict(config), "resolved": resolved}
    logs = setup_logging(folder, settings, read_log_to(config.log_to))
    (folder / BEGUN).unlink(missing_ok=True)
    stack.enter_context(console.outages_shown())
    recorder = Recorder(folder, logs, console, config.keep_checkpoints)
    stack.callback(recorder.close)
    return recorder


def check_room(config: Config, backend: Backend, log_path: Path, say: Say) -> None:
    """Raise ConfigError if one checkpoint does not fit on the disk; warn if not all will. Files of
    an earlier run that is replaced count as free. Nothing is checked for a remote back end or
    without checkpoints."""
    # A remote back end keeps checkpoints itself.
    size = getattr(backend.trainer, "checkpoint_bytes", 0)
    if not (size and config.save_every):
        return
    replaced = (log_path / REPLACED).rglob("*")
    free = shutil.disk_usage(log_path).free + sum(file.lstat().st_size for file in replaced)
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


def trainable(objective: Objective, backend: Backend, config: Config, say: Say) -> Objective:
    """Return `objective` in the form that this back end can train: its loss computed here if the
    back end has none of that name (with a notice), and its temperature. Raises ConfigError for a
    loss or a temperature that it does not support."""
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
    if not objective.compares:
        # Samples are training targets, at whatever temperature they were drawn.
        return objective
    return replace(objective, temperature=capabilities.pass_temperature(temperature))
