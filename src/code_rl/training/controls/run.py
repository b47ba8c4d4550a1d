"""Run every arm, evaluate its final weights, and compare them in one table: each arm's results, its
difference from the base model, and rl's lead over it. Finished arms are kept, so an interrupted
command can continue."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import chz

from code_rl.data import fingerprint_of
from code_rl.engine.checkpoints import checkpoint_record, read_config
from code_rl.evaluation import evaluate
from code_rl.evaluation.pass_at_k import Estimate, crossed_difference
from code_rl.grading import Problem
from code_rl.policy import cap_max_tokens
from code_rl.policy.completion_log import InFlight
from code_rl.training.assembly import prepare
from code_rl.training.config import Config
from code_rl.training.controls.arms import RL, ControlPlan, check_plan, lines
from code_rl.training.library import held_out_splits, opened_policy
from code_rl.training.report.overview import wall_seconds
from code_rl.training.run import sampling_of
from code_rl.training.runs.directory import read_metrics
from code_rl.training.trainer import train_run
from code_rl.util.errors import ConfigError
from code_rl.util.files import LOCK, digest, make_folder, only_writer, write_atomically

OUTCOMES = "outcomes"
PLACES = (
    *("backend", "device", "executor", "isolation", "sandbox_concurrency", "threads", "dry_run"),
    *("max_tokens_total", "max_cost", "prices", "outage_timeout"),
)
"""Settings that may differ between two processes of one command: places and caps."""

Splits = Mapping[str, Sequence[Problem]]


async def run_controls(plan: ControlPlan, *, dry_run: bool) -> int:
    """Run a plan and print its table; with `dry_run` print the plan alone. Return the exit code: 0,
    or that of a run that was ended by a signal. The same call goes on after an interruption.

    Raises ConfigError for a plan that cannot be run, another process in `out`, or outcomes there of
    another plan.
    """
    check_plan(plan)
    for line in lines(plan) if dry_run else ():
        print(line)
    if dry_run:
        return 0
    make_folder(plan.out / OUTCOMES)
    with only_writer(plan.out / LOCK, f"out={plan.out}"):
        return await _run_arms(plan)


async def _run_arms(plan: ControlPlan) -> int:
    """Evaluate the base at each temperature, run each arm and seed that has no outcome, in the
    order of the plan, and write the tables. Return the exit code; no table is written if a signal
    ended a run."""
    results: dict[str, dict[str, Any]] = {}
    first = plan.evaluation(plan.seeds[0])
    splits = await held_out_splits(None, first, first.eval_limit)
    start = None
    if first.init_from is not None:  # check_plan has looked whether it fits the model
        _, start = checkpoint_record(first.init_from, "init_from")
    for temperature in plan.base_temperatures:
        config = chz.replace(first, temperature=temperature)
        print(f"base at temperature {temperature:g}", flush=True)
        name = f"base-{temperature:g}"
        results[name] = await _evaluated(plan, name, config, start, splits)
    for number, (arm, seed) in enumerate(plan.runs):
        name = f"{arm}-{seed}"
        print(f"run {number + 1} of {len(plan.runs)}: {arm}, seed {seed}", flush=True)
        if not (plan.out / OUTCOMES / f"{name}.json").exists():
            code, _ = await train_run(*prepare(plan.settings(arm, seed)), signals=True)
            if code:
                return code
        results[name] = await _arm(plan, name, seed, splits)
    print(write_tables(plan, results))
    return 0


async def _arm(plan: ControlPlan, name: str, seed: int, splits: Splits) -> dict[str, Any]:
    """Return the outcomes and the cost (sampled tokens, seconds) of a finished run, evaluating it
    if it was not.

    Raises ConfigError for a run of another length or with other training problems than the first.
    """
    config, folder = plan.evaluation(seed), plan.out / name
    _, record = checkpoint_record(str(folder))
    if record["step"] != config.max_steps:
        raise ConfigError(
            f"max_steps={config.max_steps}, but the run in {folder} has {record['step']} steps; "
            "raise the cap that ended it, or delete the folder of a longer run, and repeat this"
        )
    compared = plan.out / "{}-{}".format(*plan.runs[0])
    if _trained_on(folder) != _trained_on(compared):
        raise ConfigError(
            f"dataset={config.dataset} had other problems in {folder} than in {compared}; restore "
            "them and delete the folder of the run with others, or give another out="
        )
    found = await _evaluated(plan, name, config, record, splits)
    metrics = read_metrics(folder)
    tokens = sum(record.get("tokens/completion", 0) for record in metrics)
    return {**found, "tokens": tokens, "seconds": wall_seconds(metrics)}


def _trained_on(folder: Path) -> str:
    """Return the digest of the training problems of the run in a folder. Raises ConfigError if its
    settings cannot be read."""
    return str(read_config(folder)["resolved"]["problems"]["dataset="])


async def _evaluated(
    plan: ControlPlan,
    name: str,
    config: Config,
    checkpoint: Mapping[str, Any] | None,
    splits: Splits,
) -> dict[str, Any]:
    """Return greedy and sampled outcomes by split and problem, as (completions with a verdict,
    passed), of a checkpoint (None: the base model). They are kept in `out/outcomes/NAME.json` and
    read from there the next time.

    Raises ConfigError if `out` has outcomes with other settings, weights or problems. Answers kept
    from an interrupted evaluation are used only if all of these are the same.
    """
    path = plan.out / OUTCOMES / f"{name}.json"
    state_path = None if checkpoint is None else str(checkpoint["state_path"])
    settings = {name: value for name, value in chz.asdict(config).items() if name not in PLACES} | {
        "own": [plan.own_temperature, plan.own_top_p] if name.startswith("own") else None,
        "weights": checkpoint and checkpoint.get("state_sha256", state_path),
        "held-out problems": {split: fingerprint_of(each) for split, each in splits.items()},
    }
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _refuse_other(path, kept["settings"], settings)
        return kept
    async with contextlib.AsyncExitStack() as stack:
        policy = await stack.enter_async_context(opened_policy(config, state_path))
        folder = make_folder(plan.out / OUTCOMES / name)
        log, same = InFlight(folder), digest(settings)
        stack.callback(log.close)
        found = await evaluate(
            policy,
            splits,
            samples=config.eval_samples,
            sampling=sampling_of(config, cap_max_tokens(config.max_tokens, policy.context, print)),
            seed=config.seed,
            log=lambda scope: log.group_log(0, f"{same} {scope}"),
        )
    outcomes = {split: each.outcomes for split, each in found.items()}
    result = {"settings": settings, "outcomes": outcomes}
    write_atomically(path, json.dumps(result) + "\n")
    return result


def _refuse_other(path: Path, kept: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ConfigError, naming the first, if a value in `now` differs from the one that the file
    `path` has `kept`."""
    for name, value in now.items():
        if kept.get(name) != value:
            raise ConfigError(
                f"{name} is {value}, and {kept.get(name)} in {path}; give the same, or another out="
            )


