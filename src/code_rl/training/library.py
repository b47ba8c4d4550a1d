"""The library's functions for notebooks and scripts: evaluate and train.

Each function can be called directly, even inside a running event loop such as a notebook's, which
then waits. Most functions have an async version. `code_rl` imports this file on first use.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from code_rl.data import find_data, load_test_splits, subsample
from code_rl.data.load import in_language
from code_rl.engine.checkpoints import checkpoint_record
from code_rl.evaluation import evaluate as evaluate_splits
from code_rl.evaluation import evaluation_metrics, open_policy
from code_rl.grading import Problem
from code_rl.grading.sandbox import check_executor, connect_executor, shared_executor
from code_rl.policy import Policy, cap_max_tokens
from code_rl.training.assembly import prepare
from code_rl.training.config import Config, make_config
from code_rl.training.objective import environment_of
from code_rl.training.report import REPORT, open_run, write_report
from code_rl.training.run import sampling_of
from code_rl.training.runs.directory import read_metrics, settings_of
from code_rl.training.trainer import train_run
from code_rl.util.concurrency import wait_for
from code_rl.util.errors import ConfigError, DataError
from code_rl.util.files import writes
from code_rl.util.progress import View, progress
from code_rl.util.registry import GIVEN, name_object

OF_A_POLICY: tuple[str, ...] = ("eval_limit", "eval_samples", "max_tokens", "seed", "temperature")
"""The settings that apply to a given policy."""
OF_AN_EVALUATION: tuple[str, ...] = (
    *(*OF_A_POLICY, "backend", "device", "dtype", "environment", "executor", "isolation"),
    *("max_turns", "renderer", "reward_timeout", "sandbox_concurrency", "threads"),
)


async def evaluate_async(
    problems: str | Sequence[Problem] | Mapping[str, Sequence[Problem]] | None = None,
    *,
    policy: Policy | None = None,
    checkpoint: str | Path | None = None,
    **settings: Any,
) -> dict[str, float]:
    """Evaluate on held-out problems: greedily, and with `eval_samples` samples per problem. Returns
    the `eval/…` metrics of docs/metrics.md.

    The policy is a `checkpoint` (RUN or RUN/NAME, with that run's settings unless others are
    given), or else `policy`, which stays open, or else the base model `model_name`.

    The problems are a list, a mapping from split names to lists, or a value of `test_dataset=`.
    With None they are the run's held-out problems, or the built-in ones for a base model.
    `eval_limit` limits the problems per split, with the same choice each time; given problems are
    all used unless it is set.

    Raises ConfigError for a setting that is unknown or would have no effect, DataError for an empty
    split, CheckpointError for a damaged checkpoint.
    """

    settings = _plain(settings)
    config, state_path = _settings(policy, checkpoint, settings)
    async with contextlib.AsyncExitStack() as stack:
        splits = await held_out_splits(problems, config, int(settings.get("eval_limit", -1)))
        for name, split in splits.items():
            if not split:
                raise DataError(f"the split {name!r} is empty; give at least one problem")
        if policy is None:
            policy = await stack.enter_async_context(opened_policy(config, state_path))
        sampling = sampling_of(config, cap_max_tokens(config.max_tokens, policy.context, print))
        samples = config.eval_samples
        total = sum(map(len, splits.values())) * (1 + samples)
        with progress(View().console, "evaluated", total) as judged:
            results = await evaluate_splits(
                policy,
                splits,
                samples=samples,
                sampling=sampling,
                seed=config.seed,
                on_verdict=judged,
            )
    return evaluation_metrics(results)


def evaluate(
    problems: str | Sequence[Problem] | Mapping[str, Sequence[Problem]] | None = None,
    *,
    checkpoint: str | Path | None = None,
    **settings: Any,
) -> dict[str, float]:
    """Run `evaluate_async` and wait for it; a running event loop is blocked meanwhile. Raises
    ConfigError for a `policy`, which belongs to the event loop that made it, and the errors of
    `evaluate_async`."""
    if "policy" in settings:
        raise ConfigError(
            "policy= belongs to the event loop that made it; await evaluate_async(…, policy=…) "
            "there"
        )
    return wait_for(evaluate_async(problems, checkpoint=checkpoint, **settings))


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A run's directory, and the records of its `metrics.jsonl`: one per step, after the evaluation
    before training (step −1)."""

    log_path: Path
    metrics: Sequence[Mapping[str, Any]] = field(repr=False)

    def frame(self) -> Any:
        """Return the metrics as a `pandas.DataFrame`, indexed by step (−1: before training). Raises
        ConfigError without pandas."""
        try:
            import pandas as pd
        except ImportError:
            raise ConfigError("frame() needs pandas; run: pip install pandas") from None
        return pd.DataFrame(self.metrics).set_index("step")


RunLike = str | Path | TrainingResult


async def train_async(**settings: Any) -> TrainingResult:
    """Train as `code-rl train` does, with the same settings. The `log_path` of an earlier run
    resumes that run (None: a new directory). `reward`, `advantage`, `loss`, `environment` and
    `prompt` may be objects; `dataset` and `test_dataset` may be lists of problems.

    Cancelling interrupts the run, which can then be resumed. Raises ConfigError for a wrong setting
    before anything is written, and another CodeRLError, with how to resume, if the run fails.
    """

    settings = _plain(settings)
    config, log_path, resumes = prepare(settings)
    if config.dry_run:
        raise ConfigError(
            "dry_run=true trains nothing; for the forecast run: code-rl train dry_run=true"
        )
    _say_what_has_no_name(settings)
    _, folder = await train_run(config, log_path, resumes)
    return TrainingResult(folder, read_metrics(folder))


