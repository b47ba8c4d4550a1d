"""What `code-rl reproduce` says: what it is going to do and use, and at the end published values beside ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz

from code_rl.budget import Prices, Tokens, read_prices
from code_rl.config import Config
from code_rl.evaluation.compare import average, compare, figure, read_results
from code_rl.evaluation.settings import EvalConfig, sample_count, sweep_limits
from code_rl.files import write_atomically
from code_rl.forecast import assumptions, forecast, report

if TYPE_CHECKING:
    from code_rl.commands.reproduce import Plan

TABLE, VALUES = "results.md", "results.json"
AVERAGE = "average"
BEFORE, AFTER = "before", "after"
PROTOCOL = (
    "data", "version", "start_date", "end_date", "limit", "n", "greedy", "temperature", "top_p", "top_k", "max_tokens", "sweep", "prompt",
    "system_prompt", "environment", "reward_timeout",
)  # fmt: skip
"""Settings of an evaluation that its figures depend on."""


def forecast_lines(plan: Plan, *, whole: bool) -> Iterator[str]:
    """Each step with its tokens, and the sum; the training's settings and all assumptions where `whole`."""
    config = plan.config
    prices, assume = _prices(config)
    yield f"{plan.published.name} ({plan.published.source}), in {plan.out}:"
    asked = plan.asked()
    tokens = {name: _asked(plan, asks, assume) for name, asks in asked.items()}
    for when in (BEFORE, AFTER):
        for name, asks in asked.items():
            drawn = f"{sample_count(asks)} samples a problem, up to {asks.sweep or asks.max_tokens} tokens"
            yield f"  evaluation {when}: {name}, {drawn}: {tokens[name].total:,} tokens"
    total = forecast(config, assume, prices).tokens
    yield f"  training: {config.max_steps} steps of {config.model_name} on {config.dataset}: {total.total:,} tokens"
    for each in (*tokens.values(), *tokens.values()):
        total += each
    unpriced = "; give prices=FILE.toml for the cost" if prices is None else ""
    yield f"  all of it: {_priced(total, prices)}{unpriced}"
    yield f"  max_tokens_total= and max_cost= cap the training alone, not the evaluations: {evaluated(plan)}"
    if whole:
        yield ""
        yield from report(config)


def evaluated(plan: Plan) -> str:
    """What all evaluations together are expected to use: caps are the training's alone."""
    prices, assume = _prices(plan.config)
    total = Tokens()
    for asks in (*plan.asked().values(), *plan.asked().values()):
        total += _asked(plan, asks, assume)
    return _priced(total, prices)


def _prices(config: Config) -> tuple[Prices | None, Mapping[str, float]]:
    """The prices given, and the assumptions of every forecast here."""
    prices, given = read_prices(config.prices) if config.prices is not None else (None, {})
    return prices, assumptions(config, given)


def _priced(tokens: Tokens, prices: Prices | None) -> str:
    return f"{tokens.total:,} tokens" + ("" if prices is None else f", cost {prices.cost(tokens):,.2f}")


def _asked(plan: Plan, asks: EvalConfig, assume: Mapping[str, float]) -> Tokens:
    """What one evaluation is expected to use."""
    tokens = Tokens()
    for name in (asks.benchmark or "").split(","):
        problems = plan.published.problems.get(name.strip(), assume["eval_problems"])
        problems = min(problems, asks.limit) if asks.limit > 0 else problems
        count = problems * (sample_count(asks) + bool(asks.greedy))
        for limit in sweep_limits(asks):
            drawn = count * assume["completion_share"] * limit
            tokens += Tokens(prefill=int(count * assume["prompt_tokens"]), sample=int(drawn))
    return tokens


def write_table(plan: Plan) -> str:
    """The table and what differs, as Markdown; kept in `results.md` and, as data, in `results.json`."""
    rows = list(_rows(plan))
    lines = [
        f"{plan.published.name}: {plan.config.model_name}, {plan.config.max_steps} steps on {plan.config.dataset}. Published: {plan.published.source}",
        "",
        "| benchmark | figure | published | ours before [95%] | ours after [95%] | ours, difference [95%] |",
        "|---|---|---|---|---|---|",
        *("| " + " | ".join(_cells(row)) + " |" for row in rows),
        "",
        *(f"- {line}" for line in differences(plan)),
    ]
    text = "\n".join(lines)
    found = {"result": plan.published.name, "rows": rows, "differs": differences(plan)}
    write_atomically(plan.out / VALUES, json.dumps(found, indent=2) + "\n")
    write_atomically(plan.out / TABLE, text + "\n")
    return text