MODES = {"Pass@1": "sampled", "greedy": "greedy"}
NOTE = (
    "Per cent. In brackets 95% intervals by a bootstrap over problems and seeds, paired: the same "
    "problems, the same seeds. The base is compared at the temperature of the run; its other "
    "temperatures are rows of their own."
)
Results = Mapping[str, Mapping[str, Any]]
Rates = dict[str, dict[str, float]]
"""The share of completions that pass, by mode and problem."""


@dataclass(frozen=True, slots=True)
class ArmRow:
    """One arm on one split, by mode: its mean, its mean minus the base's, and rl's mean minus its
    own."""

    split: str
    arm: str
    seeds: int
    mean: Mapping[str, float]
    minus_base: Mapping[str, Estimate | None]
    rl_minus: Mapping[str, Estimate | None]
    tokens: int
    seconds: float


def write_tables(plan: ControlPlan, results: Results) -> str:
    """Write `controls.json` and `controls.md` into `out`, replacing earlier ones; return the table,
    with the files' paths below. Raises OSError."""
    found = rows(plan, results)
    text = markdown(found)
    settings = {**plan.given, **asdict(plan), "out": str(plan.out)}
    del settings["given"]
    content = {"settings": settings, "rows": [asdict(row) for row in found]}
    write_atomically(plan.out / "controls.json", json.dumps(content, indent=1) + "\n")
    write_atomically(plan.out / "controls.md", text + "\n")
    return f"{text}\ntables: {plan.out / 'controls.md'}, controls.json"


