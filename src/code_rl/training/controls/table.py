"""One table: each arm's results, its difference from the base model, and rl's lead over it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from code_rl.evaluation.pass_at_k import Estimate, crossed_difference
from code_rl.training.controls.arms import RL, ControlPlan
from code_rl.util.files import write_atomically

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
    """Write `controls.json` and `controls.md` into `out`; return the table."""
    found = rows(plan, results)
    text = markdown(found)
    settings = {**plan.given, **asdict(plan), "out": str(plan.out)}
    del settings["given"]
    content = {"settings": settings, "rows": [asdict(row) for row in found]}
    write_atomically(plan.out / "controls.json", json.dumps(content, indent=1) + "\n")
    write_atomically(plan.out / "controls.md", text + "\n")
    return f"{text}\ntables: {plan.out / 'controls.md'}, controls.json"


def rows(plan: ControlPlan, results: Results) -> list[ArmRow]:
    """Return a row for every arm on every split and, with several splits, on all of them
    together."""
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
    """Return the means and differences by heading; the difference of an arm from itself is None."""
    mean, minus_base, rl_minus = {}, {}, {}
    for heading, mode in MODES.items():

        def of(names: Sequence[str], mode: str = mode) -> list[dict[str, float]]:
            return [rates[name][mode] for name in names]

        own = of(runs)
        mean[heading] = sum(sum(each.values()) / len(each) for each in own) / len(own)
        minus_base[heading] = None if runs == [base] else _difference(of([base]), own)
        rl_minus[heading] = None if rl is None or arm == RL else _difference(own, of(rl))
    return mean, minus_base, rl_minus


def _rates(outcomes: Mapping[str, Any], splits: Sequence[str]) -> Rates:
    """Return the pass rate of each problem of some splits. Problems without any verdict are left
    out."""
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
    """Return second minus first on the problems that both have. A single run is compared with every
    seed."""
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
    """A row as text, under HEAD."""
    differences = [*row.minus_base.values(), *row.rl_minus.values()]
    return [
        *(row.split, row.arm, str(row.seeds)),
        *(f"{100 * value:.1f}" for value in row.mean.values()),
        *(_signed(each) for each in differences),
        *(f"{row.tokens:,}", f"{row.seconds / 60:.1f}"),
    ]


def _signed(found: Estimate | None) -> str:
    if found is None:
        return ""
    return f"{100 * found.value:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def markdown(found: Sequence[ArmRow]) -> str:
    """The table in Markdown, with its note."""
    body = [HEAD, ["---"] * len(HEAD), *map(cells, found)]
    return "\n".join([*("| " + " | ".join(line) + " |" for line in body), "", NOTE])
