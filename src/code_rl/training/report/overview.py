"""Everything about a run except its rollouts: plain data that the page and the terminal
show."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from code_rl.training.budget import BILLED, Tokens, read_prices
from code_rl.training.report.diagnostics import diagnose
from code_rl.training.report.groups import as_number, as_text, values_of
from code_rl.training.report.run import RunReader
from code_rl.training.report.summary import answer, better, split_results, trained_on
from code_rl.util.errors import CodeRLError, ConfigError

MAX_POINTS = 2_500
MAX_RUNS = 8
SECRET = ("key", "token", "password", "secret")
NOT_SECRET = ("max_tokens",)
"""Prefixes of metric names."""

Record = Mapping[str, Any]


def overview(reader: RunReader) -> dict[str, Any]:
    """Return everything about a run except its rollouts, as JSON data."""
    records = records_of(reader)
    steps = [record for record in records if record["step"] >= 0]
    splits = split_results(records, trained_on(reader.config))
    return {
        "name": as_text(reader.log_path.name),
        "path": as_text(reader.log_path),
        "notices": reader.damage(),
        "facts": facts(reader, steps),
        "progress": progress(reader, steps),
        "overlaps": bool(reader.config.get("max_steps_off_policy")),
        "answer": answer(splits, steps),
        "splits": splits,
        "totals": totals(records, reader),
        "findings": [*map(asdict, diagnose(records, reader.config))],
        "steps": columns(steps),
        "evals": columns(
            [record for record in records if any(name.startswith("eval/") for name in record)]
        ),
        "settings": settings(reader.config),
        "rollouts": {
            "rule": reader.kept.rule(),
            "groups": len(reader.index),
            "problems": len(reader.problems),
        },
    }


def records_of(reader: RunReader) -> list[dict[str, Any]]:
    """Return a run's metrics by step, with sums over the rollouts of each step."""
    tallies = reader.tallies
    return [
        {**metrics, **(tallies[step].metrics() if step in tallies else {}), "step": step}
        for step, metrics in sorted(reader.metrics.items())
    ]


def side_by_side(readers: Sequence[RunReader]) -> list[dict[str, Any]]:
    """Return the overview of each run, each with the comparison of all runs. Raises ConfigError for
    too many runs."""
    if len(readers) > MAX_RUNS:
        raise ConfigError(
            f"compare= names {len(readers) - 1} runs; at most {MAX_RUNS - 1} fit beside one"
        )
    views = [overview(reader) for reader in readers]
    if len(views) < 2:
        return views
    return [{**view, "better": better(views), "of": view["name"]} for view in views]


FACTS = {
    "Model": "model_name",
    "Back end": "backend",
    "Training problems": "dataset",
    "Sandbox": "executor",
    "Batch": "batch",
    "Learning rate": "learning_rate",
    "LoRA rank": "lora_rank",
    "Seed": "seed",
    "Recipe": "recipe",
    "Begins with": "init_from",
    "Problems met": "met",
}
"""The main settings of a run by their labels."""


def facts(reader: RunReader, steps: Sequence[Record]) -> list[list[str]]:
    """Return a few labelled lines about the run's data, model and settings."""
    values, shape = dict(reader.config), reader.config.get("resolved")
    if shape:
        values["batch"] = f"{shape['prompts']} prompts × {shape['completions']}"
    if reader.problems and steps:
        values["met"] = f"{len(reader.problems):,}"
    known = ((label, values.get(name)) for label, name in FACTS.items())
    return [[label, as_text(value, 300)] for label, value in known if value is not None]


def progress(reader: RunReader, steps: Sequence[Record]) -> dict[str, Any]:
    """Return the progress of the run."""
    planned, done = max(reader.config.get("max_steps") or 0, 0), len(steps)
    return {"done": done, "planned": planned, "finished": done >= planned > 0}


def wall_seconds(records: Sequence[Record]) -> float:
    """Return the seconds of a run's steps and evaluations over all of its processes, without their
    startup."""
    return sum(sum(values_of(records, name)) for name in ("time/step", "time/eval"))


def totals(records: Sequence[Record], reader: RunReader) -> dict[str, Any]:
    """Return the seconds by stage, tokens, completions, verdicts, masked completions by reason, and
    the cost."""

    def total(name: str) -> float:
        return sum(values_of(records, name))

    overlaps = reader.config.get("max_steps_off_policy")
    rollouts = ("wait",) if overlaps else ("sample", "score")
    stages = {name: total(f"time/{name}") for name in (*rollouts, "train", "eval")}
    whole = wall_seconds(records)
    verdicts, masked = (_counts(records, prefix) for prefix in ("verdicts/", "masked/"))
    return {
        "seconds": whole,
        "stages": {**stages, "other": max(0.0, whole - sum(stages.values()))},
        "tokens": {name: total(f"tokens/{name}") for name in ("prompt", "completion", "eval")},
        "completions": sum(verdicts.values()),
        "verdicts": verdicts,
        "masked": masked,
        "retries": total("sandbox/retries"),
        "cost": _cost(reader.config, total),
    }


def _cost(config: Mapping[str, Any], total: Callable[[str], float]) -> str:
    """Return the cost of a run as text, by its price table if the file still exists."""
    if config.get("backend") == "embedded" and config.get("prices") is None:
        return "nothing for the embedded engine"
    billed = Tokens(*(int(sum(map(total, names))) for names in BILLED.values()))
    try:
        prices = read_prices(str(config.get("prices")))[0]
        cost = f"{prices.cost(billed):,.2f} {prices.currency}"
    except CodeRLError:
        cost = "unknown without prices="
    return f"{cost} for {', '.join(f'{n:,} {kind}' for kind, n in asdict(billed).items())} tokens"


def _counts(records: Sequence[Record], prefix: str) -> dict[str, float]:
    """Return the sums of the metrics `prefix*` by the rest of their names, the largest first."""
    names = dict.fromkeys(name for record in records for name in record if name.startswith(prefix))
    sums = {
        name.removeprefix(prefix): sum(found)
        for name in names
        if (found := values_of(records, name))
    }
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def columns(records: Sequence[Record]) -> dict[str, Any]:
    """Return numeric metrics as columns. Above MAX_POINTS rows, only every `every`-th row and the
    last are kept."""
    every = max(1, -(-len(records) // MAX_POINTS))
    rows = range((len(records) - 1) % every, len(records), every)
    elapsed, tokens = (
        list(
            itertools.accumulate(sum(record.get(name, 0.0) for name in names) for record in records)
        )
        for names in (("time/step", "time/eval"), ("tokens/completion",))
    )
    known = sorted({name for record in records for name in record} - {"step"})
    table = {name: [_rounded(records[row].get(name)) for row in rows] for name in known}
    return {
        "every": every,
        "step": [records[row]["step"] for row in rows],
        "elapsed": [round(elapsed[row], 2) for row in rows],
        "spent": [int(tokens[row]) for row in rows],
        "columns": {name: values for name, values in table.items() if set(values) != {None}},
    }


def settings(config: Mapping[str, Any]) -> list[list[str]]:
    """Return the settings as text, in order and without secrets."""
    shown = []
    for name, value in config.items():
        hidden = any(word in name.lower() for word in SECRET) and not name.startswith(NOT_SECRET)
        shown.append([name, "(not shown)" if hidden and value else as_text(value, 2_000)])
    return shown


def _rounded(value: Any) -> float | None:
    number = as_number(value)
    return None if number is None else float(f"{number:.6g}")