def rows(plan: ControlPlan, results: Results) -> list[ArmRow]:
    """Return a row for the base model at each temperature and for every arm, its seeds together, on
    every split and, with several splits, on all of them together (`all`). Tokens and seconds are
    sums over the seeds. `results` has every run of the plan, named `ARM-SEED` or
    `base-TEMPERATURE`."""
    base = f"base-{plan.evaluation(plan.seeds[0]).temperature:g}"
    splits = list(results[base]["outcomes"])
    found = []
    for names in [[each] for each in splits] + ([splits] if splits[1:] else []):
        rates = {name: _rates(each["outcomes"], names) for name, each in results.items()}
        arms = {f"base, T={t:g}": [f"base-{t:g}"] for t in plan.base_temperatures}
        arms |= {arm: [f"{arm}-{seed}" for seed in plan.seeds] for arm in plan.arms}
        for arm, runs in arms.items():
            cost = [
                sum(results[run].get(what, 0) for run in runs) for what in ("tokens", "seconds")
            ]
            shown = _row(rates, arm, runs, base, arms.get(RL))
            found.append(
                ArmRow(names[0] if len(names) == 1 else "all", arm, len(runs), *shown, *cost)
            )
    return found


def _row(
    rates: Mapping[str, Rates], arm: str, runs: Sequence[str], base: str, rl: Sequence[str] | None
) -> tuple[dict[str, float], dict[str, Estimate | None], dict[str, Estimate | None]]:
    """Return the means and differences of an arm's runs by heading; the difference of an arm from
    itself, and from `rl` without that arm, is None."""
    mean, minus_base, rl_minus = {}, {}, {}
    for heading, mode in MODES.items():
        own, bases = [rates[name][mode] for name in runs], [rates[base][mode]]
        mean[heading] = fmean(fmean(each.values()) for each in own)
        minus_base[heading] = None if runs == [base] else _difference(bases, own)
        compared = rl is not None and arm != RL
        rl_minus[heading] = (
            _difference(own, [rates[name][mode] for name in rl or ()]) if compared else None
        )
    return mean, minus_base, rl_minus


def _rates(outcomes: Mapping[str, Any], splits: Sequence[str]) -> Rates:
    """Return the pass rate of each problem of some splits, by mode. Problems without any verdict
    are left out."""
    return {
        mode: {
            problem: passed / judged
            for split in splits
            for problem, (judged, passed) in outcomes[split][mode].items()
            if judged
        }
        for mode in MODES.values()
    }


def _difference(first: Sequence[dict[str, float]], second: Sequence[dict[str, float]]) -> Estimate:
    """Return the mean of second minus first on the problems that both have, with its interval. A
    single run is compared with every seed."""
    problems = sorted(set.intersection(*(set(each) for each in [*first, *second])))
    seeds = max(len(first), len(second))
    values = [
        [[each[problem] for problem in problems] for each in side] * (seeds // len(side))
        for side in (first, second)
    ]
    return crossed_difference(*values)


HEAD = (
    *("held out", "arm", "seeds", "Pass@1", "greedy", "Pass@1 − base", "greedy − base"),
    *("rl − this: Pass@1", "rl − this: greedy", "tokens sampled", "minutes"),
)


def cells(row: ArmRow) -> list[str]:
    """Return a row as text, one cell for each of HEAD."""
    differences = [*row.minus_base.values(), *row.rl_minus.values()]
    return [
        *(row.split, row.arm, str(row.seeds)),
        *(f"{100 * value:.1f}" for value in row.mean.values()),
        *(_signed(each) for each in differences),
        *(f"{row.tokens:,}", f"{row.seconds / 60:.1f}"),
    ]


def _signed(found: Estimate | None) -> str:
    """Return a difference with its interval in percentage points, "" for None."""
    if found is None:
        return ""
    return f"{100 * found.value:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def markdown(found: Sequence[ArmRow]) -> str:
    """Return the table in Markdown, with its note below."""
    body = [HEAD, ["---"] * len(HEAD), *map(cells, found)]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in body), "", NOTE])
