"""The `train` verb: settings to an assembled run, the loop, and what is said at the end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz

from code_rl.algorithm.losses import POLICY_LOSSES
from code_rl.budget import Budget, Tokens, read_prices, worst_start
from code_rl.config import (
    BatchShape,
    Config,
    batch_shape,
    changed_settings,
    context_schedule,
    loss_config,
    make_config,
    refuse_buffer,
    refuse_idle,
)
from code_rl.console import Console
from code_rl.environments import get_environment
from code_rl.errors import (
    OF_THE_MACHINE,
    BackendError,
    CodeRLError,
    ConfigError,
    in_words,
    lacks_something,
    stopped,
)
from code_rl.objective import Objective, objective_of
from code_rl.runs.directory import CONFIG, check_log_dir, default_log_path, is_run, read_config, with_checksum
from code_rl.runs.history import History
from code_rl.runs.lock import RunLock, lock_run
from code_rl.runs.logs import setup_logging
from code_rl.runs.recorder import Recorder, read_metrics
from code_rl.runs.resume import Start, check_decisions, choose_start, go_back, lost_tokens, open_history
from code_rl.runs.trackers import read_log_to
from code_rl.settings import make_settings

if TYPE_CHECKING:
    from code_rl.backends.connect import Backend
    from code_rl.run import Run


def train_command(given: Mapping[str, Any]) -> int:
    """Run `code-rl train` with the settings given. Returns the exit code: 0, or 130/143 when a signal ended the run."""
    if "replay" in given:
        from code_rl.replaying.command import old_form

        return old_form(given)
    config, log_path, resumes = prepare(given)
    if config.dry_run:
        from code_rl.forecast import report

        print("\n".join(report(config)))
        return 0
    # Threads that spin while they wait would starve the sandbox on a small machine; read once, when torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return asyncio.run(_train(config, log_path, resumes))


def prepare(given: Mapping[str, Any]) -> tuple[Config, Path, bool]:
    """Settings, run directory, and whether an earlier run is resumed there. Nothing is written yet.

    Raises:
        ConfigError: a setting is bad, or differs from what the run to be resumed was made with.
    """
    log_path = Path(given["log_path"]).expanduser() if given.get("log_path") else None
    resumes = given.get("behavior_if_log_dir_exists", "resume") in ("resume", "ask")
    earlier = _settings_of(log_path) if log_path is not None and is_run(log_path) and resumes else None
    config = make_config(given, earlier)
    refuse_idle(config)
    objective_of(config), get_environment(config.environment, config.max_turns)
    read_log_to(config.log_to)
    if log_path is None or earlier is None:
        return config, log_path or default_log_path(), False
    was = make_config({}, earlier)
    for name in changed_settings(was, config):
        raise ConfigError(
            f"{name}={getattr(config, name)} differs from the run in {log_path} ({name}={getattr(was, name)}); "
            "a resumed run keeps it: leave it out, or choose another log_path"
        )
    return config, log_path, True


class NothingLeftError(Exception):
    """A resumed run that has done its steps."""


async def _train(config: Config, log_path: Path, resumes: bool) -> int:
    from code_rl.reports.command import REPORT
    from code_rl.reports.overview import wall_seconds

    console = Console(config.max_steps, 0)
    signals = _Signals()
    async with contextlib.AsyncExitStack() as stack:
        try:
            run = await assemble(config, log_path, resumes, console, signals.stop, stack)
        except NothingLeftError as nothing:
            console.notice(str(nothing))
            if not (log_path / REPORT).exists():
                _report(console, log_path)
            return 0
        _announce(console, run, resumes, log_path)
        console.start()
        stack.callback(console.stop)
        with signals.caught(console):
            try:
                await train_to_the_end(run)
            except Exception as error:
                console.stop()
                _report(console, log_path)
                if not isinstance(error, CodeRLError) and not lacks_something(error):
                    raise
                failure = stopped(error, _hints(config, log_path, True)[0])
                failure.exit_code = signals.code or failure.exit_code
                raise failure from error
        console.stop()
        metrics = read_metrics(log_path)
        sizes = {name: len(problems) for name, problems in run.test_splits.items()}
        console.closing_table(metrics, sizes, config.eval_samples)
        console.farewell(metrics, wall_seconds(metrics), log_path, _hints(config, log_path, bool(signals.code)))
        _report(console, log_path)
    return signals.code


async def train_to_the_end(run: Run) -> None:
    """`loop.train`. Nobody cancels it from outside: a cancellation that comes up is one that a service made of a request."""
    from code_rl.loop import train

    try:
        await train(run)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise BackendError("a request was cancelled by the service") from None


async def assemble(
    config: Config,
    log_path: Path,
    resumes: bool,
    console: Console,
    stop: asyncio.Event,
    stack: contextlib.AsyncExitStack,
) -> Run:
    """Build every part of a run; what must be closed is left to `stack`. A run that `resumes` goes on from its last good checkpoint.

    Raises:
        CheckpointError: there is nothing left that the run could go on from.
        NothingLeftError: the run to be resumed has done `max_steps` steps already; what a kill at its end left undone in its logs is done.
    """
    from code_rl.backends.connect import connect, preflight
    from code_rl.loading.load import find_data, load_test_splits, load_train_problems
    from code_rl.loading.suitable import SHOWN, cap_max_tokens, prompt_lengths, refuse_prompts, within_difficulty
    from code_rl.problems.order import ProblemOrder
    from code_rl.renderers import get_renderer
    from code_rl.reports.pieces import keep_tokenizer
    from code_rl.rollouts.choice import decide_batch
    from code_rl.rollouts.sample import Sampling
    from code_rl.run import Run
    from code_rl.sandbox.connect import connect_executor

    objective, environment = objective_of(config), get_environment(config.environment, config.max_turns)
    lock = _locked(log_path, console, stack) if is_run(log_path) else None
    found = await preflight(config)
    pins = _pins(config, log_path)
    data = find_data(config.dataset, config.test_dataset, evaluates=config.eval_every >= 0, pins=pins)
    executor = connect_executor(
        config.executor,
        isolation=config.isolation,
        concurrency=config.sandbox_concurrency,
        patience_s=config.sandbox_patience,
        stop=stop,
    )
    stack.push_async_callback(executor.aclose)
    train_problems = await load_train_problems(data, executor, console.notice)
    if config.difficulty is not None:
        train_problems = within_difficulty(train_problems, config.difficulty)
    test_splits = await load_test_splits(data, config.eval_limit, executor, console.notice)
    check_log_dir(log_path, config.behavior_if_log_dir_exists)
    if lock is None or not lock.holds():
        _locked(log_path, console, stack)
    shape = batch_shape(config)
    order = ProblemOrder(train_problems, config.seed)

    async def load(start: Start) -> Backend:
        return await connect(config, log_path / "checkpoints", start.state_path(log_path), found)

    history, start = History(), Start()
    if resumes and is_run(log_path):
        history = open_history(log_path, console.notice)
        check_decisions(history, lambda step: decide_batch(order, config.seed, step, shape.prompts))
        overlapped = config.max_steps_off_policy > 0
        start, backend = await choose_start(log_path, history, overlapped, console.notice, load)
    else:
        backend = await load(start)
    stack.callback(backend.close)
    lost = history.lost
    if resumes and is_run(log_path):
        new = lost_tokens(log_path, history, start.step, shape.completions)
        if not start.step > config.max_steps > 0:
            go_back(log_path, start, new)
        lost += new
        if start.step >= config.max_steps > 0:
            raise NothingLeftError(
                f"nothing to do: the run in {log_path} has done {start.step} steps and max_steps={config.max_steps}; "
                "give a larger one to go on"
            )
    objective = trainable(objective, backend, config, console.notice)
    keep_tokenizer(log_path, backend.tokenizer)
    renderer = get_renderer(config.renderer, backend.tokenizer)
    lengths = prompt_lengths(itertools.chain(*test_splits.values()), environment, renderer)
    refuse_prompts(lengths, backend.context, "held-out")
    shown = train_problems if config.overlong_prompts == "error" else train_problems[:SHOWN]
    lengths = prompt_lengths(shown, environment, renderer)
    if config.overlong_prompts == "error":
        refuse_prompts(lengths, backend.context, "training")
    wanted = max(config.max_tokens, context_schedule(config, backend.context).longest)
    room = cap_max_tokens(wanted, backend.context, console.notice)
    schedule = context_schedule(config, room)
    longest = max((length for _, length in lengths if length < backend.context), default=1)
    left = [min(stage.max_tokens, backend.context - longest) for stage in schedule.stages]
    refuse_buffer(config, left, "what the model's context leaves for an answer")
    budget = _budget(config, log_path, lost)
    logs = setup_logging(log_path, _kept(config, data.describe()), read_log_to(config.log_to))
    stack.enter_context(console.outages_shown())
    recorder = Recorder(log_path, logs, console, history, config.keep_checkpoints)
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
        sampling=Sampling(min(config.max_tokens, room), config.temperature),
        schedule=schedule,
        train_problems=order,
        test_splits=test_splits,
        recorder=recorder,
        budget=budget,
        stop=stop,
        reference=await backend.base_sampler() if config.kl_coef else None,
        first_step=start.step,
    )
    console.resume_at(start.step)
    refused = budget.refusal(worst_start(run)) if budget.capped else None
    if refused is not None:
        raise ConfigError(
            f"{refused}: nothing can be started; raise the cap, or make the batch or the evaluations smaller"
        )
    return run


def trainable(objective: Objective, backend: Backend, config: Config, say: Callable[[str], None]) -> Objective:
    """`objective` as this back end can train it. Raises ConfigError for a loss or a temperature that it cannot."""
    capabilities, temperature = backend.capabilities, config.temperature
    own = config.loss not in POLICY_LOSSES
    if not own:
        capabilities.require_loss(config.loss, loss_config(config))
    capabilities.require_temperature(temperature, custom_loss=own)
    notice = capabilities.temperature_notice(temperature)
    if notice is not None:
        say(notice)
    return replace(objective, temperature=capabilities.pass_temperature(temperature))


def _locked(log_path: Path, console: Console, stack: contextlib.AsyncExitStack) -> RunLock:
    """The run directory's lock, until `stack` closes."""
    lock = lock_run(log_path)
    stack.callback(lock.release)
    if lock.earlier is not None:
        console.notice(f"{lock.earlier} ended without closing this run; its lock is taken over")
    return lock


