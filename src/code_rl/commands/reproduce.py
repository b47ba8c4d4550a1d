"""The verb `reproduce`: a published result again: the evaluation before, the training, the evaluation after, in one folder, and a table.

What was published, and with what, is a file of `recipes/reproduce/`. Everything is done by the functions that `train` and `eval` are; each goes on in its
own folder, so that a reproduction killed anywhere goes on when the same command runs again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import chz

from code_rl.assembly import open_data
from code_rl.backends.connect import preflight
from code_rl.commands.evaluate import LIVECODEBENCH, data_of, eval_command
from code_rl.commands.reproduce_view import AFTER, BEFORE, benchmarks_of, evaluated, forecast_lines, write_table
from code_rl.commands.train import confirm, prepare, train_command
from code_rl.config import FACTS, RECIPES, Config
from code_rl.config.setting import option
from code_rl.errors import ConfigError
from code_rl.evaluation.benchmarks import BENCHMARKS, check_name
from code_rl.evaluation.settings import FROM_RUN, EvalConfig, make_eval_config
from code_rl.files import check_out, make_folder, write_atomically
from code_rl.settings import make_settings, suggestion

STATE, RUN = "reproduce.json", "run"
OWN_WORK = ("log_path", "behavior_if_log_dir_exists", "checkpoint", "endpoint", "samples", "model", "compare")
WINDOW = ("version", "start_date", "end_date")
WHO = ("model", "backend")
UNBOUND = ("asking", "concurrency", "request_timeout", "patience", "executor", "isolation", "device", "dry_run")


@chz.chz
class ReproduceConfig:
    """Evaluate, train, evaluate again, and print the published values beside ours. Run again, it goes on where it was.

    Every setting of `train` and of `eval` may be given beside and then comes before the published one; one that both have goes to both. What differs
    from the published is said under the table.
    """

    recipe: str | None = option(
        None, "Which result: qwen3-4b, qwen3.5-4b, deepcoder, code-r1 or code-r1-2k. `reproduce NAME` will do."
    )
    out: str | None = option(
        None, "Folder of it all: before/, run/, after/ and results.md. None: ~/code-rl-logs/reproduce-NAME."
    )
    dry_run: bool = option(False, "Print what would be done, with a forecast of tokens and cost, and stop.")


@dataclass(frozen=True, slots=True)
class Published:
    """One published result: a recipe to train by, how to evaluate, the values, and what `theirs` was made with."""

    name: str
    source: str
    recipe: str
    evals: Sequence[Mapping[str, Any]]
    values: Sequence[Mapping[str, Any]]
    theirs: Mapping[str, Any]
    train: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, int] = field(default_factory=dict)
    unpublished: Sequence[str] = ()


def read_published(name: str | None) -> Published:
    """The result called `name`. Raises ConfigError, with those that exist, for any other."""
    names = sorted(path.stem for path in (RECIPES / "reproduce").glob("*.toml"))
    if name not in names:
        wrong = "which result? " if name is None else f"unknown result {name!r}{suggestion(name, names)}; "
        raise ConfigError(f"{wrong}code-rl reproduce NAME, with one of {', '.join(names)}")
    with (RECIPES / "reproduce" / f"{name}.toml").open("rb") as file:
        told = tomllib.load(file)
    return Published(str(name), evals=told.pop("eval"), values=told.pop("published"), **told)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done in the folder `out`: settings of the training, and of each evaluation without who is asked.

    `binding` must stay as it is while the folder goes on; `done` are the steps that an earlier process has done, None where none began.
    """

    published: Published
    out: Path
    train: Mapping[str, Any]
    evals: Mapping[str, Mapping[str, Any]]
    config: Config
    binding: Mapping[str, str]
    done: Sequence[str] | None

    def asked(self) -> dict[str, EvalConfig]:
        """Each evaluation before, by name."""
        return {name: make_eval_config(self.asks(BEFORE, name)) for name in self.evals}

    def asks(self, phase: str, name: str) -> dict[str, Any]:
        """The settings of one evaluation: of the model before, or of the run's last checkpoint."""
        who: dict[str, Any] = {"checkpoint": str(self.out / RUN)}
        if phase == BEFORE:
            who = {"model": self.config.model_name, "backend": self.config.backend}
        return {**self.evals[name], **who, "out": str(self.out / phase / name)}

    def steps(self) -> list[str]:
        """Their folders, in order."""
        return [*(f"{BEFORE}/{name}" for name in self.evals), RUN, *(f"{AFTER}/{name}" for name in self.evals)]


