"""The answer about a run, and its curves: plain data that the page, the live page and the terminal all show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from code_rl.evaluation.figures import Estimate, combined, wilson
from code_rl.reports.diagnostics import MIN_STEPS, diagnose, never_trained, steps_taken, weak_tests
from code_rl.reports.groups import as_number, as_text
from code_rl.reports.run import RunReader
from code_rl.runs.smoke import STEPS, smoke_test

MAX_POINTS = 2_500
MAX_COLUMNS = 400
SECRET = ("key", "token", "password", "secret")
NOT_SECRET = ("max_tokens",)
"""Beginnings of names."""
NEVER_TRAINED = "The model was never trained."

Record = Mapping[str, Any]


def overview(reader: RunReader) -> dict[str, Any]:
    """Everything but the rollouts, as JSON."""
    records = [_merged(reader, step) for step in sorted(reader.metrics)]
    steps = [record for record in records if record["step"] >= 0]
    splits = split_results(records, trained_on(reader.config))
    return {
        "name": as_text(reader.log_path.name, 400),
        "path": as_text(str(reader.log_path), 2_000),
        "version": reader.version,
        "notices": reader.damage(),
        "facts": facts(reader, steps),
        "progress": progress(reader, steps),
        "answer": answer(splits, steps),
        "splits": splits,
        "totals": totals(records, reader),
        "findings": [
            finding.as_dict() for finding in (*weak_tests(reader.log_path), *diagnose(records, reader.config))
        ],
        "smoke": smoke_test(records) if len(steps) >= STEPS else [],
        "steps": columns(steps),
        "evals": columns([record for record in records if any(name.startswith("eval/") for name in record)]),
        "settings": settings(reader.config, steps),
        "rollouts": {
            "rule": reader.rollouts.shelf.rule(),
            "groups": reader.rollouts.groups,
            "problems": len(reader.rollouts.problems),
        },
    }


def side_by_side(readers: Sequence[RunReader]) -> list[dict[str, Any]]:
    """The overview of each run, with where they stand beside one another."""
    views = [overview(reader) for reader in readers]
    lines = standings(views)
    return [{**view, "standings": lines} for view in views]


def _merged(reader: RunReader, step: int) -> dict[str, Any]:
    tally = reader.rollouts.tallies.get(step)
    return {**reader.metrics[step], **(tally.metrics() if tally else {}), "step": step}


def trained_on(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """How many problems of each held-out split are among those to train on, as the run found at its start; empty where it did not look."""
    resolved = config.get("resolved")
    found = resolved.get("trained_on") if isinstance(resolved, dict) else None
    return found if isinstance(found, dict) else {}


def split_results(records: Sequence[Record], trained: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Per held-out split: before and after, each with what was measured (Pass@1 with its interval, Pass@k, greedy, format)."""
    found = []
    for name in _split_names(records):
        mine = [record for record in records if _score(record, name) is not None]
        full = [record for record in mine if as_number(record.get(f"eval/{name}/pass@1")) is not None]
        shown = full or mine
        if not shown:
            continue
        before = shown[0] if shown[0]["step"] < 0 or len(shown) > 1 else None
        after = shown[-1] if shown[-1] is not before else None
        found.append(
            {
                "name": as_text(name, 200),
                "problems": as_number(shown[-1].get(f"eval/{name}/problems")),
                "trained": as_number(trained.get(name)),
                "before": _evaluated(before, name),
                "after": _evaluated(after, name),
                "sampled": bool(full),
            }
        )
        found[-1]["change"] = _change(found[-1:]) if before and after else None
    return found


def answer(splits: Sequence[Mapping[str, Any]], steps: Sequence[Record]) -> dict[str, str]:
    """Did it learn? A headline, a sentence with the figures behind it, and a tone for colour."""
    pairs = [split for split in splits if split["before"] and split["after"]]
    if not pairs:
        return _answer_without_evaluation(splits, steps)
    figures = _went(pairs)
    if never_trained(steps):
        return _answer("bad", NEVER_TRAINED, f"No step had a completion to train on. {figures}")
    if len(steps) < MIN_STEPS:
        return _answer("flat", "Too few steps to judge.", f"Only {steps_taken(steps)}. {figures}")
    change = _change(pairs)
    if "low" not in change:
        return _answer("flat", "How surely it moved is not known.", f"{figures} No intervals were measured.")
    risen, fallen = ([split["name"] for split in pairs if way(_change([split]))] for way in (_risen, _fallen))
    apart = [f"clearly {way} on {_listed(names)}" for way, names in (("up", risen), ("down", fallen)) if names]
    if len(pairs) > 1 and apart:
        figures = f"{figures[:-1]}; {', '.join(apart)}."
    if _risen(change):
        return _answer("good", "Yes, it learned.", figures)
    return (
        _answer("bad", "No, it got worse.", figures)
        if _fallen(change)
        else _answer("flat", "No clear change.", figures)
    )


