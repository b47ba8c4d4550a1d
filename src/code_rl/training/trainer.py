"""From settings to a run and its end: confirmation, the loop, signals, report and hints."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any, cast

from code_rl.engine import BUILT_IN, BackendKind, place_of
from code_rl.engine.local import share_cores
from code_rl.policy.renderers import AUTO, name_of
from code_rl.training.assembly import NothingLeftError, assemble
from code_rl.training.config import (
    Config,
    batch_shape,
    doubtful,
    make_config,
    unused,
)
from code_rl.training.console import Console
from code_rl.training.report.diagnostics import Finding, worst_of
from code_rl.training.report.page import REPORT, write_report
from code_rl.training.report.run import open_run
from code_rl.training.report.text import closing
from code_rl.training.run import Run
from code_rl.training.runs.directory import read_metrics, settings_of
from code_rl.util.concurrency import cancelled_by_service, forget_signals, on_loop_signal
from code_rl.util.errors import (
    CodeRLError,
    ConfigError,
    command_line,
    describe_error,
    is_resource_error,
    with_resume_hint,
)
from code_rl.util.streams import outlive_readers

LIMITS = ("max_steps", "max_tokens_total", "max_cost")
BOUNDS = "max_steps=, max_tokens_total= or max_cost="
_STOPS = (signal.SIGINT, signal.SIGTERM)


def confirm(config: Config, resumes: bool) -> None:
    """Print what a remote back end will train and for how long; on a paid one, ask once for
    confirmation if nothing bounds the cost. Does nothing for the embedded engine.

    Raises ConfigError without a terminal, or for any answer but yes. Resuming an unbounded run does
    not ask again.
    """
    if config.backend == BackendKind.EMBEDDED:
        return
    place = place_of(config.backend)
    caps = [f"{name}={cap}" for name in LIMITS[1:] if (cap := getattr(config, name))]
    until = caps
    if config.max_steps > 0:
        until = [f"{config.max_steps} step{'s are' if config.max_steps > 1 else ' is'} done", *caps]
    print(
        f"{'this costs money: ' if place.paid else ''}{place.url} "
        f"{'goes on training' if resumes else 'will train'} {config.model_name} (LoRA rank "
        f"{config.lora_rank}) on {config.dataset}, {batch_shape(config)} × up to "
        f"{config.longest_completion} tokens a step, until {' or '.join(until) or 'it is stopped'}"
    )
    agreed = resumes and _had_no_end(Path(str(config.log_path)).expanduser())
    if not place.paid or agreed or until:
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            f"nothing bounds the cost of this run, and no terminal can confirm it; give {BOUNDS}"
        )
    try:
        answer = input("train until it is stopped? [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise ConfigError(f"not confirmed: nothing was started; give {BOUNDS} to bound the cost")


def _had_no_end(log_path: Path) -> bool:
    """Return True if the run in a directory has no limit of steps, tokens or cost. Raises
    ConfigError if its settings cannot be read."""
    was = make_config({}, settings_of(log_path))
    return not any((getattr(was, name) or 0) > 0 for name in LIMITS)


async def train_run(
    config: Config, given: Path | None, resumes: bool, *, signals: bool = False
) -> tuple[int, Path]:
    """Confirm the cost, assemble a run in the `given` directory (None: a new one), train, and write
    the report. Return the exit code (0, or 128 plus the number of the signal that ended it) and the
    run directory. With `signals` a SIGINT or SIGTERM to the process ends the run after the current
    step.

    If the run has already done its steps, only a missing report is written, and the code is 0. An
    expected error is raised as a CodeRLError with the command that resumes; a programming error
    passes unchanged.
    """
    from code_rl.loop import train

    share_cores()
    outlive_readers()
    confirm(config, resumes)
    console = Console(config.max_steps)
    stop = _Signals(console)
    async with contextlib.AsyncExitStack() as stack:
        try:
            run = await assemble(config, given, resumes, console, stop.asked, stack)
        except NothingLeftError as nothing:
            console.notice(str(nothing))
            assert given is not None
            if not (given / REPORT).exists():
                console.notice(_report(given))
            return 0, given
        log_path = run.recorder.log_path
        stop.hint = f"to resume: {_again(signals, log_path=str(log_path))}"
        _announce(console, run, resumes, log_path)
        await run.recorder.write_page()
        console.start()
        stack.callback(console.stop)
        with stop.caught() if signals else contextlib.nullcontext():
            try:
                with cancelled_by_service():
                    await train(run)
            except asyncio.CancelledError:
                if not stop.cut:
                    raise
                cast("asyncio.Task[Any]", asyncio.current_task()).uncancel()
            except Exception as error:
                console.stop()
                console.notice(_report(log_path))
                if not isinstance(error, CodeRLError) and not is_resource_error(error):
                    raise
                failure = with_resume_hint(error, stop.hint)
                failure.exit_code = stop.code or failure.exit_code
                raise failure from error
        console.stop()
        console.notice(_report(log_path))
        if stop.cut:
            console.notice("the evaluation was interrupted; its completions are kept for a resume")
        hints = [stop.hint] if stop.code else _hints(config, log_path, signals)
        console.farewell(read_metrics(log_path), log_path, hints)
    return stop.code, log_path


def _report(log_path: Path) -> str:
    """Write the run's page, and return lines with its results, its worst finding and its path, also
    for a run that failed. If it cannot be written the text says why; no error is raised, since the
    run is done."""
    try:
        (view,) = write_report([open_run(log_path)], log_path / REPORT)
        lines = [*closing(view), *worst_of([Finding(**each) for each in view["findings"]])]
    except Exception as error:  # noqa: BLE001 - the run is done, and its weights are saved
        return f"the report could not be written: {describe_error(error)}"
    return "\n".join([*lines, f"report: {(log_path / REPORT).resolve()}"])


def _announce(console: Console, run: Run, resumes: bool, log_path: Path) -> None:
    """Print the main settings, then a notice for each doubtful or unused one. The first line says
    if the run is new, since a mistyped `log_path` would otherwise begin one silently."""
    config = run.config
    beginning = "new" if config.log_path is None else "new: log_path holds no earlier one"
    if config.init_from is not None:
        beginning = f"new, from {config.init_from}"
    if resumes:
        beginning = f"resumed after {run.first_step} step{'s' if run.first_step != 1 else ''}"
    remote_model = config.backend != BackendKind.EMBEDDED
    unset = remote_model and config.executor == "embedded" and not os.environ.get("SANDBOX_URL")
    facts = {
        "run": beginning,
        "recipe": config.recipe or "none",
        "model": f"{config.model_name} on {run.backend.description}, LoRA rank {config.lora_rank}",
        "capabilities": run.backend.capabilities.describe(),
        "renderer": name_of(run.renderer) + (" (auto)" if config.renderer == AUTO else ""),
        "problems": f"{len(run.train_problems.problems)} to train on ({config.dataset}); held out: "
        + (", ".join(f"{len(split)} {name}" for name, split in run.test_splits.items()) or "none"),
        "sandbox": run.executor.description + (" (SANDBOX_URL is not set)" if unset else ""),
        "batch": f"{run.shape} × up to {run.schedule.longest} tokens",
        "steps": f"{config.max_steps if config.max_steps > 0 else 'until stopped'}, "
        f"learning rate {config.learning_rate:g}, seed {config.seed}",
        "log_path": str(log_path),
        "watch": (log_path / REPORT).absolute().as_uri(),
    }
    console.header(facts)
    for line in [*unused(config), *doubtful(config)]:
        console.notice(line)


def _hints(config: Config, log_path: Path, command: bool) -> list[str]:
    """Return the next commands (with `command`; else library calls): the same run with twice its
    limits and, after the built-in model, another model."""
    limits = {name: getattr(config, name) or 0 for name in LIMITS}
    more = {name: limit * 2 for name, limit in limits.items() if limit > 0}
    hints = [f"to go on from here: {_again(command, log_path=str(log_path), **more)}"]
    if config.model_name == BUILT_IN:
        own = {"model_name": "/path/to/a/model-folder", "dataset": "problems.jsonl"}
        hints.append(
            f"a model of your own: {_again(command, **own, test_dataset='held_out.jsonl')}"
        )
    return hints


def _again(command: bool, **settings: str | float) -> str:
    """Return how to train with these settings: as a shell command if `command`, or as a call of the
    library."""
    if not command:
        values = ", ".join(f"{name}={value!r}" for name, value in settings.items())
        return f"code_rl.train({values})"
    words = (f"{name}={quote(str(value))}" for name, value in settings.items())
    return " ".join([command_line("train"), *words])


class _Signals:
    """The first SIGINT or SIGTERM asks the loop to finish its step, or cancels the evaluation in
    progress; the second ends the process.

    `hint` says how to resume, once the run has a directory. `cut` is True once an evaluation was
    cancelled. Only the last message then distinguishes the run from a killed one.
    """

    def __init__(self, console: Console) -> None:
        """Handle no signal yet; `caught` does. `asked` is the event that stops the loop, `code` the
        exit code (0 without a signal)."""
        self.asked = asyncio.Event()
        self.hint = ""
        self.code = 0
        self.cut = False
        self._console = console

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Handle both signals during the block, in the main thread; afterwards they end the
        process. It must run in the task that an evaluation belongs to, since an interrupted
        evaluation cancels that task."""
        loop, task = asyncio.get_running_loop(), cast("asyncio.Task[Any]", asyncio.current_task())
        for number in _STOPS:
            on_loop_signal(loop, number, self._on_first_signal, number, task)
        try:
            yield
        finally:
            forget_signals(loop, _STOPS)

    def _on_first_signal(self, number: signal.Signals, task: asyncio.Task[Any]) -> None:
        """Handle the first signal: set `asked` and `code`, so that the loop finishes the step, or
        cancel an evaluation in `task`. From then on a signal ends the process at once."""
        self.code = 128 + number
        self.asked.set()
        forget_signals(asyncio.get_running_loop(), _STOPS)
        for each in _STOPS:
            signal.signal(each, self._on_second_signal)
        # Printed only after the handlers are replaced: a second signal may follow at once.
        if self._console.evaluates:
            self.cut = True
            task.cancel()
            self._console.notice(f"{number.name}: stopping the evaluation; a resume continues it")
        else:
            self._console.notice(
                f"{number.name}: finishing this step and saving; once more to stop at once"
            )

    def _on_second_signal(self, number: int, frame: object) -> None:
        """Print the hint and let the signal end the process, without cleaning up. Runs between two
        bytecodes of any code, so it writes to the descriptor itself."""
        del frame
        os.write(1, f"\n{self.hint}\n".encode())
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
