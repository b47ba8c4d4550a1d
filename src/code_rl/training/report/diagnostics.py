"""Rules that find common problems of a run in its metrics: evidence, likely cause, remedy.

Every finding is named after its rule. Its text is in `findings.toml`, and `docs/troubleshooting.md`
has a section about it. Rules compare means over a window at the end of the run with a window at its
beginning. With too little data they report nothing.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from code_rl.engine import BUILT_IN
from code_rl.training.config import on_built_in_problems, recipe_of
from code_rl.training.report.groups import as_text, percent, values_of

Severity = Literal["bad", "warning", "note"]
Record = Mapping[str, Any]

MIN_STEPS = 5
SOLVES_NOTHING = 0.02
LEVEL_ENTROPY = 0.75
"""If the entropy's ratio stays within this factor, the policy has hardly changed."""
SMOKE_STEPS = 20
"""The smoke test looks at the first 20 to 30 steps."""
ADHERENT = 0.95

OF_A_STEP = {"mean_reward", "format_rate", "groups_total"}
"""Metrics of every training step of `train`."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a run, with its likely cause and the remedy."""

    name: str
    severity: Severity
    title: str
    evidence: str
    cause: str
    remedy: str


class Sign(NamedTuple):
    """The evidence that a rule found. `case` names a table inside the rule's own, whose texts are
    used first."""

    severity: Severity
    evidence: str
    case: str = ""


