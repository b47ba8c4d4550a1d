"""Checks of `code-rl prepare` before anything runs, and the plan that `dry_run=true` prints."""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Callable

from code_rl.data.dataset import Dataset
from code_rl.data.preparation.difficulty import read_pass_rates, verdicts_file
from code_rl.data.preparation.evaluation_sets import evaluation_problems
from code_rl.data.preparation.normalise import open_source
from code_rl.data.preparation.settings import PrepareConfig, skip_note
from code_rl.data.preparation.workspace import check_folder
from code_rl.util.errors import ConfigError, install_command


def check(config: PrepareConfig) -> Dataset:
    """Refuse unusable settings before anything runs: unknown data, evaluation sets, models,
    formats, folders. Return the opened data set."""
    from code_rl.data.preparation.write import check_format, check_replaced

    if config.stop_after is None or config.stop_after == "write":
        check_format(config)
    if "deduplicate" in config.stages and importlib.util.find_spec("rensa") is None:
        raise ConfigError(
            f"the stage deduplicate needs rensa: {install_command('data')}, or stop_after=filter"
        )
    check_folder(config)
    if config.pass_rates is not None and "difficulty" in config.stages:
        read_pass_rates(verdicts_file(config.pass_rates))
    if "decontaminate" in config.stages:
        for name in config.evaluation_sets:
            deque(evaluation_problems(name), maxlen=0)
    source = open_source(config.dataset)
    check_replaced(config, source)
    return source


def say_plan(config: PrepareConfig, source: Dataset, say: Callable[[str], None]) -> None:
    """Print the plan; the first row is read to show that the data can be read."""
    first = next(source.items(), None)
    say(
        f"dataset {config.dataset}: first row gives "
        f"{type(first).__name__.lower() if first is not None else 'nothing'}"
    )
    for name in config.evaluation_sets:
        eval_problems = sum(1 for _ in evaluation_problems(name))
        say(f"decontaminate against {name}: {eval_problems} problems")
    for stage in config.stages:
        note = skip_note(stage, config)
        say(f"  {stage}{f': skipped, {note}' if note else ''}")
    say("nothing was run or written")
