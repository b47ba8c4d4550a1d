"""Writes a run's `config.json`, `metrics.jsonl` and `logs.log`, and sends metrics to the console
and to experiment trackers.

Each tracker is an optional extra. `metrics.jsonl` remains complete: a tracker that fails causes a
warning in `logs.log` and never stops the run.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from code_rl.engine.checkpoints import CONFIG
from code_rl.training.runs.directory import METRICS
from code_rl.util.errors import ConfigError, install_command
from code_rl.util.files import JsonLines, open_private, write_atomically
from code_rl.util.redaction import RedactingFormatter, redacted, without_keys
from code_rl.util.suggestion import suggestion

PROJECT = "code-rl"
MAX_FAILURES = 5
"""A tracker is switched off after this many consecutive failures."""

Tracker = tuple[Callable[[Mapping[str, float], int], object], Callable[[], object]]
"""A connected tracker: a function that records a step's metrics, and one that finishes."""
logger = logging.getLogger("code_rl")


def read_log_to(log_to: str) -> tuple[str, ...]:
    """Return the trackers that `log_to=` names, separated by commas, in its order; an empty text
    names none. Raises ConfigError for an unknown or repeated name, or for a library that is not
    installed. No tracker is imported or connected."""
    names = tuple(name.strip() for name in log_to.split(",") if name.strip())
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(
                f"log_to={name!r} is unknown{suggestion(name, TRACKERS)}; there are: "
                f"{', '.join(TRACKERS)}"
            )
        if names.count(name) > 1:
            raise ConfigError(f"log_to={log_to!r} names {name} twice; give it once")
        if importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"log_to={name}: the library is not installed; {install_command(name)}"
            )
    return names


class Guarded:
    """A tracker whose failures are counted and logged instead of raised."""

    def __init__(
        self, name: str, make: Callable[[Path, Mapping[str, Any]], Tracker], log_dir: Path
    ) -> None:
        """Keep `make`, which connects the tracker; it is called only by `log_hparams`."""
        self.name = name
        self.failures = 0
        self._in_a_row = 0
        self._make = make
        self._log_dir = log_dir
        self._tracker: Tracker | None = None

    def log_hparams(self, config: Mapping[str, Any]) -> None:
        """Connect, and record the run's settings, with *** for every key. A failure is logged, and
        the metrics are then not sent. Does not raise."""
        shown = without_keys(config)
        self._attempt(lambda: setattr(self, "_tracker", self._make(self._log_dir, shown)))

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Record one step's finite numbers (step None: 0). Does nothing before `log_hparams` has
        connected or after `close`. Does not raise."""
        if self._tracker is not None:
            log, _ = self._tracker
            self._attempt(lambda: log(numbers(metrics), step or 0))

    def close(self) -> None:
        """Finish, which may upload what is left; a failure is logged. Idempotent."""
        tracker, self._tracker = self._tracker, None
        if tracker is not None:
            self._attempt(tracker[1])

    def _attempt(self, act: Callable[[], Any]) -> None:
        """Call the tracker and log any exception as a warning. After `MAX_FAILURES` (5) failures in
        a row it is never called again, not even to finish."""
        if self._in_a_row >= MAX_FAILURES:
            return
        try:
            act()
        # Each library raises exceptions of its own; none may stop the run.
        except Exception as error:  # noqa: BLE001
            self.failures += 1
            self._in_a_row += 1
            end = "; it is left alone from here on" if self._in_a_row >= MAX_FAILURES else ""
            logger.warning(
                "log_to=%s failed (%d times): %s: %s%s",
                self.name,
                self.failures,
                type(error).__name__,
                error,
                end,
            )
        else:
            self._in_a_row = 0


def wandb(log_dir: Path, config: Mapping[str, Any]) -> Tracker:
    """Begin, or with the same `resolved.id` resume, a run of Weights & Biases named after the
    directory, and return its functions. Without a key it records offline, for `wandb sync`. Raises
    what the library raises."""
    import wandb

    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        name=log_dir.name,
        id=config.get("resolved", {}).get("id"),  # a loop of the user's own has none
        resume="allow",
        dir=str(log_dir),
        config=dict(config),
        mode=None if os.environ.get("WANDB_MODE") or _wandb_key() else "offline",
        settings=wandb.Settings(console="off", quiet=True),
    )
    run.define_metric("step")
    # wandb's own counter does not accept step −1, the baseline.
    run.define_metric("*", step_metric="step")
    return lambda values, step: run.log({"step": step, **values}), run.finish


def tensorboard(log_dir: Path, config: Mapping[str, Any]) -> Tracker:
    """Open TensorBoard event files in `log_dir/tensorboard`, write the settings as text at step 0,
    and return the functions. Each step is flushed. Needs neither TensorFlow nor torch."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(log_dir / "tensorboard"))

    def add(values: list[Any], step: int) -> None:
        """Write values of a step, and flush the file."""
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        writer.flush()

    text = "```\n" + json.dumps(config, indent=2, default=str) + "\n```"
    tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
    plugin = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    add([Summary.Value(tag="settings", metadata=plugin, tensor=tensor)], 0)
    return (
        lambda values, step: add(
            [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()], step
        ),
        writer.close,
    )


