"""The verb `rejudge`: a run's programs under stronger tests, and which data it was trained on with a verdict that they change; a cut run goes on."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import chz

from code_rl.commands.judge import Program, judge_into, sandbox_on_demand
from code_rl.commands.verdict_files import VerdictLog
from code_rl.concurrency import default_concurrency
from code_rl.config.setting import AT_LEAST_1, option
from code_rl.errors import ConfigError, DataError, typed
from code_rl.judging.judge import judge
from code_rl.judging.verdict import VerdictKind
from code_rl.loading.load import find_data, load_train_problems
from code_rl.loading.on_disk import Store
from code_rl.objective import objective_of
from code_rl.preparation.bench import make_entry
from code_rl.preparation.ledger import content_key
from code_rl.problems.files import sources_digest
from code_rl.problems.problem import Problem
from code_rl.progress import JudgingView
from code_rl.replaying.rejudge import Completion, Find, compare_passing, completions, last_sound_checkpoint
from code_rl.reports.diagnostics import DISAGREEMENTS
from code_rl.runs.recorded_run import RecordedRun, open_recorded_run
from code_rl.sandbox.connect import EXECUTOR_DOC, ISOLATION_DOC
from code_rl.sandbox.executor import Executor, OnDemand
from code_rl.settings import make_settings

REJUDGED = "rejudge.jsonl"
MAX_SHOWN = 20


@chz.chz
class RejudgeConfig:
    """Judge a run's stored programs again with a data set's tests, and name what was trained on a verdict that they change."""

    # fmt: off
    log_path: str = chz.field(doc="Directory of the run.")
    dataset: str | None = option(None,
        "Problems with stronger tests, as train's dataset=; matched by id and statement, all of their tests count. None: the run's own data set, "
        "which strengthen=true looks at.")
    strengthen: bool = option(False,
        "In place of judging again, run the programs of each problem that passed on new inputs, made of the problem's own: where they disagree, "
        f"its tests are weak. Written to {DISAGREEMENTS} in the run's directory, from where the report names them.")
    new_inputs: int = option(32, "With strengthen=true: inputs to try for a problem.", AT_LEAST_1)
    out: str | None = option(None, f"Verdicts, one completion a line (None: {REJUDGED} in the run's directory).")
    executor: str = option("auto", EXECUTOR_DOC)
    isolation: Literal["auto", "full", "landlock", "none"] = option("auto", ISOLATION_DOC)
    concurrency: int | None = option(None, "Programs that run at once (None: the executor's default).", AT_LEAST_1)
    # fmt: on

    @chz.validate
    def _fits(self) -> None:
        if not self.strengthen and self.dataset is None:
            raise ConfigError(
                "give dataset=, the problems with stronger tests, or strengthen=true to look for weak ones"
            )
        if not self.strengthen and self.new_inputs != 32:
            raise ConfigError(f"new_inputs={self.new_inputs} does nothing without strengthen=true")
        if self.strengthen and self.out is not None:
            raise ConfigError(f"out={self.out} does nothing with strengthen=true, which writes {DISAGREEMENTS}")


def finder(problems: Sequence[Problem]) -> Find:
    """Among `problems` the one with a recorded problem's id and statement; those of a store are read when they are asked for."""
    places = {} if isinstance(problems, Store) else {problem.id: place for place, problem in enumerate(problems)}

    def find(recorded: Problem) -> Problem | None:
        if isinstance(problems, Store):
            found = problems.get(recorded.id) if problems.has(recorded.id) else None
        else:
            found = problems[places[recorded.id]] if recorded.id in places else None
        return found if found and found.statement.split() == recorded.statement.split() else None

    return find


def rejudge_command(given: Mapping[str, str]) -> int:
    """Run the verb; 0 when every program got a verdict about itself, else 1. Raises ConfigError and DataError for bad input."""
    named = {"log_path" if name == "run" and "log_path" not in given else name: each for name, each in given.items()}
    config = make_settings(RejudgeConfig, named)
    recording = open_recorded_run(Path(config.log_path).expanduser())
    out = os.path.expanduser(config.out or recording.log_path / REJUDGED)
    return asyncio.run(_run(config, recording, out))


async def _run(config: RejudgeConfig, recording: RecordedRun, out: str) -> int:
    pins = recording.settings.get("resolved", {}).get("data", {}) if config.dataset is None else {}
    data = find_data(config.dataset or recording.config.dataset, None, evaluates=False, pins=pins)
    async with sandbox_on_demand(config) as executor:
        find = finder(await load_train_problems(data, OnDemand(executor)))
        if not config.strengthen:
            return await _rejudge(config, recording, find, executor(), out)
        path = recording.log_path / DISAGREEMENTS
        print(await compare_passing(recording, find, executor(), config.new_inputs, path))
        return 0