def reproduce_command(given: Mapping[str, Any]) -> int:
    """Run `code-rl reproduce`. Returns 0, 1 where samples are missing from the table, or what a step that stopped returned."""
    plan, dry_run = make_plan(given)
    print("\n".join(forecast_lines(plan, whole=dry_run)), flush=True)
    if dry_run:
        return 0
    confirm(plan.config, plan.done is not None, f"; evaluations before and after: {evaluated(plan)} that no cap limits")
    done, missing = list(plan.done or ()), False
    if RUN not in done:
        _look_ahead(plan)
    _keep(plan, done)
    for step in plan.steps():
        if step in done:
            continue
        print(f"\n{plan.published.name}: {step} ({plan.steps().index(step) + 1} of {len(plan.steps())})", flush=True)
        phase, _, name = step.partition("/")
        code = train_command(plan.train) if step == RUN else eval_command(plan.asks(phase, name))
        if code not in (0, 1) or (code and step == RUN):
            print(f"to go on: the same command, out={plan.out}")
            return code
        if code == 0:
            done.append(step)
            _keep(plan, done)
        missing |= code == 1
    print("\n" + write_table(plan))
    return int(missing)


def make_plan(given: Mapping[str, Any]) -> tuple[Plan, bool]:
    """The plan that the settings mean, everything in it checked, and whether it is only to be shown. Nothing is written.

    Raises ConfigError for a setting that neither verb has, that a reproduction decides itself, or that `train` or `eval` refuse, and for a
    folder that holds something else: settings of another run there would be taken for these.
    """
    own, of_train, of_eval = _sorted(given)
    published = read_published(own.recipe)
    out = Path(own.out or f"~/code-rl-logs/reproduce-{published.name}").expanduser()
    # What must stay as it was: the result's name, and all that was given but places and patience.
    free = {name for name, facts in FACTS.items() if not facts.fixed} - {"max_steps"} | {*UNBOUND, "out", "recipe"}
    bound = {name: str(value) for name, value in given.items() if name not in free}
    binding = {"result": published.name} | bound
    done = _begun(out, binding)
    train: dict[str, Any] = {"recipe": published.recipe, **published.train}
    if "test_dataset" not in given:
        train["eval_every"] = -1  # the benchmarks before and after are the evaluation
    train |= {**of_train, "log_path": str(out / RUN)}
    try:
        config, _, _ = prepare(train)
    except ConfigError as error:
        begun = "" if done is None else f" (a reproduction was begun in out={out}; another out= begins anew)"
        raise ConfigError(f"{error}{begun}") from error
    if config.max_steps < 1 or config.save_every == 0:
        raise ConfigError(
            "a reproduction has an end and is evaluated there: give max_steps= of at least 1, and save_every= above 0"
        )
    fields = chz.chz_fields(EvalConfig)
    # Each said, so that the evaluation after takes none of them from the run, and both are alike.
    usual = {name: fields[name]._default for name in (*FROM_RUN.values(), "greedy") if name not in WHO}
    usual |= {"renderer": config.renderer, "seed": config.seed, "dtype": config.dtype}
    plan = Plan(published, out, train, {}, config, binding, done)
    for each in _benchmarks(published.evals, of_eval):
        settings = {**usual, **each}
        if "sweep" in each:
            del settings["max_tokens"]
        label = "-".join(Path(name).name for name in benchmarks_of(each))
        plan = replace(plan, evals={**plan.evals, label: settings})
        make_eval_config(plan.asks(BEFORE, label))
        for name, file in data_of(settings.get("data"), benchmarks_of(each)).items():
            check_name(name, file)
    return plan, own.dry_run