def _rows(plan: Plan) -> Iterator[dict[str, Any]]:
    """Each published value with ours beside it, then figures of ours for which none was published."""
    ours = _measured(plan)
    for value in plan.published.values:
        name, wanted = value["benchmark"], value.get("figure", "pass@1")
        limit = value.get("max_tokens")
        mine = [key for key in ours if key[0] == name and key[2] == wanted and limit in (None, key[1])]
        row: dict[str, Any] = {"benchmark": name, "figure": wanted, "max_tokens": limit}
        row["published"] = [value["before"], value["after"]]
        if mine:
            row |= ours.pop(mine[0])
        else:
            row["not_run"] = value.get("needs", "not among the evaluations of this reproduction")
        yield row
    for (name, limit, wanted), found in ours.items():
        yield {"benchmark": name, "figure": wanted, "max_tokens": limit, "published": None} | found


def _measured(plan: Plan) -> dict[tuple[str, int | None, str], dict[str, Any]]:
    """Our figures before and after by benchmark, token limit (None without a sweep) and figure."""
    found: dict[tuple[str, int | None, str], dict[str, Any]] = {}
    for name, asks in plan.asked().items():
        for limit in sweep_limits(asks):
            places = [plan.out / when / name / (str(limit) if asks.sweep else "") for when in (BEFORE, AFTER)]
            before, after = map(read_results, places)
            at = limit if asks.sweep else None
            for benchmark, results in before.items():
                one = len(before) == 1
                paired = compare(*((place if one else place / benchmark) for place in places))["figures"]
                for wanted in (key for key in results if key in results["intervals"]):
                    both = (results, after[benchmark])
                    sides = [{"pass@1": each[wanted], "interval": each["intervals"][wanted]} for each in both]
                    change = paired.get(wanted) or paired.get(f"greedy {wanted}")
                    difference = change and [change["difference"], *change["interval"]]
                    found[benchmark, at, wanted] = {"before": sides[0], "after": sides[1], "difference": difference}
            if len(before) > 1:
                sides = [average(list(each.values())) for each in (before, after)]
                found[AVERAGE, at, "pass@1"] = {"before": sides[0], "after": sides[1], "difference": None}
    return found


def _cells(row: Mapping[str, Any]) -> list[str]:
    limit = f" at {row['max_tokens']:,} tokens" if row["max_tokens"] else ""
    published = "—" if row["published"] is None else " → ".join(map(str, row["published"]))
    head = [f"{row['benchmark']}{limit}", row["figure"], published]
    if "not_run" in row:
        return [*head, f"not run: {row['not_run']}", "", ""]
    difference = "—"
    if row["difference"]:
        value, low, high = (100 * each for each in row["difference"])
        difference = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
    return [*head, figure(row["before"]), figure(row["after"]), difference]


def differences(plan: Plan) -> list[str]:
    """What was otherwise than in the published run, computed from both; then what they did not publish."""
    config, theirs = plan.config, plan.published.theirs
    lines = []
    if theirs["method"] != "LoRA":
        lines.append(f"theirs was {theirs['method']}, ours LoRA of rank {config.lora_rank}")
    ours = chz.asdict(config)
    lines += [
        f"{name}: theirs {value}, ours {ours[name]}"
        for name, value in theirs.items()
        if name != "method" and ours[name] != value
    ]
    for each in plan.evals.values():
        lines += _otherwise(each, plan.published.evals)
    return [*lines, *(f"not published: {line}" for line in plan.published.unpublished)]


def _otherwise(each: Mapping[str, Any], published: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What was given for an evaluation in place of its protocol."""
    names = benchmarks_of(each)
    planned = next((one for one in published if set(names) <= set(benchmarks_of(one))), None)
    if planned is None:
        yield f"{', '.join(Path(name).name for name in names)}: none was published for it"
        planned = {}
    for name in PROTOCOL:
        was, now = (settings.get(name, chz.chz_fields(EvalConfig)[name]._default) for settings in (planned, each))
        if str(was) != str(now) and (now is not None or name in planned):
            instead = f" in place of {was}" if name in planned else ""
            yield f"evaluation on {', '.join(Path(each).name for each in names)}: {name}={now}{instead}"


def benchmarks_of(settings: Mapping[str, Any]) -> list[str]:
    """The benchmarks of an evaluation."""
    return [name.strip() for name in str(settings["benchmark"]).split(",")]