async def _rejudge(config: RejudgeConfig, recording: RecordedRun, find: Find, executor: Executor, out: str) -> int:
    """Each different program of a problem once, then a row for every completion."""
    objective, limit = objective_of(recording.config), recording.config.reward_timeout
    every, digests, met = objective.reward.all_tests, dict[str, str | None](), dict[str, Problem]()
    judged_by = sources_digest("code_rl.judging")

    def key_of(each: Completion) -> str | None:
        recorded = each.scored.group.problem
        name = recorded.id
        if name not in digests:
            problem, met[name] = find(recorded), recorded
            digests[name] = make_entry(problem, 0)[0].digest if problem is not None else None
        return digests[name] and content_key(digests[name], judged_by, each.trajectory.last.code, limit, every)

    asked = {key_of(each) for each in completions(recording)} - {None}
    missing = [name for name, digest in digests.items() if digest is None]
    if not asked:
        raise DataError(f"dataset={config.dataset} has none of the {len(missing)} problems of the run in {recording.log_path}")  # fmt: skip

    def programs() -> Iterator[tuple[Program, str]]:
        for each in completions(recording):
            key = key_of(each)
            if key in asked:
                asked.remove(key)
                yield Program(each.scored.group.problem.id, "", each.trajectory.last.code), str(key)

    tally, view = Tally(), JudgingView(len(asked))
    with VerdictLog(out, ("step", "group", "attempt", "completion", "problem_id")) as log:
        if log.earlier:
            view.say(f"{log.earlier} verdicts are here from before")
        with view.progress(executor.description) as on_verdict:
            ask = partial(judge, executor=executor, cpu_limit_s=limit, all_tests=every)
            at_once = config.concurrency or default_concurrency(executor)
            await judge_into(log, programs(), lambda name: find(met[name]), ask, at_once, on_verdict)
        rows = ((each, key_of(each)) for each in completions(recording))
        log.finish(tally.take(each, each.row(objective, log.row(key) if key else None)) for each, key in rows)
    _say(config, recording, tally, missing, out)
    return 1 if tally.unjudged else 0


@dataclass(slots=True)
class Tally:
    """What the rows come to: completions by step and fate, the data trained on a verdict that has changed, in words."""

    counts: Counter[tuple[int, str]] = field(default_factory=Counter)
    changed: list[str] = field(default_factory=list)
    unjudged: int = 0

    def take(self, each: Completion, row: dict[str, Any]) -> dict[str, Any]:
        """Count a row, and give it back."""
        self.unjudged += row["verdict"] is not None and VerdictKind(row["verdict"]).undecided
        self.counts[each.step, "datums"] += row["trained"]
        if row["changed"]:
            fate = "fell" if (row["reward_now"] or 0) < (row["reward"] or 0) else "rose"
            self.counts[each.step, fate if row["trained"] else "untrained"] += 1
            if row["trained"]:
                self.changed.append(f"{each.where}: {row['problem_id']}, {row['was']} → {row['verdict']}")
        return row


def _say(config: RejudgeConfig, recording: RecordedRun, tally: Tally, missing: Sequence[str], out: str) -> None:
    """The table of steps, what changed, and where to go on."""
    run, counts, changed = recording.log_path, tally.counts, tally.changed
    widths = {"step": 6, "datums": 7, "fell": 6, "rose": 6, "untrained": 11}
    steps = sorted({step for (step, what), count in counts.items() if count and what != "datums"})
    rows = ([step, *(counts[step, what] for what in list(widths)[1:])] for step in steps)
    lines = [
        "  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths.values(), strict=True))
        for row in (widths, *rows)
    ]
    for part, what in ((lines, "steps"), (changed, "data")):
        more = [f"… and {len(part) - MAX_SHOWN} more {what}"] if part[MAX_SHOWN:] else []
        print("\n".join([*part[:MAX_SHOWN], *more]))
    if missing:
        shown = ", ".join(missing[:MAX_SHOWN]) + (" …" if len(missing) > MAX_SHOWN else "")
        print(
            f"{len(missing)} problems of the run are not in dataset={config.dataset}, or have another statement there, and were not judged: {shown}"
        )
    datums = sum(count for (_, what), count in counts.items() if what == "datums")
    print(f"{len(changed)} of {datums} datums were trained on a verdict that has changed; every completion is in {out}")
    if tally.unjudged:
        print(f"{tally.unjudged} completions got no verdict about themselves; run the same command again")
    if changed:
        first = min(step for (step, what), count in counts.items() if count and what in ("fell", "rose"))
        name = last_sound_checkpoint(run, first)
        then = f"dataset={config.dataset}" + (" max_tests=None" if recording.config.max_tests is not None else "")
        where = f"the last checkpoint before is {name}, to go on from there: {typed('train')} fork={run / str(name)} {then} log_path=NEW"
        print(f"the first is of step {first}; {where if name else f'no checkpoint lies before it: begin anew with {then}'}")  # fmt: skip
