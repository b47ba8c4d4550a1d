"""Loggers behind one small interface: the run's files, the console, trackers."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from code_rl.engine.checkpoints import CONFIG
from code_rl.training.runs.directory import METRICS
from code_rl.training.runs.trackers import Guarded, open_trackers
from code_rl.util.files import JsonLines, open_private, write_atomically
from code_rl.util.redaction import RedactingFormatter, redacted

logger = logging.getLogger("code_rl")


class FileLogger:
    """Writes `config.json` and `metrics.jsonl`, from which everything else can be drawn again. It
    also writes to Python's `logging`, which fills `logs.log`."""

    def __init__(self, log_dir: Path) -> None:
        self._directory = log_dir
        self._metrics = JsonLines(log_dir / METRICS, durable=True)

    def log_hparams(self, config: Mapping[str, Any]) -> None:
        """Write `config.json`."""
        write_atomically(
            self._directory / CONFIG,
            json.dumps(config, indent=2, ensure_ascii=False, default=str) + "\n",
        )
        logger.info("settings %s", json.dumps(config, default=str))

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append one line to `metrics.jsonl`."""
        self._metrics.append(metrics if step is None else {"step": step, **metrics})
        logger.info("step %s %s", step, json.dumps(metrics))

    def close(self) -> None:
        """Close the file."""
        self._metrics.close()


class ConsoleLogger:
    """Prints a table per step on the terminal, for programs without their own display."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(highlight=False, markup=False, emoji=False)

    def log_hparams(self, config: Mapping[str, Any]) -> None:
        """Show the settings."""
        self._show("settings", config)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Show one step's metrics."""
        self._show("metrics" if step is None else f"step {step}", metrics)

    def _show(self, title: str, values: Mapping[str, Any]) -> None:
        from rich.table import Table
        from rich.text import Text

        table = Table(title=title, title_justify="left", show_header=False)
        for name, value in values.items():
            table.add_row(
                name, Text(redacted(f"{value:.6g}" if isinstance(value, float) else str(value)))
            )
        self._console.print(table)

    def close(self) -> None:
        """Do nothing."""


class MultiplexLogger:
    """Forwards to several loggers."""

    def __init__(self, loggers: Sequence[FileLogger | ConsoleLogger | Guarded]) -> None:
        self.loggers = list(loggers)

    def log_hparams(self, config: Mapping[str, Any]) -> None:
        """Forward the settings."""
        for each in self.loggers:
            each.log_hparams(config)

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Forward one step's metrics."""
        for each in self.loggers:
            each.log_metrics(metrics, step)

    def close(self) -> None:
        """Close all."""
        for each in self.loggers:
            each.close()


class PrivateFileHandler(logging.FileHandler):
    """A log file that only its owner can read. A line that cannot be written, for example on a full
    disk, is lost; the first loss is reported."""

    _said = False

    def _open(self) -> Any:
        return open_private(Path(self.baseFilename))

    def handleError(self, record: logging.LogRecord) -> None:
        """Report the first failure on stderr."""
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
    """Log into `log_dir` (`config.json`, `metrics.jsonl` and `logs.log`), to the trackers in
    `log_to`, and to the console if `console` is True."""
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
    multiplex = MultiplexLogger([FileLogger(directory), *shown, *open_trackers(log_to, directory)])
    if config is not None:
        multiplex.log_hparams(config)
    return multiplex
