"""From outcomes to `results.json`: figures, breakdowns, both rules, rating, and missing samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from statistics import fmean
from typing import Any

from code_rl.evaluation.benchmarks import Benchmark
from code_rl.evaluation.generators import EvalEntry
from code_rl.evaluation.pass_at_k import Estimate, Figures, SampleOutcome, figures
from code_rl.evaluation.rating import (
    MIN_PARTICIPANTS,
    percentile,
    rate_contest,
    read_rating_table,
    read_standings,
)
from code_rl.evaluation.runner import Found, Plan
from code_rl.evaluation.samples import GREEDY, SAMPLED, Mode
from code_rl.evaluation.settings import EvalConfig, narrowed
from code_rl.util.errors import ConfigError, SandboxError

CONTEST_PROBLEM = re.compile(r"(\d+)[-_/]?([A-Z]\d*)")
RESULTS = "results.json"


def make_results(
    benchmark: Benchmark,
    found: Found,
    plan: Plan,
    ks: Sequence[int],
    model: str,
    config: EvalConfig,
) -> dict[str, Any]:
    """Return the content of `results.json`, whose names `compare` and the tables read. Samples at
    the temperature are the main figures; without any (`plan.samples` 0) the greedy ones are.
    Figures that need a verdict are left out for problems without one.

    Raises SandboxError if no sample has a verdict, and ConfigError or DataError for unusable
    `standings` or `ratings`.
    """
    main: Mode = SAMPLED if plan.samples else GREEDY
    by_problem = {mode: found.by_problem(benchmark.entries, mode) for mode in (SAMPLED, GREEDY)}
    outcomes = [one for outcomes_P in by_problem[main].values() for one in outcomes_P]
    if not any(one.judged for one in outcomes):
        reasons = Counter([*found.missing.values(), *(one.kind.value for one in outcomes)])
        raise SandboxError(
            f"no sample of {benchmark.name} has a verdict: "
            f"{'; '.join(f'{count} times {reason}' for reason, count in reasons.items())}"
        )
    entries = benchmark.entries
    tagged: dict[str, dict[str, list[EvalEntry]]] = {}
    for entry in entries:
        for tag, value in entry.tags.items():
            tagged.setdefault(tag, {}).setdefault(value, []).append(entry)
    group = partial(_group, by_problem=by_problem, plan=plan, ks=ks)
    results: dict[str, Any] = {
        "benchmark": benchmark.name,
        "model": model,
        **group(entries),
        "breakdown": {
            tag: {value: group(some) for value, some in values.items()}
            for tag, values in tagged.items()
        },
        "prompt": benchmark.prompt.version,
        **{
            name: benchmark.facts[name] for name in ("release", "window") if name in benchmark.facts
        },
        "missing": dict(Counter(reason.partition(":")[0] for reason in found.missing.values())),
        "skipped": dict(benchmark.skipped),
        "seconds": {
            "wall_of_this_run": round(found.wall_s, 3),
            "program_cpu": round(found.cpu_s, 3),
        },
        "how": _how(config, plan),
    }
    if config.standings and benchmark.name == "codeforces":
        results["rating"] = _rating(config.standings, config.ratings, by_problem[main])
    return results


def _how(config: EvalConfig, plan: Plan) -> str:
    """Return the settings that affect results, as a short text for the table."""
    limits = "own CPU limits" if plan.cpu_limit_s is None else f"{plan.cpu_limit_s:g} CPU s a test"
    if config.answered_by in ("reference", "samples"):
        return f"n={plan.samples}, {limits}"
    drawn = f"n={plan.samples}, temperature {config.temperature:g}" if plan.samples else "greedy"
    drawn += "".join(
        f", {name} {value:g}" for name, value in narrowed(config).items() if plan.samples
    )
    return f"{drawn}, up to {config.max_tokens} tokens, seed {config.seed}, {limits}"


def _group(
    entries: Sequence[EvalEntry],
    by_problem: Mapping[Mode, Mapping[str, list[SampleOutcome]]],
    plan: Plan,
    ks: Sequence[int],
) -> dict[str, Any]:
    """Return the figures of some problems: pass@k, greedy, rates, counts, tokens. If none of their
    samples has a verdict, only `wanted_problems` and `problems` = 0."""

    def of(mode: Mode, ks: Iterable[int]) -> Figures | None:
        """Return the figures of one mode, or None if none of its samples has a verdict."""
        outcomes_P = [by_problem[mode][entry.problem_id] for entry in entries]
        judged = any(one.judged for outcomes in outcomes_P for one in outcomes)
        return figures(outcomes_P, ks) if judged else None

    shown = of(SAMPLED, ks) if plan.samples else of(GREEDY, (1,))
    if shown is None:
        return {"wanted_problems": len(entries), "problems": 0}
    greedy, largest = of(GREEDY, (1,)) if plan.greedy else None, max(shown.pass_at)
    named = {f"pass@{k}": estimate for k, estimate in sorted(shown.pass_at.items())}
    beside = [shown, greedy] if greedy is not None and plan.samples else [shown]
    return {
        "wanted_problems": len(entries),
        "problems": shown.problems,
        "samples": shown.samples,
        **{name: estimate.value for name, estimate in named.items()},
        "pass@k": shown.pass_at[largest].value,
        "k": largest,
        "interval": _ends(shown.pass_at[1]),
        "intervals": {name: _ends(estimate) for name, estimate in named.items()},
        "problems_of": {name: estimate.problems for name, estimate in named.items()},
        "greedy": None if greedy is None else greedy.pass_at[1].value,
        "greedy_interval": None if greedy is None else _ends(greedy.pass_at[1]),
        "format_rate": shown.format_rate,
        "truncated_rate": shown.truncated_rate,
        "verdicts": dict(sorted(shown.verdicts.items())),
        "tokens": {
            "prompt": sum(each.prompt_tokens for each in beside),
            "completion": sum(each.completion_tokens for each in beside),
        },
    }


def _rating(
    standings: str, ratings: str | None, by_problem: Mapping[str, list[SampleOutcome]]
) -> dict[str, Any]:
    """Return the rating by a snapshot of `standings`, and the percentile by a table of all users'
    `ratings` (None: no percentile). Samples of a problem are submissions in order. The rating is
    None if no contest has more than 200 participants.

    The result lists contests without standings, problems without a contest, and problems that their
    contest does not list. Raises ConfigError if the snapshot has none of the contests, DataError
    for a malformed file.
    """
    attempts: dict[str, dict[str, list[bool]]] = {}
    unnamed = []
    for problem_id, outcomes in by_problem.items():
        match = CONTEST_PROBLEM.search(problem_id)
        if match is None:
            unnamed.append(problem_id)
            continue
        attempts.setdefault(match[1], {})[match[2]] = [
            each.correct for each in outcomes if each.judged
        ]
    contests = read_standings(standings)
    known = [contests[name] for name in sorted(attempts) if name in contests]
    small = [contest.contest_id for contest in known if len(contest.ratings_n) <= MIN_PARTICIPANTS]
    rated = [
        rate_contest(one, attempts[one.contest_id]) for one in known if one.contest_id not in small
    ]
    if not known:
        raise ConfigError(
            f"standings={standings} has none of the {len(attempts)} contests of these problems"
        )
    value = fmean(one.rating for one in rated) if rated else None
    return {
        "rating": None if value is None else round(value, 1),
        "percentile": None
        if ratings is None or value is None
        else percentile(value, read_rating_table(ratings)),
        "contests": len(rated),
        "few_participants": small,
        "without_standings": sorted(set(attempts) - set(contests)),
        "without_contest": unnamed,
        "not_in_contest": [
            f"{one.contest_id}{index}"
            for one in known
            for index in attempts[one.contest_id]
            if index not in one.problem_points
        ],
        "by_contest": [asdict(one) for one in rated],
    }


def _ends(estimate: Estimate) -> list[float]:
    """Return [low, high] of an estimate."""
    return [estimate.low, estimate.high]