TRACKERS: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
    each.__name__: each for each in (wandb, tensorboard)
}


def numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among metrics as floats; booleans, texts and None are left out."""
    return {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }


def _wandb_key() -> bool:
    """Return True if WANDB_API_KEY or the netrc file (NETRC, or `~/.netrc`) has a key of Weights &
    Biases. Raises OSError for a file that cannot be read."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    return netrc.is_file() and "wandb" in netrc.read_text(encoding="utf-8", errors="replace")


logger = logging.getLogger("code_rl")


class FileLogger:
    """Writes `config.json` and `metrics.jsonl`, from which everything else can be drawn again. It
    also writes to Python's `logging`, which fills `logs.log`."""

    def __init__(self, log_dir: Path) -> None:
        """Open `metrics.jsonl` in an existing directory for appending; an earlier run's lines stay.
        Raises OSError."""
        self._directory = log_dir
        self._metrics = JsonLines(log_dir / METRICS, durable=True)

    def log_hparams(self, config: Mapping[str, Any]) -> None:
        """Replace `config.json` atomically by the settings as they are, since a resume reads them,
        and write them to `logging` with *** for every key. A value without a JSON form becomes
        text. Raises OSError."""
        write_atomically(
            self._directory / CONFIG,
            json.dumps(config, indent=2, ensure_ascii=False, default=str) + "\n",
        )
        logger.info("settings %s", json.dumps(without_keys(config), default=str))

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append one line to `metrics.jsonl`, with `step` first unless that is None, and sync it to
        disk. Raises OSError, and TypeError for a value without a JSON form."""
        self._metrics.append(metrics if step is None else {"step": step, **metrics})
        logger.info("step %s %s", step, json.dumps(metrics))

    def close(self) -> None:
        """Close `metrics.jsonl`. Idempotent."""
        self._metrics.close()


class ConsoleLogger:
    """Prints settings and metrics, for programs without their own display."""

    def log_hparams(self, config: Mapping[str, Any]) -> None:
        """Print the settings, with *** for every key."""
        self._show("settings", without_keys(config))

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Print one step's metrics; `step` None prints them without a number."""
        self._show("metrics" if step is None else f"step {step}", metrics)

    def _show(self, title: str, values: Mapping[str, Any]) -> None:
        """Print a title, then each value on a line, floats with 6 digits and secrets replaced."""
        print(title)
        for name, value in values.items():
            shown = f"{value:.6g}" if isinstance(value, float) else value
            print(f"  {name}", redacted(str(shown)))

    def close(self) -> None:
        """Do nothing."""


class MultiplexLogger:
    """Forwards to several loggers."""

    def __init__(self, loggers: Sequence[FileLogger | ConsoleLogger | Guarded]) -> None:
        self.loggers = list(loggers)

    def log_hparams(self, config: Mapping[str, Any]) -> None:
        """Forward the settings to each logger in order."""
        for each in self.loggers:
            each.log_hparams(config)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Forward one step's metrics to each logger in order; `setup_logging` puts the file first,
        so that they are on disk before a tracker gets them."""
        for each in self.loggers:
            each.log_metrics(metrics, step)

    def close(self) -> None:
        """Close every logger, in order."""
        for each in self.loggers:
            each.close()


class PrivateFileHandler(logging.FileHandler):
    """A log file that only its owner can read. A line that cannot be written, for example on a full
    disk, is lost; the first loss is reported."""

    _said = False

    def _open(self) -> Any:
        """Open the file, called by `logging.FileHandler`; a new one can be read by its owner
        only."""
        return open_private(Path(self.baseFilename))

    def handleError(self, record: logging.LogRecord) -> None:
        """Report the first failure on stderr and drop the line; later failures are silent. Never
        raises, so a full disk does not stop the run."""
        del record
        if not self._said:
            self._said = True
            print(
                f"{self.baseFilename} cannot be written: {sys.exc_info()[1]}; lines of the log "
                "are lost",
                file=sys.stderr,
            )


def setup_logging(
    log_dir: str | Path,
    config: Mapping[str, Any] | None = None,
    log_to: Sequence[str] = (),
    *,
    console: bool = False,
) -> MultiplexLogger:
    """Log into `log_dir`, which is made if it is missing (`config.json`, `metrics.jsonl` and
    `logs.log`), to the trackers in `log_to`, and to the console if `console` is True. With `config`
    (None: not yet) `config.json` is written and the trackers are connected at once.

    The logger `code_rl` then writes to `logs.log` of this directory alone: its earlier handlers are
    closed, and it no longer propagates. Raises KeyError for an unknown tracker, and OSError.
    """
    directory = Path(log_dir)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = PrivateFileHandler(directory / "logs.log", encoding="utf-8")
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(message)s"))
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    shown = [ConsoleLogger()] if console else []
    trackers = [Guarded(name, TRACKERS[name], directory.expanduser().resolve()) for name in log_to]
    multiplex = MultiplexLogger([FileLogger(directory), *shown, *trackers])
    if config is not None:
        multiplex.log_hparams(config)
    return multiplex
