"""The verb `rejudge`: a run's programs under stronger tests, and which data it was trained on with a verdict that they change; a cut run goes on."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import chz

from code_rl.commands.judge import Journal, Program, judge_into, keyed
from code_rl.errors import ConfigError, DataError, typed
from code_rl.objective import objective_of
from code_rl.problems.load import find_data, load_train_problems
from code_rl.problems.problem import Problem
from code_rl.problems.settle import OnDemand
from code_rl.problems.store import Store
from code_rl.replaying.disagreement import DISAGREEMENTS, compare_passing
from code_rl.replaying.recording import Recording, open_recording
from code_rl.replaying.rejudge import completions, last_sound_checkpoint
from code_rl.reward.verdict import VerdictKind
from code_rl.sandbox.executor import Executor
from code_rl.settings import make_settings

REJUDGED = "rejudge.jsonl"
MAX_SHOWN = 20


@chz.chz
class RejudgeConfig:
    """Judge a run's stored programs again with a data set's tests, and name what was trained on a verdict that they change."""

    run: str = chz.field(doc="Directory of the run.")
    dataset: str | None = chz.field(
        default=None,
        doc="Problems with stronger tests, as train's dataset=; matched by id, all of their tests count. None: the run's own data set, "
        "which strengthen=true looks at.",
    )
    strengthen: bool = chz.field(
        default=False,
        doc="In place of judging again, run the programs of each problem that passed on new inputs, made of the problem's own: where they disagree, "
        f"its tests are weak. Written to {DISAGREEMENTS} in the run's directory, from where the report names them.",
    )
    new_inputs: int = chz.field(default=32, doc="With strengthen=true: inputs to try for a problem.")
    out: str | None = chz.field(
        default=None, doc=f"Verdicts, one completion a line (None: {REJUDGED} in the run's directory)."
    )
    executor: str = chz.field(
        default="auto",
        doc="Where programs run: 'embedded', or Sandbox Fusion URLs, comma-separated. auto: SANDBOX_URL if set, else embedded.",
    )
    isolation: Literal["auto", "full", "landlock", "none"] = chz.field(
        default="auto",
        doc="Isolation level of the embedded sandbox; auto takes the strongest that this machine allows.",
    )
    concurrency: int | None = chz.field(default=None, doc="Programs that run at once (None: the executor's default).")

    @chz.validate
    def _fits(self) -> None:
        for name in ("concurrency", "new_inputs"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if not self.strengthen and self.dataset is None:
            raise ConfigError(
                "give dataset=, the problems with stronger tests, or strengthen=true to look for weak ones"
            )
        if not self.strengthen and self.new_inputs != 32:
            raise ConfigError(f"new_inputs={self.new_inputs} does nothing without strengthen=true")
        if self.strengthen and self.out is not None:
            raise ConfigError(f"out={self.out} does nothing with strengthen=true, which writes {DISAGREEMENTS}")


class Problems:
    """Those of a data set by id."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self._problems = problems
        built_in = () if isinstance(problems, Store) else problems
        self._places = {problem.id: place for place, problem in enumerate(built_in)}

    def has(self, problem_id: str) -> bool:
        """Whether there is a problem with this id."""
        return self._problems.has(problem_id) if isinstance(self._problems, Store) else problem_id in self._places

    def get(self, problem_id: str) -> Problem:
        """The problem with this id. Raises KeyError where there is none."""
        if isinstance(self._problems, Store):
            return self._problems.get(problem_id)
        return self._problems[self._places[problem_id]]


def rejudge_command(given: Mapping[str, str]) -> int:
    """Run the verb; 0 when every program got a verdict about itself, else 1. Raises ConfigError and DataError for bad input."""
    config = make_settings(RejudgeConfig, given)
    recording = open_recording(Path(config.run).expanduser())
    out = os.path.expanduser(config.out or recording.log_path / REJUDGED)
    return asyncio.run(_run(config, recording, out))


async def _run(config: RejudgeConfig, recording: Recording, out: str) -> int:
    from code_rl.sandbox.connect import connect_executor

    @cache
    def executor() -> Executor:
        return connect_executor(config.executor, isolation=config.isolation, concurrency=config.concurrency)

    pins = recording.settings.get("resolved", {}).get("data", {}) if config.dataset is None else {}
    data = find_data(config.dataset or recording.config.dataset, None, evaluates=False, pins=pins)
    try:
        problems = Problems(await load_train_problems(data, OnDemand(executor)))
        if config.strengthen:
            path = recording.log_path / DISAGREEMENTS
            found = await compare_passing(recording, problems.has, problems.get, executor(), config.new_inputs, path)
            print(found)
            return 0
        return await _rejudge(config, recording, problems, executor(), out)
    finally:
        if executor.cache_info().currsize:
            await executor().aclose()


