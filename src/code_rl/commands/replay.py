"""`code-rl replay`: a recorded run under other settings of the algorithm, or (`verify=true`) checked against itself."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import chz

from code_rl.config import FACTS, Config
from code_rl.config.setting import option
from code_rl.errors import ConfigError, DataError
from code_rl.files import write_lines_atomically, writes
from code_rl.replaying.steps import ReplayedStep, differences, replay_steps
from code_rl.runs.recorded_run import RecordedRun, open_recorded_run
from code_rl.settings import make_settings

MAX_SHOWN = 20
COLUMNS = ("step", "reward", "skipped", "datums", "mean |A|", "loss", "clipped")
REPLAYABLE = tuple(name for name, facts in FACTS.items() if facts.replayable)


@chz.chz
class _Own:
    log_path: str = chz.field(doc="Directory of the recorded run.")
    verify: bool = option(
        False, "Compute every reward, advantage and metric again and report what differs; exit code 1 if anything does."
    )
    out: str | None = option(
        None, "A file that gets the replayed metrics, one JSON object a step; replaced if it is there."
    )


def _with_replayable() -> type[Any]:
    """`_Own` with a field for each replayable setting of `Config`, absent by default."""
    fields = chz.chz_fields(Config)
    described = {name: option(None, fields[name]._doc) for name in REPLAYABLE}
    types = {name: Optional[fields[name].x_type] for name in REPLAYABLE}  # noqa: UP045 - a type that is only known here
    about = """Score a run's recorded steps again under other settings of the algorithm, without model or sandbox.

    What is not given stays as the run had it.
    """
    body = {"__module__": __name__, "__doc__": about, "__annotations__": types, **described}
    return chz.chz(type("ReplayConfig", (_Own,), body))


ReplayConfig: Any = _with_replayable()


def replay_command(given: Mapping[str, Any]) -> int:
    """Run `code-rl replay`. Returns 1 when `verify` found a difference, else 0."""
    for name in given:
        if name in chz.chz_fields(Config) and name not in chz.chz_fields(ReplayConfig):
            raise ConfigError(
                f"{name}={given[name]} has no effect on a replay: nothing is sampled, run or trained; what can be changed is "
                f"{', '.join(REPLAYABLE)}"
            )
    wanted = make_settings(ReplayConfig, given)
    log_path = Path(wanted.log_path).expanduser()
    recording = open_recorded_run(log_path)
    changes = {name: given[name] for name in REPLAYABLE if name in given}
    config = make_settings(Config, _recorded_settings(recording, changes), changes)
    changed = [name for name in REPLAYABLE if getattr(config, name) != getattr(recording.config, name)]
    if wanted.verify and changed:
        raise ConfigError(
            f"verify=true compares with what the run recorded, and {changed[0]}={getattr(config, changed[0])} is not what it ran "
            f"with ({getattr(recording.config, changed[0])}); leave one of the two out"
        )
    out = _check_out(wanted.out, log_path) if wanted.out is not None else None
    rows: list[str] = []

    def kept(step: ReplayedStep) -> ReplayedStep:
        if out is not None:
            rows.append(json.dumps({"step": step.recorded.step, **step.metrics}) + "\n")
        return step

    steps: Iterator[ReplayedStep] = map(kept, replay_steps(recording, config))
    first = next(steps, None)
    if first is None:
        raise DataError(f"log_path={log_path} holds no recorded step: there is nothing to replay")
    steps = itertools.chain([first], steps)
    code = _verify(recording, steps) if wanted.verify else _compare(recording, steps, changed, config)
    if out is not None:
        write_lines_atomically(out, rows)
    return code


def _check_out(out: str, run: Path) -> Path:
    """The file of the replayed metrics, which appears when it is whole. Raises ConfigError where it cannot be written."""
    path = Path(out).expanduser()
    if path.is_dir():
        raise ConfigError(f"out={out} is a directory; give a file")
    if run.resolve() in path.resolve().parents:
        raise ConfigError(f"out={out} is in the directory of the run that is replayed; give a file elsewhere")
    with writes(out, "file"):
        tempfile.TemporaryFile(dir=path.parent).close()
    return path


def _recorded_settings(recording: RecordedRun, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The run's own settings, without those that a changed one makes meaningless (a clip range belongs to its loss)."""
    settings = chz.asdict(recording.config)
    if "loss" in changes:
        settings |= {"clip_low": None, "clip_high": None}
    if "overlong" in changes:
        settings |= {"overlong_buffer": None, "overlong_penalty": None}
    return settings


def _compare(recording: RecordedRun, steps: Iterator[ReplayedStep], changed: Sequence[str], config: Config) -> int:
    was = [f"{name}={getattr(config, name)} (was {getattr(recording.config, name)})" for name in changed]
    print(f"replay of {recording.log_path}: {', '.join(was) or 'nothing changed'}")
    print("each step on the samples that the run drew; a cell with an arrow is recorded → replayed")
    print("  ".join(f"{name:>19}" if name != "step" else f"{name:>5}" for name in COLUMNS))
    assumed = 0
    for step in steps:
        assumed += step.assumed
        print("  ".join(f"{cell:>19}" if index else f"{cell:>5}" for index, cell in enumerate(_row(step))), flush=True)
    if assumed:
        recording.notices.append(
            f"{assumed} completions were not trained on by the run: their losses are those at a ratio of 1"
        )
    print("".join(f"{notice}\n" for notice in recording.notices), end="")
    return 0


def _row(step: ReplayedStep) -> list[str]:
    before, after = step.recorded.metrics or {}, step.metrics
    recorded = [advantage for scored in step.recorded.groups for advantage in scored.advantages_G]
    replayed = [advantage for scored in step.scored for advantage in scored.advantages_G]
    return [
        str(step.recorded.step),
        *(_arrow(before.get(key), after.get(key)) for key in ("mean_reward", "groups_skipped", "n_datums")),
        _arrow(_magnitude(recorded), _magnitude(replayed)),
        *(_arrow(before.get(key), after.get(key)) for key in ("loss", "clip_fraction")),
    ]


def _magnitude(advantages: Sequence[float | None]) -> float | None:
    known = [abs(advantage) for advantage in advantages if advantage is not None]
    return sum(known) / len(known) if known else None


def _arrow(before: Any, after: Any) -> str:
    shown = [_shown(before), _shown(after)]
    return shown[0] if shown[0] == shown[1] else " → ".join(shown)


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def _verify(recording: RecordedRun, steps: Iterator[ReplayedStep]) -> int:
    found = unanswered = 0
    counts = {"steps": 0, "groups": 0, "completions": 0}
    for step in steps:
        counts["steps"] += 1
        counts["groups"] += len(step.recorded.groups)
        counts["completions"] += sum(len(scored.group.trajectories) for scored in step.recorded.groups)
        unanswered += step.recorded.answers is None and bool(step.metrics.get("n_datums"))
        for difference in differences(step, recording):
            found += 1
            if found <= MAX_SHOWN:
                print(f"step {step.recorded.step}: {difference}")
    if found > MAX_SHOWN:
        print(f"… and {found - MAX_SHOWN} more")
    if unanswered:
        recording.notices.append(
            f"{unanswered} steps have no record of the trainer's log-probabilities: their losses were not compared"
        )
    print("".join(f"{notice}\n" for notice in recording.notices), end="")
    what = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(f"{what} of {recording.log_path}: {found or 'no'} difference{'' if found == 1 else 's'}")
    return 1 if found else 0