def _budget(config: Config, log_path: Path, lost: Tokens) -> Budget:
    """The run's caps, with what its earlier part has spent: as logged, and in vain."""
    prices = read_prices(config.prices)[0] if config.prices is not None else None
    spent = lost
    for record in read_metrics(log_path):
        spent += Tokens.of(record)
    return Budget(config.max_tokens_total, config.max_cost, prices, spent)


def _report(console: Console, log_path: Path) -> None:
    """Write the run's page and say where it is, also of a run that failed; a page that cannot be written spoils no run."""
    from code_rl.reports.command import REPORT
    from code_rl.reports.page import write_report
    from code_rl.reports.run import open_run

    try:
        write_report([open_run(log_path)], log_path / REPORT)
    except (CodeRLError, *OF_THE_MACHINE) as error:
        console.notice(f"the report could not be written: {in_words(error)}")
    else:
        console.notice(f"report: {(log_path / REPORT).resolve()}")


def _announce(console: Console, run: Run, resumes: bool, log_path: Path) -> None:
    config = run.config
    facts = {
        "recipe": config.recipe or "none",
        "model": f"{config.model_name} on {run.backend.description}, LoRA rank {config.lora_rank}",
        "capabilities": run.backend.capabilities.describe(),
        "problems": f"{len(run.train_problems.problems)} to train on ({config.dataset}); held out: "
        + (", ".join(f"{len(split)} {name}" for name, split in run.test_splits.items()) or "none"),
        "sandbox": run.executor.description,
        "batch": f"{run.shape} × up to {run.sampling.max_tokens} tokens",
        "steps": f"{config.max_steps if config.max_steps > 0 else 'until stopped'}, learning rate {config.learning_rate:g}, seed {config.seed}",
        "log_path": str(log_path),
        "watch": f"code-rl report log_path={log_path} live=true",
    }
    console.header(facts)
    if resumes:
        console.notice(f"resuming after {run.first_step} steps")