async def _rejudge(
    config: RejudgeConfig, recording: Recording, problems: Problems, executor: Executor, out: str
) -> int:
    """Each different program of a problem once, then a row for every completion."""
    objective, limit = objective_of(recording.config), recording.config.reward_timeout
    met = dict.fromkeys(each.line.group.problem.id for each in completions(recording))
    known = {problem_id for problem_id in met if problems.has(problem_id)}
    if not known:
        raise DataError(
            f"dataset={config.dataset} has none of the {len(met)} problems of the run in {recording.log_path}"
        )
    tests = {problem_id: hash_of(problems.get(problem_id)) for problem_id in known}

    def key_of(problem_id: str, code: str | None) -> tuple[Program, str]:
        program = Program(problem_id, "", code)
        return next(keyed([program], f"{tests[problem_id]} {limit} {objective.reward.all_tests}"))

    def programs() -> Iterator[tuple[Program, str]]:
        asked: set[str] = set()
        for each in completions(recording):
            if each.line.group.problem.id in known:
                program, key = key_of(each.line.group.problem.id, each.trajectory.last.code)
                if key not in asked:
                    asked.add(key)
                    yield program, key

    counts: Counter[tuple[int, str]] = Counter()
    changed: list[str] = []
    unjudged = 0

    def rows(journal: Journal) -> Iterator[dict[str, Any]]:
        nonlocal unjudged
        for each in completions(recording):
            problem_id = each.line.group.problem.id
            judged = journal.row(key_of(problem_id, each.trajectory.last.code)[1]) if problem_id in known else None
            row = each.row(objective, judged)
            unjudged += judged is not None and VerdictKind(row["verdict"]).ours
            if row["trained"]:
                counts[each.line.step, "datums"] += 1
            if row["changed"]:
                fate = "fell" if (row["reward_now"] or 0) < (row["reward"] or 0) else "rose"
                counts[each.line.step, fate if row["trained"] else "untrained"] += 1
                if row["trained"]:
                    changed.append(f"{each.where}: {problem_id}, {row['was']} → {row['verdict']}")
            yield row

    with Journal(out) as journal:
        if journal.earlier:
            print(f"{journal.earlier} verdicts are here from before")
        await judge_into(
            journal, programs(), problems.get, executor, concurrency=config.concurrency, cpu_limit_s=limit,
            all_tests=objective.reward.all_tests,
        )  # fmt: skip
        journal.finish(rows(journal))
    missing = [problem_id for problem_id in met if problem_id not in known]
    _say(config, recording, counts, changed, missing, out)
    if unjudged:
        print(f"{unjudged} completions got no verdict about themselves; run the same command again")
    return 1 if unjudged else 0


def hash_of(problem: Problem) -> str:
    """What of a problem decides verdicts."""
    from code_rl.preparation.bench import make_entry

    return make_entry(problem, 0)[0].digest


def _say(
    config: RejudgeConfig,
    recording: Recording,
    counts: Counter[tuple[int, str]],
    changed: Sequence[str],
    missing: Sequence[str],
    out: str,
) -> None:
    """The table of steps, what changed, and where to go on."""
    run, columns = recording.log_path, ("datums", "fell", "rose", "untrained")
    steps = sorted({step for step, what in counts if what in columns[1:]})
    print(f"{'step':>6}  {'datums':>7}  {'reward fell':>12}  {'reward rose':>12}  {'changed, untrained':>19}")
    for step in steps[:MAX_SHOWN]:
        cells = (counts[step, what] for what in columns)
        print("  ".join(f"{cell:>{width}}" for cell, width in zip((step, *cells), (6, 7, 12, 12, 19), strict=True)))
    if len(steps) > MAX_SHOWN:
        print(f"… and {len(steps) - MAX_SHOWN} more steps")
    for line in changed[:MAX_SHOWN]:
        print(line)
    if len(changed) > MAX_SHOWN:
        print(f"… and {len(changed) - MAX_SHOWN} more")
    if missing:
        shown = ", ".join(missing[:MAX_SHOWN]) + (" …" if len(missing) > MAX_SHOWN else "")
        print(f"{len(missing)} problems of the run are not in dataset={config.dataset}, and were not judged: {shown}")
    datums = sum(count for (_, what), count in counts.items() if what == "datums")
    print(f"{len(changed)} of {datums} datums were trained on a verdict that has changed; every completion is in {out}")
    if not changed:
        return
    first = min(step for step, what in counts if what in ("fell", "rose"))
    name = last_sound_checkpoint(run, first)
    if name is None:
        print(
            f"the first is of step {first}, and no checkpoint lies before it: begin anew with dataset={config.dataset}"
        )
    else:
        print(
            f"the first is of step {first}; the last checkpoint before is {name}, to go on from there: "
            f"{typed('train')} fork={run / name} dataset={config.dataset} log_path=NEW"
        )
