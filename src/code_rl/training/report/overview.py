"""Everything about a run except its rollouts: plain data that the page and the terminal show.

Did the run learn? The held-out results before and after and their difference say so, and which of
several runs is better.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from code_rl.evaluation.pass_at_k import Estimate, combined
from code_rl.training.budget import BILLED, Tokens, read_prices
from code_rl.training.report.diagnostics import MIN_STEPS, diagnose, never_trained, steps_taken
from code_rl.training.report.groups import as_number, as_text, percent, values_of
from code_rl.training.report.run import RunReader
from code_rl.util.errors import CodeRLError, ConfigError
from code_rl.util.rates import wilson
from code_rl.util.redaction import without_keys

MAX_POINTS = 2_500
MAX_RUNS = 8
"""The most runs that a page shows side by side."""

Record = Mapping[str, Any]


def overview(reader: RunReader) -> dict[str, Any]:
    """Return everything about a run except its rollouts, as JSON data, whose names the page's
    scripts and the terminal's text read. `notices` name missing and damaged files. `reader` has
    been refreshed."""
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
    """Return a run's metrics by ascending step, with the columns `rollouts/…` of each step that has
    rollouts."""
    tallies = reader.tallies
    return [
        {**metrics, **(tallies[step].metrics() if step in tallies else {}), "step": step}
        for step, metrics in sorted(reader.metrics.items())
    ]


def side_by_side(readers: Sequence[RunReader]) -> list[dict[str, Any]]:
    """Return the overview of each run, in order, each with the comparison of all runs if there are
    several. Raises ConfigError for more than eight runs."""
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
    """Return (label, value) of the settings in `FACTS` that are known, as text of at most 300
    characters, in that order."""
    values, shape = dict(reader.config), reader.config.get("resolved")
    if shape:
        values["batch"] = f"{shape['prompts']} prompts × {shape['completions']}"
    if reader.problems and steps:
        values["met"] = f"{len(reader.problems):,}"
    known = ((label, values.get(name)) for label, name in FACTS.items())
    return [[label, as_text(value, 300)] for label, value in known if value is not None]


def progress(reader: RunReader, steps: Sequence[Record]) -> dict[str, Any]:
    """Return the steps done and planned (0: no limit), and True for `finished` if all planned ones
    are done."""
    planned, done = max(reader.config.get("max_steps") or 0, 0), len(steps)
    return {"done": done, "planned": planned, "finished": done >= planned > 0}


def wall_seconds(records: Sequence[Record]) -> float:
    """Return the seconds of a run's steps and evaluations over all of its processes, without their
    startup."""
    return sum(sum(values_of(records, name)) for name in ("time/step", "time/eval"))


def totals(records: Sequence[Record], reader: RunReader) -> dict[str, Any]:
    """Return the run's sums: seconds by stage, tokens, completions, verdicts and masked completions
    by reason, the largest first, and the cost as text. With overlapping stages the time of rollouts
    is the trainer's wait for them."""

    def total(name: str) -> float:
        """Return the sum of a metric's finite values over the run."""
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
    """Return the cost of a run as text, by its price table if the file still exists and can be
    read. `total` returns the sum of a metric over the run."""
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
    """Return numeric metrics as columns, one value per kept row (None: not finite or missing), with
    the seconds and sampled tokens spent by then. Above MAX_POINTS rows, only every `every`-th row
    and the last are kept."""
    every = max(1, -(-len(records) // MAX_POINTS))
    rows = range((len(records) - 1) % every, len(records), every)
    elapsed = _accumulated(records, "time/step", "time/eval")
    tokens = _accumulated(records, "tokens/completion")
    known = sorted({name for record in records for name in record} - {"step"})
    table = {name: [_rounded(records[row].get(name)) for row in rows] for name in known}
    return {
        "every": every,
        "step": [records[row]["step"] for row in rows],
        "elapsed": [round(elapsed[row], 2) for row in rows],
        "spent": [int(tokens[row]) for row in rows],
        "columns": {name: values for name, values in table.items() if set(values) != {None}},
    }


def _accumulated(records: Sequence[Record], *names: str) -> list[float]:
    """Return the sums of these metrics up to each record; a missing value counts as 0."""
    by_record = (sum(as_number(row.get(name)) or 0 for name in names) for row in records)
    return [*itertools.accumulate(by_record)]


def settings(config: Mapping[str, Any]) -> list[list[str]]:
    """Return (name, value) of each setting as text, in order and without keys."""
    return [[name, as_text(value, 2_000)] for name, value in without_keys(config).items()]


def _rounded(value: Any) -> float | None:
    """Return a finite number with 6 significant digits, or None for anything else."""
    number = as_number(value)
    return None if number is None else float(f"{number:.6g}")


NEVER_TRAINED = "The model was never trained."


def trained_on(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the number of problems of each held-out split that are also trained on, as the run
    found at its start; empty if it did not check."""
    found: Mapping[str, Any] = config.get("resolved", {}).get("trained_on", {})
    return found


def split_results(records: Sequence[Record], trained: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the measurements of each held-out split before and after (Pass@1 with its interval,
    Pass@k, greedy, format) and their change. Sampled evaluations are preferred to greedy ones.
    `before` is None with a single evaluation after training, `after` with none; `trained` is None
    if it is unknown."""
    found = []
    for name in _split_names(records):
        mine = [record for record in records if f"eval/{name}/mean_correct" in record]
        full = [record for record in mine if f"eval/{name}/pass@1" in record]
        shown = full or mine
        before = shown[0] if shown[0]["step"] < 0 or len(shown) > 1 else None
        after = shown[-1] if shown[-1] is not before else None
        found.append(
            {
                "name": as_text(name),
                "problems": shown[-1][f"eval/{name}/problems"],
                "trained": trained.get(name),
                "before": _evaluated(before, name),
                "after": _evaluated(after, name),
                "sampled": bool(full),
            }
        )
        found[-1]["change"] = _change(found[-1:]) if before and after else None
    return found


def answer(splits: Sequence[Mapping[str, Any]], steps: Sequence[Record]) -> dict[str, str]:
    """Return the answer to "did it learn?": `headline`, `sentence` with the results, and `tone` for
    the color (good, bad, flat). It is yes or no only if the 95% interval of the difference excludes
    0 and at least five steps were taken."""
    pairs = [split for split in splits if split["before"] and split["after"]]
    sentence, change = _went(pairs) if pairs else (_on_training(steps), None)
    if not steps:
        return _answer("flat", "Nothing to tell yet.", "No training step has been logged so far.")
    if never_trained(steps):
        return _answer("bad", NEVER_TRAINED, f"No step had a completion to train on. {sentence}")
    if change is None:
        begun = any(split["before"] for split in splits)
        headline = "Too early to say." if begun else "Held-out problems were not evaluated."
        return _answer("flat", headline, sentence)
    if len(steps) < MIN_STEPS:
        return _answer("flat", "Too few steps to judge.", f"Only {steps_taken(steps)}. {sentence}")
    if change["low"] > 0:
        return _answer("good", "Yes, it learned.", sentence)
    if change["high"] < 0:
        return _answer("bad", "No, it got worse.", sentence)
    return _answer("flat", "No clear change.", sentence)


def _answer(tone: str, headline: str, sentence: str) -> dict[str, str]:
    """Return the three parts under their names."""
    return {"tone": tone, "headline": headline, "sentence": sentence}


def _on_training(steps: Sequence[Record]) -> str:
    """Return a sentence with the share of right programs in the first and the last fifth of a run
    without two evaluations."""
    correct = values_of(steps, "mean_correct")
    if not correct:
        return "No step has a verdict yet."
    window = max(1, len(correct) // 5)
    early, late = sum(correct[:window]) / window, sum(correct[-window:]) / window
    return (
        f"On its own training problems {percent(early)} of the completions passed in the first "
        f"{f'{window} steps' if window > 1 else 'step'} and {percent(late)} in the last."
    )


def _went(splits: Sequence[Mapping[str, Any]]) -> tuple[str, dict[str, float]]:
    """Return the results before and after as a sentence, and their difference, pooled over the
    problems of all splits. Each split has both evaluations."""
    before, after = (
        sum(w * split[side]["score"] for w, split in _weighted(splits))
        for side in ("before", "after")
    )
    what = "Pass@1" if all(split["sampled"] for split in splits) else "greedy Pass@1"
    n, change = sum(split["problems"] for split in splits), _change(splits)
    return (
        f"Held-out {what} went from {percent(before)} to {percent(after)} on {n} "
        f"problem{'s' if n != 1 else ''}{_seen(splits)}: {_points_of(change)}."
    ), change


def _weighted(splits: Sequence[Mapping[str, Any]]) -> list[tuple[float, Mapping[str, Any]]]:
    """Return each split with its share of all problems, in order; the shares sum to 1."""
    total = sum(split["problems"] for split in splits)
    return [(split["problems"] / total, split) for split in splits]


def _change(splits: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return after minus before over the problems of these splits, as `difference` does. Each split
    has both.

    A run keeps no result of a single problem, so the two sides count as independent: the interval
    is wider than that of a paired difference.
    """
    return difference([(w, split["after"], split["before"]) for w, split in _weighted(splits)])


def difference(sides: Sequence[tuple[float, Record, Record]]) -> dict[str, float]:
    """Return the weighted mean of first minus second as `value`, and its 95% interval as `low` and
    `high`. `sides` are (weight, first, second), each with `score`, `low` and `high`; they count as
    independent."""
    found = combined(
        [
            (sign * w, Estimate(side["score"], side["low"], side["high"], 0))
            for w, *both in sides
            for sign, side in zip((1, -1), both, strict=True)
        ]
    )
    return {"value": found.value, "low": found.low, "high": found.high}


def better(views: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return which of at least two runs is better, as `headline` and `sentence`. Only splits that
    all runs measured in the same way, on equally many problems, count. The best run is compared
    with the second; a difference within its 95% interval is not clear."""
    splits = [{split["name"]: split for split in view["splits"]} for view in views]
    alike = [
        name
        for name in splits[0]
        if all(name in each for each in splits)
        and len({(each[name]["problems"], each[name]["sampled"]) for each in splits}) == 1
    ]
    if not alike:
        return {
            "headline": "They cannot be compared.",
            "sentence": "No held-out split was measured alike in all of these runs.",
        }
    shares = [share for share, _ in _weighted([splits[0][name] for name in alike])]
    ends = [[each[name]["after"] or each[name]["before"] for name in alike] for each in splits]
    order = sorted(
        range(len(views)),
        key=lambda run: -sum(w * end["score"] for w, end in zip(shares, ends[run], strict=True)),
    )
    first, second = (views[run]["name"] for run in order[:2])
    change = difference(list(zip(shares, *(ends[run] for run in order[:2]), strict=True)))
    over = f"{first} ends {_points_of(change)} above {second} on {', '.join(alike)}."
    if change["low"] > 0:
        return {"headline": f"{first} is better.", "sentence": over}
    return {"headline": "No clear difference.", "sentence": over}


def _split_names(records: Sequence[Record]) -> list[str]:
    """Return the held-out splits that the records measure, in the order of their first metric."""
    keys = dict.fromkeys(key for record in records for key in record)
    names = [key.removesuffix("/mean_correct").removeprefix("eval/") for key in keys]
    ours = ("mean_correct", "problems")  # a loop of the user's own may log one of them
    return [name for name in names if all(f"eval/{name}/{each}" in keys for each in ours)]


def _evaluated(record: Record | None, split: str) -> dict[str, Any] | None:
    """Return one evaluation's scores and 95% interval on a split, as the page shows them, or None
    without an evaluation. A greedy one has Wilson's interval."""
    if record is None:
        return None
    prefix = f"eval/{split}/"
    found: dict[str, Any] = {"step": record["step"], "score": _score(record, split)}
    if f"{prefix}pass@1" not in record:  # one greedy completion per problem
        problems = record[f"{prefix}problems"]
        found["low"], found["high"] = wilson(round(found["score"] * problems), problems)
    names = {
        "low": "pass@1_low",
        "high": "pass@1_high",
        "greedy": "mean_correct",
        "format": "format_rate",
    }
    found |= {key: record[prefix + name] for key, name in names.items() if prefix + name in record}
    passes = f"{prefix}pass@"
    ks = [name.removeprefix(passes) for name in record if name.startswith(passes)]
    k = max((int(text) for text in ks if text.isdecimal()), default=1)
    if k > 1:
        found |= {"k": k, "pass_k": record[f"{passes}{k}"]}
    return found


def _score(record: Record, split: str) -> float:
    """Return Pass@1 of a split from samples if there are any, else the greedy one."""
    score: float = record.get(f"eval/{split}/pass@1", record[f"eval/{split}/mean_correct"])
    return score


def _seen(splits: Sequence[Mapping[str, Any]]) -> str:
    """Return a clause on the number of these problems that were also trained on; "" if that is
    unknown."""
    trained = [split["trained"] for split in splits]
    if None in trained:
        return ""
    total = sum(trained)
    return (
        f", {total:.0f} of them also among those to train on"
        if total
        else " that it never trained on"
    )


def _points_of(change: Mapping[str, float]) -> str:
    """Return a difference in percentage points, with its interval, as text."""
    value, low, high = (
        f"{round(100 * change[key], 1) + 0.0:+.1f}".replace("-", "−")
        for key in ("value", "low", "high")
    )
    return f"{value} points (95% interval {low} to {high})"