def _hints(config: Config, log_path: Path, stopped: bool) -> list[str]:
    command = f"{Path(sys.argv[0]).name}" if sys.argv[0].endswith("code-rl") else "python train.py"
    if stopped:
        return [f"to resume: {command} log_path={log_path}"]
    more = config.max_steps * 2 if config.max_steps > 0 else ""
    return [
        f"to go on from here: {command} log_path={log_path} max_steps={more}",
        f"a model of your own: {command} model_name=/path/to/a/Qwen3-or-Llama-folder dataset=problems.jsonl",
    ]


def _kept(config: Config, data: Mapping[str, list[str]]) -> dict[str, Any]:
    shape: BatchShape = batch_shape(config)
    resolved = {"prompts": shape.prompts, "completions": shape.completions, "data": data}
    return with_checksum({**chz.asdict(config), "resolved": resolved})


def _pins(config: Config, log_path: Path) -> dict[str, list[str]]:
    """The data sets that the run to be resumed was made with, at their commits: a branch of the hub may have moved since."""
    if not is_run(log_path) or config.behavior_if_log_dir_exists not in ("resume", "ask"):
        return {}
    pins: dict[str, list[str]] = read_config(log_path).get("resolved", {}).get("data", {})
    return pins


def _settings_of(log_path: Path) -> dict[str, Any]:
    """The settings of the run in a directory. Raises ConfigError, naming their file, when they are none."""
    left_out = ("resolved", "log_path", "behavior_if_log_dir_exists")
    settings = {name: value for name, value in read_config(log_path).items() if name not in left_out}
    try:
        make_settings(Config, settings)
    except ConfigError as error:
        raise ConfigError(
            f"{log_path / CONFIG} is damaged, or of another version of code-rl: {error}; the run cannot be resumed"
        ) from error
    return settings


class _Signals:
    """The first SIGINT or SIGTERM asks the loop to finish its step; the second ends the process at once."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.code = 0

    @contextlib.contextmanager
    def caught(self, console: Console) -> Any:
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)
        for number in numbers:
            loop.add_signal_handler(number, self._first, number, console)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _first(self, number: signal.Signals, console: Console) -> None:
        self.code = 128 + number
        self.stop.set()
        for each in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        # Said only now: a second signal may follow at once.
        console.notice(f"{number.name}: finishing this step and saving; once more to stop at once")