def _answer(tone: str, headline: str, sentence: str) -> dict[str, str]:
    return {"tone": tone, "headline": headline, "sentence": sentence}


def _went(splits: Sequence[Mapping[str, Any]]) -> str:
    """Before, after and the change between, pooled over the problems of all splits."""
    before, after = (sum(w * split[side]["score"] for w, split in _weighted(splits)) for side in ("before", "after"))
    what = "Pass@1" if all(split["sampled"] for split in splits) else "greedy Pass@1"
    n = sum(int(split["problems"] or 0) for split in splits)
    on = f" on {n} problem{'s' if n != 1 else ''}{_seen(splits)}" if n else ""
    return f"Held-out {what} went from {_percent(before)} to {_percent(after)}{on}: {_points_of(_change(splits))}."


def _weighted(splits: Sequence[Mapping[str, Any]]) -> list[tuple[float, Mapping[str, Any]]]:
    """Each split with its share of the problems; equal shares where a number of problems is not known."""
    sizes = [split["problems"] or 0 for split in splits]
    sizes = sizes if all(sizes) else [1] * len(splits)
    return [(size / sum(sizes), split) for size, split in zip(sizes, splits, strict=True)]


def _change(splits: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """After minus before over the problems of these splits.

    A run keeps no figure of a single problem, so the two sides count as independent: the interval is wider than that of a paired difference.
    """
    return difference([(w, split["after"], split["before"]) for w, split in _weighted(splits)])


def difference(sides: Sequence[tuple[float, Record, Record]]) -> dict[str, float]:
    """The weighted mean of first minus second: `value`, and `low` and `high` (95%) where every side has an interval."""
    if any("low" not in side for _, *both in sides for side in both):
        return {"value": sum(w * (first["score"] - second["score"]) for w, first, second in sides)}
    found = combined(
        [
            (sign * w, Estimate(side["score"], side["low"], side["high"], 0))
            for w, *both in sides
            for sign, side in zip((1, -1), both, strict=True)
        ]
    )
    return {"value": found.value, "low": found.low, "high": found.high}


def _risen(change: Mapping[str, float]) -> bool:
    return change.get("low", 0.0) > 0


def _fallen(change: Mapping[str, float]) -> bool:
    return change.get("high", 0.0) < 0


def standings(views: Sequence[Mapping[str, Any]]) -> list[str]:
    """By split, where each run ended and whether the best is clearly above the next; nothing of a single run."""
    names = dict.fromkeys(split["name"] for view in views for split in view["splits"])
    return [_standing(name, views) for name in names] if len(views) > 1 else []


def _standing(name: str, views: Sequence[Mapping[str, Any]]) -> str:
    found = [(view["name"], split) for view in views for split in view["splits"] if split["name"] == name]
    ends = sorted(
        ((run, split["after"] or split["before"], split) for run, split in found), key=lambda end: -end[1]["score"]
    )
    if len(ends) < 2:
        return f"{name}: measured in one run only"
    shown = ", ".join(f"{run} {_percent(side['score'])} ({_measured(split, side)})" for run, side, split in ends)
    if len({(split["problems"], split["sampled"]) for _, _, split in ends}) > 1:
        return f"{name}: {shown}: not comparable, they were not measured alike"
    (first, best, _), (second, other, _) = ends[:2]
    change = difference([(1.0, best, other)])
    if "low" not in change:
        return f"{name}: {shown}; no intervals were measured"
    said = (
        f"{first} is clearly above {second}" if _risen(change) else f"no clear difference between {first} and {second}"
    )
    return f"{name}: {shown}; {said}: {_points_of(change)}"


def _measured(split: Mapping[str, Any], side: Record) -> str:
    """On what and when a figure was measured."""
    taken = side["step"] + 1
    return ", ".join(
        [
            *([f"{split['problems']:.0f} problems"] if split["problems"] else []),
            *([] if split["sampled"] else ["greedy"]),
            f"after {taken} step{'s' if taken != 1 else ''}" if taken else "before training",
        ]
    )


def _answer_without_evaluation(splits: Sequence[Mapping[str, Any]], steps: Sequence[Record]) -> dict[str, str]:
    if not steps:
        return _answer("flat", "Nothing to tell yet.", "No training step has been logged so far.")
    correct = [value for record in steps for value in [as_number(record.get("mean_correct"))] if value is not None]
    window = max(1, len(correct) // 5)
    evaluated = any(split["before"] for split in splits)
    begun = "Too early to say." if evaluated else "Held-out problems were not evaluated."
    sentence = "No step has a verdict yet."
    if correct:
        early, late = sum(correct[:window]) / window, sum(correct[-window:]) / window
        sentence = (
            f"On its own training problems {_percent(early)} of the completions passed in the first {window} "
            f"step{'s' if window > 1 else ''} and {_percent(late)} in the last."
        )
    if never_trained(steps):
        return _answer("bad", NEVER_TRAINED, f"No step had a completion to train on. {sentence}")
    return _answer("flat", begun, sentence)


def facts(reader: RunReader, steps: Sequence[Record]) -> list[list[str]]:
    """On what, with what: a few labelled lines."""
    config = reader.config
    shape = config.get("resolved") if isinstance(config.get("resolved"), dict) else {}
    rows: list[tuple[str, Any]] = [
        ("Model", config.get("model_name")),
        ("Back end", config.get("backend")),
        ("Training problems", config.get("dataset")),
        ("Sandbox", config.get("executor")),
        ("Batch", f"{shape.get('prompts')} prompts × {shape.get('completions')}" if shape else None),
        ("Learning rate", config.get("learning_rate")),
        ("LoRA rank", config.get("lora_rank")),
        ("Seed", config.get("seed")),
        ("Recipe", config.get("recipe")),
        ("Fork of", _forked(shape.get("forked")) if shape else None),
    ]
    problems = len(reader.rollouts.problems)
    if problems and steps:
        rows.append(("Problems met", f"{problems:,}"))
    return [[label, as_text(value, 300)] for label, value in rows if value is not None]


def _forked(forked: Any) -> str | None:
    """Where a fork comes from, and which settings differ."""
    if not isinstance(forked, dict) or not isinstance(forked.get("changed"), dict):
        return None
    changed = [f"{name}={now} (was {was})" for name, (was, now) in forked["changed"].items()]
    return f"{forked.get('run')}, checkpoint {forked.get('checkpoint')}: {', '.join(changed) or 'no setting differs'}"


def progress(reader: RunReader, steps: Sequence[Record]) -> dict[str, Any]:
    """How far the run is."""
    planned = as_number(reader.config.get("max_steps"))
    done = int(steps[-1]["step"]) + 1 if steps else 0
    return {
        "done": done,
        "planned": int(planned) if planned and planned > 0 else None,
        "finished": bool(planned and planned > 0 and done >= planned),
    }


def wall_seconds(records: Sequence[Record]) -> float:
    """Seconds of a run's steps and evaluations, by its metrics: of all processes that it took, without their starts."""
    return sum(as_number(record.get(name)) or 0.0 for record in records for name in ("time/step", "time/eval"))


def totals(records: Sequence[Record], reader: RunReader) -> dict[str, Any]:
    """Seconds by stage, tokens, completions, verdicts; money where a metric says so."""

    def total(name: str) -> float:
        return sum(as_number(record.get(name)) or 0.0 for record in records)

    stages = {name: total(f"time/{name}") for name in ("sample", "score", "train", "eval")}
    whole = wall_seconds(records)
    verdicts: dict[str, float] = {}
    money: float | None = None
    for record in records:
        for name, value in record.items():
            number = as_number(value)
            if number is not None and name.startswith("verdicts/"):
                verdicts[name.removeprefix("verdicts/")] = verdicts.get(name.removeprefix("verdicts/"), 0.0) + number
            if number is not None and name in ("cost/usd", "cost/step_usd"):
                money = (money or 0.0) + number
    return {
        "seconds": whole,
        "stages": {**stages, "other": max(0.0, whole - sum(stages.values()))},
        "tokens": {name: total(f"tokens/{name}") for name in ("prompt", "completion", "eval")},
        "completions": sum(verdicts.values()),
        "verdicts": dict(sorted(verdicts.items(), key=lambda item: -item[1])),
        "retries": total("sandbox/retries") if any("sandbox/retries" in record for record in records) else None,
        "usd": money,
        "free": reader.config.get("backend") == "embedded",
    }


def columns(records: Sequence[Record]) -> dict[str, Any]:
    """Numeric metrics as columns. More than MAX_POINTS rows become means of `every` rows each."""
    names = sorted({name for record in records for name, value in record.items() if as_number(value) is not None})
    every = -(-len(records) // MAX_POINTS) if records else 1
    chunks = [records[start : start + every] for start in range(0, len(records), every)]
    elapsed, tokens = _running(records, ("time/step", "time/eval")), _running(records, ("tokens/completion",))
    ends = [min(start + every, len(records)) - 1 for start in range(0, len(records), every)]
    table = {name: [_chunk_mean(chunk, name) for chunk in chunks] for name in names[:MAX_COLUMNS] if name != "step"}
    return {
        "every": every,
        "step": [records[end]["step"] for end in ends],
        "elapsed": [round(elapsed[end], 2) for end in ends],
        "spent": [int(tokens[end]) for end in ends],
        "columns": table,
    }


def settings(config: Mapping[str, Any], steps: Sequence[Record]) -> list[list[str]]:
    """The settings as text, in order; anything that looks like a secret is not shown. Of max_tokens, what the model's context left."""
    shown = []
    asked, used = (
        config.get("max_tokens"),
        max((as_number(record.get("max_tokens")) or 0 for record in steps), default=0),
    )
    if not config.get("max_tokens_schedule") and isinstance(asked, int) and 0 < used < asked:
        config = {**config, "max_tokens": f"{used:.0f} ({asked} asked, the context has no more)"}
    for name, value in list(config.items())[:500]:
        hidden = any(word in name.lower() for word in SECRET) and not name.startswith(NOT_SECRET)
        shown.append([as_text(name, 200), "(not shown)" if hidden and value else as_text(value, 2_000)])
    return shown


def _split_names(records: Sequence[Record]) -> list[str]:
    names: dict[str, None] = {}
    for record in records:
        for key in record:
            if key.startswith("eval/") and key.endswith(("/pass@1", "/mean_correct")) and key.count("/") >= 2:
                names[key.removeprefix("eval/").rpartition("/")[0]] = None
    return list(names)


def _evaluated(record: Record | None, split: str) -> dict[str, Any] | None:
    if record is None:
        return None
    prefix = f"eval/{split}/"
    found: dict[str, Any] = {"step": record["step"], "score": _score(record, split)}
    problems = as_number(record.get(f"{prefix}problems"))
    if problems and f"{prefix}pass@1" not in record:  # one greedy completion a problem
        found["low"], found["high"] = wilson(round(found["score"] * problems), round(problems))
    names = {"low": "pass@1_low", "high": "pass@1_high", "greedy": "mean_correct", "format": "format_rate"}
    for key, name in names.items():
        value = as_number(record.get(prefix + name))
        if value is not None:
            found[key] = value
    ks = sorted(
        (int(key.removeprefix(prefix + "pass@")), key)
        for key in record
        if key.startswith(prefix + "pass@") and key.removeprefix(prefix + "pass@").isdecimal()
    )
    if ks and ks[-1][0] > 1:
        found |= {"k": ks[-1][0], "pass_k": as_number(record.get(ks[-1][1]))}
    return found


def _score(record: Record, split: str) -> float | None:
    sampled = as_number(record.get(f"eval/{split}/pass@1"))
    return as_number(record.get(f"eval/{split}/mean_correct")) if sampled is None else sampled


def _running(records: Sequence[Record], names: Sequence[str]) -> list[float]:
    total, sums = 0.0, []
    for record in records:
        total += sum(as_number(record.get(name)) or 0.0 for name in names)
        sums.append(total)
    return sums


def _chunk_mean(chunk: Sequence[Record], name: str) -> float | None:
    values = [value for record in chunk for value in [as_number(record.get(name))] if value is not None]
    return float(f"{sum(values) / len(values):.6g}") if values else None


def _seen(splits: Sequence[Mapping[str, Any]]) -> str:
    """Whether these problems were trained on, as far as that is known."""
    trained = [split["trained"] for split in splits]
    if None in trained:
        return ""
    total = sum(trained)
    return f", {total:.0f} of them also among those to train on" if total else " that it never trained on"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _points_of(change: Mapping[str, float]) -> str:
    """A change in points, with its interval where there is one."""
    value, *ends = (
        f"{round(100 * change[key], 1) + 0.0:+.1f}".replace("-", "−")
        for key in ("value", "low", "high")
        if key in change
    )
    return f"{value} points" + (f" (95% interval {ends[0]} to {ends[1]})" if ends else "")