@dataclass(frozen=True, slots=True)
class Windows:
    """The records of training steps, and the windows that rules compare."""

    steps: Sequence[Record]
    everything: Sequence[Record]
    config: Mapping[str, Any]

    @property
    def window(self) -> int:
        """The number of steps in a window: a fifth of the run, 3 to 50."""
        return max(3, min(50, len(self.steps) // 5))

    def ends(self, name: str) -> tuple[float, float]:
        """Return the means of a metric over the first and the last window; NaN for one without a
        finite value."""
        first, last = self.steps[: self.window], self.steps[-self.window :]
        return _mean(values_of(first, name)), _mean(values_of(last, name))

    def total(self, name: str) -> float:
        """Return the sum of a metric's finite values over the run; 0 if no step has it."""
        return sum(values_of(self.steps, name))


def diagnose(records: Sequence[Record], config: Mapping[str, Any]) -> list[Finding]:
    """Return every finding about a run, the worst first; findings that another one explains are
    left out. `records` are those of `metrics.jsonl` in the order of their steps, `config` the run's
    settings (may be empty). Trends are looked for from 5 steps on."""
    # A loop of the user's own may log fewer metrics with `setup_logging`.
    steps = [record for record in records if record["step"] >= 0 and record.keys() >= OF_A_STEP]
    run = Windows(steps, records, config)
    rules = (*ALWAYS, too_few_steps) if len(steps) < MIN_STEPS else (*ALWAYS, *TRENDS)
    struck = {rule: sign for rule in rules if (sign := rule(run)) is not None}
    for cause, consequences in EXPLAINS.items():
        if cause in struck:
            struck = {rule: sign for rule, sign in struck.items() if rule not in consequences}
    found = [_finding(rule.__name__, sign) for rule, sign in struck.items()]
    return sorted(found, key=lambda finding: ("bad", "warning", "note").index(finding.severity))


def alarms(record: Record) -> list[Finding]:
    """Return the findings of one step that need no other step, in the order of `ALARMS`."""
    run = Windows([record], [record], {})
    return [_finding(rule.__name__, sign) for rule in ALARMS if (sign := rule(run)) is not None]


def worst_of(findings: Sequence[Finding]) -> list[str]:
    """Return two lines with the first finding that is no note, and its remedy; none if there are
    only notes. `findings` are sorted as `diagnose` sorts them."""
    found = [finding for finding in findings if finding.severity != "note"]
    if not found:
        return []
    more = f" ({len(found) - 1} more in the report)" if found[1:] else ""
    title = f"diagnosis: {found[0].title}: {found[0].evidence}{more}"
    return [title, f"       do: {found[0].remedy}"]


@cache
def _words() -> dict[str, dict[str, Any]]:
    """Return title, cause and remedy by rule, from `findings.toml`, read once."""
    return tomllib.loads(Path(__file__).with_name("findings.toml").read_text(encoding="utf-8"))


def _finding(rule: str, sign: Sign) -> Finding:
    """Return the finding of a rule's function name, with its title, cause and remedy. Raises
    KeyError for a rule without a table in `findings.toml`, so a rule is renamed in both."""
    name = rule.replace("_", "-")
    words = _words()[name] | _words()[name].get(sign.case, {})
    return Finding(
        name, sign.severity, words["title"], sign.evidence, words["cause"], words["remedy"]
    )


def loss_not_finite(run: Windows) -> Sign | None:
    """Return a bad sign if the loss, `ratio_max` or `kl_sample_train` is NaN or infinite in a step,
    else None."""
    names = ("loss", "ratio_max", "kl_sample_train")
    broken = [
        record
        for record in run.steps
        if any(
            isinstance(record.get(name), float) and not math.isfinite(record[name])
            for name in names
        )
    ]
    if not broken:
        return None
    return Sign(
        "bad", f"first at step {broken[0].get('step')}, in {len(broken)} of {len(run.steps)} steps"
    )


def sandbox_errors(run: Windows) -> Sign | None:
    """Return a sign if completions ended as `sandbox_error` (a warning, bad above 5% of all
    verdicts), else None."""
    lost, every = run.total("verdicts/sandbox_error"), _judged(run.steps)
    if not lost:
        return None
    share = lost / every if every else 0.0
    evidence = (
        f"{lost:.0f} of {every:.0f} completions ({percent(share)}) ended as sandbox_error and were "
        "masked out of their groups"
    )
    return Sign("bad" if share > 0.05 else "warning", evidence)


def checker_errors(run: Windows) -> Sign | None:
    """Return a bad sign if completions ended as `checker_error`, since a problem's checker is
    broken, else None."""
    lost = run.total("verdicts/checker_error")
    evidence = f"{lost:.0f} completions ended as checker_error and were masked out of their groups"
    return Sign("bad", evidence) if lost else None


def canary_passed(run: Windows) -> Sign | None:
    """Return a bad sign if an answer to an impossible problem passed, or was paid in full, else
    None."""
    said = "completions passed problems that cannot be solved, or were paid in full for them"
    return _alarm(run, "canary/passed", said, "canary/program")


def wrong_paid(run: Windows) -> Sign | None:
    """Return a bad sign if a program that fails a test got the full reward, else None."""
    said = f"of {run.total('reward/wrong'):.0f} programs that fail a test were paid in full"
    return _alarm(run, "reward/wrong_paid", said, "reward/wrong_program")


def unstable_verdicts(run: Windows) -> Sign | None:
    """Return a warning if a program that passed failed when it was judged again, else None."""
    failed, twice = run.total("reward/unstable"), run.total("reward/judged_twice")
    evidence = f"{failed:.0f} of {twice:.0f} programs that passed failed when judged once more"
    return Sign("warning", evidence) if failed else None


def _alarm(run: Windows, name: str, said: str, program: str) -> Sign | None:
    """Return the bad sign of a count `name` that must be 0, with the text of the first step's
    `program`, or None if it is 0."""
    alarms = [record for record in run.steps if record.get(name)]
    if not alarms:
        return None
    return Sign(
        "bad",
        f"{run.total(name):.0f} {said}, in {len(alarms)} of {len(run.steps)} steps, first at step "
        f"{alarms[0].get('step')} with this program:\n{as_text(alarms[0].get(program), 1_000)}",
    )


def never_trained(steps: Sequence[Record]) -> bool:
    """Return True if steps were taken and each had 0 training examples. Without steps, or if a loop
    of the user's own does not log `n_datums`, it is False."""
    return bool(steps) and all(record.get("n_datums") == 0 for record in steps)


def no_optimizer_step(run: Windows) -> Sign | None:
    """Return a bad sign if steps were taken, but none had a completion to train on, so the weights
    did not change; else None. The case is `solved` if 90% of the completions pass."""
    if not never_trained(run.steps):
        return None
    skipped = (
        f"{run.total('groups_skipped'):.0f} of {run.total('groups_total'):.0f} groups were skipped"
    )
    case = "solved" if _mean(values_of(run.steps, "mean_correct")) >= 0.9 else ""
    evidence = f"none of {len(run.steps)} steps had a completion to train on: {skipped}"
    return Sign("bad", evidence, case)


def no_code_blocks(run: Windows) -> Sign | None:
    """Return a bad sign if no answer of any step has a fenced block, else None."""
    rates = [record["format_rate"] for record in run.steps]
    if not rates or any(rates):
        return None
    return Sign("bad", f"0 of {_judged(run.steps):.0f} completions in {len(run.steps)} steps")


def built_in_elsewhere(run: Windows) -> Sign | None:
    """Return a bad sign if the built-in model passes at most 2% in every step on problems that it
    was not made for, else None. Runs of several turns are left out."""
    dataset = run.config.get("dataset")
    if run.config.get("model_name") != BUILT_IN or dataset is None:
        return None
    if run.config.get("environment", "single") != "single":
        return None
    language = run.config.get("language") or "python"
    rates = values_of(run.steps, "mean_correct")
    known = on_built_in_problems(dataset) and language == "python"
    if known or not rates or max(rates) > SOLVES_NOTHING:
        return None
    share = f"at most {percent(max(rates))} of a step's completions"
    return Sign("bad", f"{share} on {dataset} in {language} pass")


def collapse(run: Windows) -> Sign | None:
    """Return a bad sign if the share of answers with a program, half or more, falls to a quarter
    from one step to the next and stays there, else None."""
    rates = values_of(run.steps, "format_rate")
    for index, (before, after) in enumerate(itertools.pairwise(rates), 1):
        if before >= 0.5 and len(rates) > index + 1 and max(rates[index:]) <= before / 4:
            fell = f"format fell from {percent(before)} to {percent(after)}"
            evidence = f"{fell} in step {run.steps[index]['step']}"
            return Sign("bad", f"{evidence}, and never came back")
    return None


def steps_taken(steps: Sequence[Record]) -> str:
    """Return the number of steps as a clause, `3 steps were taken`."""
    return "1 step was taken" if len(steps) == 1 else f"{len(steps)} steps were taken"


def too_few_steps(run: Windows) -> Sign | None:
    """Return a note that there are too few steps to find a trend. `diagnose` asks only below 5
    steps."""
    return Sign("note", f"{steps_taken(run.steps)}; trends are looked for from {MIN_STEPS} on")


def degenerate_groups(run: Windows) -> Sign | None:
    """Return a sign if at least 80% of the groups of the last window are skipped (a warning, bad if
    all are), else None. The case is `solved` if most are all right, `apart` if right and wrong ones
    mix."""
    late = [record for record in run.steps[-run.window :] if record["groups_total"]]
    total, skipped = (sum(values_of(late, name)) for name in ("groups_total", "groups_skipped"))
    if not total or skipped / total < 0.8:
        return None
    evidence = (
        f"{percent(skipped / total)} of the groups of the last {len(late)} steps were skipped"
    )
    right, wrong = (sum(values_of(late, f"rollouts/{each}_solved")) for each in ("all", "none"))
    if right or wrong:
        evidence += f"; {right:.0f} were all right and {wrong:.0f} all wrong"
    else:  # only means are known, without rollouts
        right = run.ends("mean_correct")[1] >= 0.9
    case = "" if right <= wrong / 4 else "solved" if wrong <= right / 4 else "apart"
    return Sign("bad" if skipped == total else "warning", evidence, case)


def reward_flat_at_zero(run: Windows) -> Sign | None:
    """Return a bad sign if at most 2% of the completions pass, in the first and in the last window,
    else None."""
    early, late = run.ends("mean_correct")
    evidence = f"{percent(late)} of the completions pass at the end, {percent(early)} did at first"
    return Sign("bad", evidence) if max(early, late) <= SOLVES_NOTHING else None


def hardly_moved(run: Windows) -> Sign | None:
    """Return a warning if neither the answers nor their entropy changed beyond chance from the
    first third to the last (the weights changed too little, or not at all), else None. It needs 15
    steps; the case is `recipe` if the run's recipe has a higher learning rate."""
    third = len(run.steps) // 3
    if third < MIN_STEPS:
        return None
    for name in ("mean_correct", "format_rate"):
        values = values_of(run.steps, name)
        if len(values) < len(run.steps) or _differ(values[:third], values[-third:]):
            return None
    entropy = run.ends("entropy")
    if not LEVEL_ENTROPY * entropy[0] < entropy[1] < entropy[0] / LEVEL_ENTROPY:
        return None
    if not SOLVES_NOTHING < run.ends("mean_correct")[1] < 0.9:
        return None  # there was little to learn from
    rate, theirs = (each.get("learning_rate") for each in (run.config, recipe_of(run.config)))
    evidence = f"after {len(run.steps)} steps at learning_rate={rate}, correctness, format and "
    evidence += "entropy are level"
    if theirs is None or theirs <= rate:
        return Sign("warning", evidence)
    return Sign("warning", f"{evidence}; try learning_rate={theirs:g}, the recipe's", "recipe")


def _differ(first: Sequence[float], last: Sequence[float]) -> bool:
    """Return True if two means differ by more than three standard errors. Each side has at least
    two values; else StatisticsError is raised."""
    error = math.sqrt(sum(statistics.variance(part) / len(part) for part in (first, last)))
    return abs(_mean(last) - _mean(first)) > 3 * error


def format_falling(run: Windows) -> Sign | None:
    """Return a sign if the share of answers with a fenced block falls by 5 points or more from the
    first window to the last (a warning, bad above 20 points), else None."""
    early, late = run.ends("format_rate")
    evidence = (
        f"{percent(early)} of the completions had a fenced code block at first, {percent(late)} at "
        "the end"
    )
    severity: Severity = "bad" if late < early - 0.2 else "warning"
    return Sign(severity, evidence) if late <= early - 0.05 else None


def held_out_flat(run: Windows) -> Sign | None:
    """Return a bad sign if training correctness rises by 10 points or more while held-out Pass@1
    rises by at most 2, else None. Sampled Pass@1 counts, or the greedy one without two of those."""
    early, late = run.ends("mean_correct")
    names = ("eval/pass@1", "eval/mean_correct")
    sampled, greedy = (values_of(run.everything, name) for name in names)
    scores = sampled if len(sampled) > 1 else greedy
    if len(scores) < 2 or not late - early >= 0.1 or scores[-1] - scores[0] > 0.02:
        return None
    training = f"training correctness went from {percent(early)} to {percent(late)}"
    return Sign("bad", f"{training}, held-out from {percent(scores[0])} to {percent(scores[-1])}")


def held_out_falling(run: Windows) -> Sign | None:
    """Return a warning if the last greedy held-out Pass@1 is 10 points or more below the best of at
    least three, else None."""
    scores = values_of(run.everything, "eval/mean_correct")
    if len(scores) < 3 or scores[-1] > max(scores) - 0.1:
        return None
    best = next(r for r in run.everything if r.get("eval/mean_correct") == max(scores))["step"]
    when = f"after step {best}" if best >= 0 else "before training"
    return Sign(
        "warning",
        f"held-out greedy Pass@1 was {percent(max(scores))} {when} and is {percent(scores[-1])} "
        "now",
    )


def loss_exploding(run: Windows) -> Sign | None:
    """Return a bad sign if the mean absolute loss of the last window is 10 times that of the first,
    and at least 0.5, else None."""
    sizes = [abs(value) for value in values_of(run.steps, "loss")]
    early, late = _mean(sizes[: run.window]), _mean(sizes[-run.window :])
    evidence = f"its mean size went from {early:.3g} to {late:.3g}"
    return Sign("bad", evidence) if late >= max(10 * early, 0.5) else None


def sampler_trainer_gap(run: Windows) -> Sign | None:
    """Return a sign if on-policy the mean of log q − log p over the same tokens is 0.01 or more in
    size in the last window (a warning, bad above 0.1), else None."""
    late = run.ends("kl_sample_train")[1]
    if not abs(late) >= 0.01 or run.ends("staleness/mean")[1] > 0:
        return None
    evidence = (
        f"mean log q − log p over sampled tokens is {late:.3g} at the end; on-policy it should be "
        "near 0"
    )
    return Sign("bad" if abs(late) > 0.1 else "warning", evidence)


def entropy_collapse(run: Windows) -> Sign | None:
    """Return a warning if the entropy falls to a fifth or less while at most 90% pass, so that the
    model gives the same answer every time, else None."""
    (early, late), correct = run.ends("entropy"), run.ends("mean_correct")[1]
    if not (early > 0 and late <= 0.2 * early) or correct > 0.9:
        return None
    fell = f"mean surprise per token fell from {early:.3g} to {late:.3g} nats"
    return Sign("warning", f"{fell} while {percent(correct)} pass")


def truncation(run: Windows) -> Sign | None:
    """Return a sign if at least 20% of the answers of the last window are cut off at `max_tokens`
    (a warning, bad above 50%), else None. A recipe's own low limit is no finding unless truncation
    rises."""
    early, late = run.ends("truncated_rate")
    if run.config.get("max_tokens") == recipe_of(run.config).get("max_tokens", 0) and late <= early:
        return None  # this recipe sets a low limit on purpose
    limit = run.config.get("max_tokens", "?")
    evidence = f"{percent(late)} of the completions at the end reached max_tokens={limit}"
    return Sign("bad" if late > 0.5 else "warning", evidence) if late >= 0.2 else None


def smoke_test(run: Windows) -> Sign | None:
    """Return a warning if the first steps do not look like those of a correct setup, else None:
    code blocks become more frequent, then rewards and right programs. It needs 20 steps. A change
    within chance decides nothing."""
    if len(run.steps) < SMOKE_STEPS:
        return None
    formats, rewards, correct = (
        values_of(run.steps, name) for name in ("format_rate", "mean_reward", "mean_correct")
    )
    found = []
    first, later = _mean(formats[:1]), _mean(formats[3:5])
    # A quarter of the answers without a code block have gained one, or nearly all have one.
    if later < min(ADHERENT, first + (1 - first) / 4):
        found.append(
            f"{percent(first)} have a code block at first, {percent(later)} in step 3 and 4"
        )
    for what, early, late in (
        ("mean reward", rewards[4:9], rewards[10:15]),
        ("share of right programs", correct[:3], correct[9:30]),
    ):
        if min(len(early), len(late)) > 1 and _differ(early, late) and _mean(late) < _mean(early):
            found.append(f"the {what} fell from {_mean(early):.3f} to {_mean(late):.3f}")
    return Sign("warning", "; ".join(found)) if found else None


Rule = Callable[[Windows], Sign | None]
ALARMS: tuple[Rule, ...] = (
    loss_not_finite,
    canary_passed,
    wrong_paid,
    unstable_verdicts,
    sandbox_errors,
    checker_errors,
)
"""Rules that a single step can break. A run prints such a finding at once."""
ALWAYS: tuple[Rule, ...] = (
    *ALARMS,
    no_optimizer_step,
    no_code_blocks,
    built_in_elsewhere,
    collapse,
)
TRENDS: tuple[Rule, ...] = (
    degenerate_groups,
    reward_flat_at_zero,
    hardly_moved,
    format_falling,
    held_out_flat,
    held_out_falling,
    loss_exploding,
    sampler_trainer_gap,
    entropy_collapse,
    truncation,
    smoke_test,
)
EXPLAINS: Mapping[Rule, Sequence[Rule]] = {
    built_in_elsewhere: (
        no_optimizer_step,
        no_code_blocks,
        degenerate_groups,
        reward_flat_at_zero,
        truncation,
        smoke_test,
    ),
    collapse: (
        degenerate_groups,
        reward_flat_at_zero,
        format_falling,
        held_out_falling,
        loss_exploding,
        entropy_collapse,
        truncation,
        smoke_test,
    ),
    **dict.fromkeys(
        (
            no_optimizer_step,
            no_code_blocks,
            hardly_moved,
            reward_flat_at_zero,
            format_falling,
        ),
        (smoke_test,),
    ),
}
"""A finding that follows from another one, which is then left out beside it."""


def _mean(values: Sequence[float]) -> float:
    """Return the mean; NaN, which meets no threshold, for no values."""
    return sum(values) / len(values) if values else math.nan


def _judged(records: Sequence[Record]) -> float:
    """Return the number of completions with a verdict of any kind, undecided ones included."""
    judged: float = sum(
        value
        for record in records
        for name, value in record.items()
        if name.startswith("verdicts/")
    )
    return judged
