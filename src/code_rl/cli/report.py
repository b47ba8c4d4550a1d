"""The `report` verb: a page, or text."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import chz

from code_rl.training import open_report
from code_rl.training.report import (
    WIDTH,
    compare_text,
    list_runs,
    open_run,
    render_text,
    side_by_side,
)
from code_rl.util.errors import ConfigError
from code_rl.util.options import option
from code_rl.util.settings import make_settings


@chz.chz
class ReportConfig:
    """Settings of `code-rl report`: show what happened in a run."""

    log_path: str | None = option(
        None, "Directory of a run. None: list the runs in ~/code-rl-logs, with their states."
    )
    compare: str | None = option(None, "Run directories to compare with, comma-separated.")
    format: Literal["html", "text"] = option("html", "html: a self-contained page; text: printed.")
    out: str | None = option(None, "The page's file (None: report.html in log_path).")

    @chz.validate
    def _fits(self) -> None:
        """Raise ConfigError for `compare` or `out` without `log_path`, and for `out` with
        `format=text`."""
        if self.log_path is None and (self.compare, self.out) != (None, None):
            raise ConfigError("log_path= is missing: compare= and out= are about a run's report")
        if self.format == "text" and self.out is not None:
            raise ConfigError("format=text and out= exclude each other; give one of them")


def report_command(given: Mapping[str, Any]) -> int:
    """Run `code-rl report` with its settings as text and return the exit code, 0. The page is not
    opened. Raises DataError for a directory without a run, ConfigError for a wrong setting or an
    `out` that cannot be written."""

    config = make_settings(ReportConfig, given)
    if config.log_path is None:
        print(list_runs(Path.home() / "code-rl-logs"))
        return 0
    names = [
        config.log_path,
        *(name.strip() for name in (config.compare or "").split(",") if name.strip()),
    ]
    if config.format == "html":
        path = open_report(names[0], compare=names[1:], out=config.out, browse=False)
        print(f"report: {path.resolve()}")
        return 0
    views = side_by_side([open_run(Path(name).expanduser()) for name in names])
    width = shutil.get_terminal_size((WIDTH, 0)).columns
    compared = [compare_text(views)] if len(views) > 1 else []
    print("\n\n".join([*compared, *(render_text(view, width) for view in views)]))
    return 0
