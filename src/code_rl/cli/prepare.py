"""The verb `prepare`: settings to stages, one after the other, with a report after each."""

from __future__ import annotations

import asyncio
import importlib.util
from collections import deque
from collections.abc import Callable, Mapping

from code_rl.data.dataset import Dataset
from code_rl.data.preparation.bench import Bench, check_folder
from code_rl.data.preparation.difficulty import read_pass_rates, verdicts_file
from code_rl.data.preparation.evaluation_sets import evaluation_problems
from code_rl.data.preparation.normalise import open_source, store_key
from code_rl.data.preparation.settings import PrepareConfig, skip_note
from code_rl.util.errors import ConfigError, install_command
from code_rl.util.settings import make_settings


def prepare_command(given: Mapping[str, str]) -> int:
    """Run the verb; 0 when every problem got a decision about itself, else 1. Raises ConfigError
    and DataError for bad input."""
    from code_rl.data.preparation.report import PrepareView

    config = make_settings(PrepareConfig, given)
    source = check(config)
    view = PrepareView()
    if config.dry_run:
        _say_plan(config, source, view.say)
        return 0
    from code_rl.data.preparation.pipeline import run_stages

    with Bench(config, source, store_key(source)) as bench:
        return asyncio.run(run_stages(bench, view))


def check(config: PrepareConfig) -> Dataset:
    """Refuse what cannot be done before anything runs: unknown data, evaluation sets, models,
    formats, folders."""
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


def _say_plan(config: PrepareConfig, source: Dataset, say: Callable[[str], None]) -> None:
    """What would run; a first row is read to show that the data can be."""
    first = next(source.items(), None)
    say(
        f"dataset {config.dataset}: first row gives "
        f"{type(first).__name__.lower() if first is not None else 'nothing'}"
    )
    for name in config.evaluation_sets:
        exams = sum(1 for _ in evaluation_problems(name))
        say(f"decontaminate against {name}: {exams} problems")
    for stage in config.stages:
        note = skip_note(stage, config)
        say(f"  {stage}{f': skipped, {note}' if note else ''}")
    say("nothing was run or written")