def train(**settings: Any) -> TrainingResult:
    """Run `train_async` and wait for it, with its settings and errors; a running event loop is
    blocked meanwhile. Ctrl-C interrupts the run, which can then be resumed."""
    return wait_for(train_async(**settings))


def report(
    run: RunLike,
    *,
    compare: RunLike | Sequence[RunLike] = (),
    out: str | Path | None = None,
    browse: bool = True,
) -> Path:
    """Write a run's page into the file `out` (None: `report.html` in its directory), with the runs
    in `compare` beside it; open it in the browser if `browse`, and return its absolute path.

    Raises DataError if there is no run, ConfigError if `out` cannot be written or more than seven
    runs are compared.
    """
    import webbrowser

    others = [compare] if isinstance(compare, RunLike) else compare
    folders = [
        each.log_path if isinstance(each, TrainingResult) else Path(each).expanduser()
        for each in (run, *others)
    ]
    page = Path(out or folders[0] / REPORT).expanduser().absolute()
    if page.suffix != ".html":
        raise ConfigError(f"out={out} would be replaced by a page; name a file that ends in .html")
    readers = [open_run(folder) for folder in folders]
    with writes(page, "file"):
        write_report(readers, page)
    if browse:
        webbrowser.open(page.as_uri())
    return page


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in the form of the command line: paths become text, objects become names,
    lists of texts are joined by commas, and settings that are None are left out."""
    return {name: _as_typed(name, value) for name, value in settings.items() if value is not None}


def _as_typed(name: str, value: Any) -> Any:
    """Convert the Python value of a setting to the form that the command line gives; an object for
    a setting of text gets a name, by which this process finds it again."""
    import chz

    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str | bool):
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
        return ",".join(value)
    if isinstance(value, Real):  # NumPy's numbers, too
        number = int(value) if isinstance(value, Integral) else float(value)
        whole = float(number).is_integer()
        return str(int(number)) if whole else number  # a field of numbers accepts both
    field = chz.chz_fields(Config).get(name)
    takes_text = field is not None and field.x_type in (str, str | None)
    return name_object(value) if takes_text else value


def _say_what_has_no_name(settings: Mapping[str, Any]) -> None:
    """Print once which objects must be passed again on a resume."""
    unnamed = [f"{name}=" for name, value in settings.items() if str(value).startswith(GIVEN)]
    if unnamed:
        print(
            f"{', '.join(unnamed)}: objects of this process, which no other can import; to resume "
            "this run, give them to code_rl.train again"
        )


def _settings(
    policy: Policy | None, checkpoint: str | Path | None, given: Mapping[str, Any]
) -> tuple[Config, str | None]:
    """Return the settings of an evaluation, and the path of the weights (None: the base model, or
    `policy`). Raises ConfigError for a given setting without effect, for both a policy and a
    checkpoint, and for a checkpoint that does not exist."""

    if policy is not None and checkpoint is not None:
        raise ConfigError("policy= and checkpoint= are both given; give one of them")
    what, allowed = "checkpoint=", OF_AN_EVALUATION
    if policy is not None:
        what, allowed = "policy=", OF_A_POLICY
    elif checkpoint is None:
        what, allowed = "an evaluation", (*OF_AN_EVALUATION, "model_name")
    for name in given:
        if name not in allowed:
            raise ConfigError(
                f"{name}= has no effect with {what}; use any of: {', '.join(allowed)}"
            )
    if checkpoint is None:
        return make_config({"dataset": "builtin", **given}), None
    run, record = checkpoint_record(str(checkpoint))
    return make_config(given, settings_of(run)), record["state_path"]


async def held_out_splits(
    problems: str | Sequence[Problem] | Mapping[str, Sequence[Problem]] | None,
    config: Config,
    limit: int,
) -> Mapping[str, Sequence[Problem]]:
    """Return held-out problems by split. Problems given as a list are the split `test`; given ones
    are limited to `limit` per split (-1: all), those of a data set (None: the run's own) to
    `config.eval_limit`. The choice is the same each time.

    Raises ConfigError for a single problem or an unknown data set, and DataError for unusable
    files.
    """

    if isinstance(problems, Problem):
        raise ConfigError("problems= is one problem; give a list: [problem]")
    if isinstance(problems, Mapping):
        splits = {name: subsample(split, limit) for name, split in problems.items()}
    elif problems is not None and not isinstance(problems, str):
        splits = {"test": subsample(problems, limit)}
    else:
        data = find_data(config.dataset, problems or config.test_dataset, evaluates=True)
        splits = await shared_executor.run(
            lambda executor: load_test_splits(data, config.eval_limit, executor)
        )
    return {name: in_language(split, config.language) for name, split in splits.items()}


@contextlib.asynccontextmanager
async def opened_policy(config: Config, state_path: str | None) -> AsyncIterator[Policy]:
    """Open a policy with these settings, the weights at `state_path` (None: the base model) and a
    sandbox of its own; the block's end closes all. Raises ConfigError if the sandbox or a part
    cannot be used."""

    environment = environment_of(config)
    async with contextlib.AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        executor = connect_executor(**config.connection)
        stack.push_async_callback(executor.aclose)
        await check_executor(executor, config.language)
        policy, _ = await open_policy(
            config, config.training, scratch, state_path, executor, environment, stack
        )
        yield replace(policy, cpu_limit_s=config.reward_timeout)