def _sorted(given: Mapping[str, Any]) -> tuple[ReproduceConfig, dict[str, Any], dict[str, Any]]:
    """What was given: the verb's own settings, those of `train`, those of `eval`."""
    own, *others = ({*chz.chz_fields(cls)} for cls in (ReproduceConfig, Config, EvalConfig))
    for name in given:
        if name in OWN_WORK:
            raise ConfigError(
                f"{name}= has no effect on a reproduction, which keeps its own run and evaluations in out="
            )
        if name not in own.union(*others):
            raise ConfigError(f"unknown setting {name!r}{suggestion(name, own.union(*others))}")
    mine = make_settings(ReproduceConfig, {name: value for name, value in given.items() if name in own})
    of_train, of_eval = ({name: given[name] for name in given if name in each - own} for each in others)
    return mine, of_train, of_eval


def _benchmarks(published: Sequence[Mapping[str, Any]], asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The evaluations, with what was given: `benchmark=` takes the place of them all, `data=` goes to whose it is."""
    chosen = published if "benchmark" not in asked else published[:1]
    found = []
    for each in chosen:
        settings = {**each, **asked}
        names = benchmarks_of(settings)
        parts = [part for part in str(settings.pop("data", "")).split(",") if part]
        mine = [part for part in parts if ":" not in part or part.partition(":")[0] in names]
        if mine:
            settings["data"] = ",".join(mine)
        one_file = data_of(settings.get("data"), names).get(LIVECODEBENCH) if mine else None
        for name in WINDOW:
            file_has_it = name == "version" and one_file is not None and Path(one_file).expanduser().is_file()
            if name not in asked and (LIVECODEBENCH not in names or file_has_it):
                settings.pop(name, None)
        if "max_tokens" in asked:
            settings.pop("sweep", None)
        if "sweep" in asked:
            settings.pop("max_tokens", None)
        found.append(settings)
    for part in str(asked.get("data", "")).split(","):
        name, colon, _ = part.partition(":")
        if colon and name in BENCHMARKS and not any(name in benchmarks_of(each) for each in found):
            raise ConfigError(f"data={part}: no benchmark of this reproduction is {name}")
    return found


def _begun(out: Path, binding: Mapping[str, str]) -> list[str] | None:
    """The steps done in `out`; None where nothing began. Raises ConfigError where it holds anything but a reproduction with this binding."""
    state = out / STATE
    if not state.is_file():
        check_out(out, lambda _: False, "reproduction")
        return None
    try:
        earlier = json.loads(state.read_text(encoding="utf-8"))
        before, done = dict(earlier["settings"]), list(earlier["done"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{state} cannot be read ({error}); choose another out") from error
    differ = [
        f"{name} was {before.get(name, 'not given')}, is {binding.get(name, 'not given')}"
        for name in sorted(before.keys() | binding.keys())
        if before.get(name) != binding.get(name)
    ]
    if differ:
        raise ConfigError(
            f"out={out} holds another reproduction: {'; '.join(differ)}. It goes on only as it began: choose another out="
        )
    return done


def _keep(plan: Plan, done: Sequence[str]) -> None:
    make_folder(plan.out)
    state = {"settings": plan.binding, "done": list(done)}
    write_atomically(plan.out / STATE, json.dumps(state, indent=2) + "\n")


def _look_ahead(plan: Plan) -> None:
    """Open all that the training and the evaluations read, and ask their back end and sandbox: what is wrong there is known before anything is paid."""

    async def open_training() -> None:
        await preflight(plan.config)
        async with contextlib.AsyncExitStack() as stack:
            await open_data(plan.config, {}, stack)

    asyncio.run(open_training())
    for name in plan.evals:
        eval_command({**plan.asks(BEFORE, name), "dry_run": True})
