"""What commonly goes wrong in a run, looked for in its metrics: evidence, likely cause, remedy.

Every finding has a name; `docs/troubleshooting.md` has a section under that name. Rules look at means over a window at the end of the
run against one at its beginning, and stay silent when there is too little to look at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from code_rl.reports.groups import as_number, as_text
from code_rl.runs.files import read_lines

Severity = Literal["bad", "warning", "note"]
Record = Mapping[str, Any]

MIN_STEPS = 5
MAX_NAMED = 12
DISAGREEMENTS = "disagreements.jsonl"
"""What `code-rl rejudge strengthen=true` leaves in a run's directory."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a reader should know, with its likely cause and what to do."""

    name: str
    severity: Severity
    title: str
    evidence: str
    cause: str
    remedy: str

    def as_dict(self) -> dict[str, str]:
        """For the page."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Look:
    """The records of training steps, split into the windows that rules compare."""

    steps: Sequence[Record]
    everything: Sequence[Record]
    config: Mapping[str, Any]

    @property
    def window(self) -> int:
        """Steps in a window: a fifth of the run, 3 to 50."""
        return max(3, min(50, len(self.steps) // 5))

    def early(self, name: str) -> float | None:
        """The mean of a metric over the first window."""
        return _mean(self.steps[: self.window], name)

    def late(self, name: str) -> float | None:
        """The mean of a metric over the last window."""
        return _mean(self.steps[-self.window :], name)

    def total(self, name: str) -> float:
        """The sum of a metric over the run."""
        return sum(as_number(record.get(name)) or 0.0 for record in self.steps)

    def share(self, kind: str, late: bool = True) -> float | None:
        """The share of one verdict among all of a window."""
        steps = self.steps[-self.window :] if late else self.steps[: self.window]
        counts = [_verdicts(record) for record in steps]
        every = sum(sum(count.values()) for count in counts)
        return sum(count.get(kind, 0.0) for count in counts) / every if every else None


def diagnose(records: Sequence[Record], config: Mapping[str, Any]) -> list[Finding]:
    """Every finding about a run, the worst first. `records` are those of `metrics.jsonl`, in the order of their steps."""
    steps = [record for record in records if (as_number(record.get("step")) or 0) >= 0 and "mean_reward" in record]
    look = Look(steps, records, config)
    rules = (*ALWAYS, too_few_steps) if len(steps) < MIN_STEPS else (*ALWAYS, *TRENDS)
    found = [finding for rule in rules for finding in [rule(look)] if finding is not None]
    return sorted(found, key=lambda finding: ("bad", "warning", "note").index(finding.severity))


def weak_tests(log_path: Path) -> list[Finding]:
    """Problems whose passing programs disagree, as `code-rl rejudge strengthen=true` found them; nothing where it was not run."""
    rows = [row for row in read_lines(log_path / DISAGREEMENTS) if row.get("reason") == "disagree"]
    names = [as_text(row["card"].get("problem_id"), 120) for row in rows if isinstance(row.get("card"), dict)]
    if not names:
        return []
    return [
        Finding(
            "weak-tests",
            "warning",
            "Programs that passed disagree",
            f"on {len(names)} problems: {', '.join(names[:MAX_NAMED])}{' …' if len(names) > MAX_NAMED else ''}",
            "The tests of these problems are weak: a wrong program passes them, and was rewarded.",
            "code-rl prepare strengthen=true adds tests; code-rl rejudge says what was trained on, train fork= goes on from before.",
        )
    ]


def loss_not_finite(look: Look) -> Finding | None:
    """NaN or infinity where the loss should be."""
    broken = [record for record in look.steps if any(_not_finite(record.get(name)) for name in ("loss", "ratio_max", "kl_sample_train"))]  # fmt: skip
    if not broken:
        return None
    return Finding(
        "loss-not-finite",
        "bad",
        "The loss stopped being a number",
        f"first at step {broken[0].get('step')}, in {len(broken)} of {len(look.steps)} steps",
        "The weights have diverged: the learning rate is too high for this batch, or logprobs of sampler and trainer disagree.",
        "Resume from a checkpoint before that step with a new log_path and a learning rate 3 to 10 times lower.",
    )


def sandbox_errors(look: Look) -> Finding | None:
    """Completions without a verdict."""
    lost = look.total("verdicts/sandbox_error")
    every = sum(sum(_verdicts(record).values()) for record in look.steps)
    if not lost:
        return None
    share = lost / every if every else 0.0
    return Finding(
        "sandbox-errors",
        "bad" if share > 0.05 else "warning",
        "Some programs got no verdict",
        f"{lost:.0f} of {every:.0f} completions ({_percent(share)}) ended as sandbox_error and were masked out of their groups",
        "The sandbox lost workers or the server was down or overloaded; this says nothing about the programs.",
        "See logs.log for the messages. Lower sandbox_concurrency, check the memory of the machine, or for a server its health and load.",
    )


def checker_errors(look: Look) -> Finding | None:
    """Problems whose checker is broken."""
    lost = look.total("verdicts/checker_error")
    if not lost:
        return None
    return Finding(
        "checker-errors",
        "bad",
        "A problem's checker is broken",
        f"{lost:.0f} completions ended as checker_error and were masked out of their groups",
        "The checker or interactor of their problem decides not even about the problem's own reference; this says nothing about the programs.",
        "The failure messages in rollouts.jsonl say how it ends. Mend the checker, or drop the problem: code-rl prepare finds it (broken_checker).",
    )


def never_trained(steps: Sequence[Record]) -> bool:
    """True when there are steps and none of them had a completion to train on."""
    return bool(steps) and all(as_number(record.get("n_datums")) == 0 for record in steps)


def no_optimizer_step(look: Look) -> Finding | None:
    """Steps were taken, and the weights are as they were."""
    if not never_trained(look.steps):
        return None
    return Finding(
        "no-optimizer-step",
        "bad",
        "The model was never trained",
        f"none of {len(look.steps)} steps had a completion to train on: {look.total('groups_skipped'):.0f} of {look.total('groups_total'):.0f} groups were skipped",
        "In every group all completions have the same reward, or none is left to compare: problems too hard or too easy, answers cut off or without a code block, no verdicts.",
        "Look at the failures in the viewer; use easier problems, more completions per prompt, or a higher max_tokens.",
    )


def no_format(look: Look) -> Finding | None:
    """Not one answer with a fenced block."""
    rates = [as_number(record.get("format_rate")) for record in look.steps]
    if not rates or any(rates) or None in rates:
        return None
    return Finding(
        "no-code-blocks",
        "bad",
        "No answer has a code block",
        f"0 of {sum(sum(_verdicts(record).values()) for record in look.steps):.0f} completions in {len(look.steps)} steps",
        "The model does not know the answer format, the renderer does not fit the model, or answers are cut off before the block ends.",
        "Read a few completions in the viewer. Check the renderer (renderer=), the prompt, and max_tokens.",
    )


def steps_taken(steps: Sequence[Record]) -> str:
    """How many steps there are, as a clause."""
    return "1 step was taken" if len(steps) == 1 else f"{len(steps)} steps were taken"


def too_few_steps(look: Look) -> Finding | None:
    """Nothing was looked for that takes a trend."""
    return Finding(
        "too-few-steps",
        "note",
        "Too few steps to judge",
        f"{steps_taken(look.steps)}; trends are looked for from {MIN_STEPS} on",
        "The run is short, or has just begun.",
        "Read the completions themselves; look again later.",
    )


def no_learning_signal(look: Look) -> Finding | None:
    """All groups degenerate."""
    late = [record for record in look.steps[-look.window :] if as_number(record.get("groups_total"))]
    total = sum(as_number(record.get("groups_total")) or 0 for record in late)
    skipped = sum(as_number(record.get("groups_skipped")) or 0 for record in late)
    if not total or skipped / total < 0.8:
        return None
    solved = (look.late("mean_correct") or 0) > 0.5
    return Finding(
        "degenerate-groups",
        "bad" if skipped == total else "warning",
        "Most groups teach nothing",
        f"{_percent(skipped / total)} of the groups of the last {len(late)} steps had the same reward for every completion",
        "The problems have become too easy: nearly all completions pass." if solved
        else "The problems are too hard for this model, or its answers cannot pass (cut off, wrong format): nearly all completions fail.",
        "Train on harder problems, or stop here: the run is done." if solved
        else "Use easier problems, more completions per prompt (batch_size), a higher max_tokens, and look at the failures in the viewer.",
    )  # fmt: skip


def reward_stuck_low(look: Look) -> Finding | None:
    """Reward flat at 0."""
    late, early = look.late("mean_correct"), look.early("mean_correct")
    if late is None or early is None or late > 0.02 or early > 0.02:
        return None
    return Finding(
        "reward-flat-at-zero",
        "bad",
        "Almost nothing ever passes",
        f"{_percent(late)} of the completions pass at the end, {_percent(early)} did at the beginning",
        "The model cannot solve these problems at all, or right answers cannot be recognised: truncated completions, a prompt that does not "
        "ask for a fenced block, a time limit that is too short, problems whose tests are wrong.",
        "Open a few completions in the viewer. Check the format and truncation curves first, then judge a known solution with `code-rl judge`.",
    )


def reward_stuck_high(look: Look) -> Finding | None:
    """Reward flat at 1."""
    late, early = look.late("mean_correct"), look.early("mean_correct")
    if late is None or early is None or late < 0.97 or early < 0.9:
        return None
    return Finding(
        "reward-flat-at-one",
        "warning",
        "Almost everything passes from the start",
        f"{_percent(early)} of the completions passed at the beginning and {_percent(late)} at the end",
        "The problems are too easy for this model, or their tests are too weak to fail a wrong program.",
        "Train on harder problems; drop those that the model always solves. Look at a few passing programs in the viewer.",
    )


def format_falling(look: Look) -> Finding | None:
    """The share of answers with a fenced block goes down."""
    late, early = look.late("format_rate"), look.early("format_rate")
    if late is None or early is None or late > early - 0.05:
        return None
    return Finding(
        "format-falling",
        "bad" if late < early - 0.2 else "warning",
        "The model is losing the answer format",
        f"{_percent(early)} of the completions had a fenced code block at the beginning, {_percent(late)} at the end",
        "The learning rate is too high and the model is coming apart, or answers grow past max_tokens before the code block is closed.",
        "Compare with the truncation curve. If it rises, raise max_tokens; if not, lower learning_rate or raise format_coef.",
    )


def held_out_flat(look: Look) -> Finding | None:
    """Reward up while held-out Pass@1 is flat."""
    early, late = look.early("mean_correct"), look.late("mean_correct")
    name = "eval/pass@1" if sum("eval/pass@1" in record for record in look.everything) > 1 else "eval/mean_correct"
    scores = [score for record in look.everything for score in [as_number(record.get(name))] if score is not None]
    if early is None or late is None or len(scores) < 2 or late - early < 0.1 or scores[-1] - scores[0] > 0.02:
        return None
    return Finding(
        "held-out-flat",
        "bad",
        "Training reward rises, held-out Pass@1 does not",
        f"training correctness went from {_percent(early)} to {_percent(late)}, held-out from {_percent(scores[0])} to {_percent(scores[-1])}",
        "The model learns these problems by heart, or learns to please weak tests; or the held-out problems are of another kind.",
        "Look for flagged programs in the viewer. Use more and more varied problems, stronger tests, and fewer passes over the same data.",
    )


def held_out_worse(look: Look) -> Finding | None:
    """Held-out correctness fell from its best."""
    values = [
        (record.get("step"), score)
        for record in look.everything
        for score in [as_number(record.get("eval/mean_correct"))]
        if score is not None
    ]
    if len(values) < 3:
        return None
    best = max(values, key=lambda pair: pair[1])
    if values[-1][1] > best[1] - 0.1 or best[0] == values[-1][0]:
        return None
    return Finding(
        "held-out-falling",
        "warning",
        "The best checkpoint is not the last",
        f"held-out greedy Pass@1 was {_percent(best[1])} {f'after step {best[0]}' if (best[0] or 0) >= 0 else 'before training'} and is {_percent(values[-1][1])} now",
        "The run went on past its best point: too high a learning rate, or overfitting to the training problems.",
        "Use the checkpoint nearest to that step (checkpoints.jsonl); next time stop there or lower learning_rate.",
    )


def loss_exploding(look: Look) -> Finding | None:
    """The loss's size grows by far, or sampler and trainer come apart."""
    late, early = _size(look.steps[-look.window :], "loss"), _size(look.steps[: look.window], "loss")
    if late is None or early is None or late < max(10 * early, 0.5):
        return None
    return Finding(
        "loss-exploding",
        "bad",
        "The loss is exploding",
        f"its mean size went from {early:.3g} to {late:.3g}",
        "The steps are too large: losses are sums over tokens and completions, so the learning rate belongs to the batch size.",
        "Lower learning_rate (by 3 to 10 times) and start again from the last good checkpoint.",
    )


def sampler_trainer_gap(look: Look) -> Finding | None:
    """Sampler and trainer disagree about the same tokens."""
    late = look.late("kl_sample_train")
    stale = look.late("staleness/mean") or look.late("staleness") or 0.0
    if late is None or abs(late) < 0.01 or stale > 0:
        return None
    return Finding(
        "sampler-trainer-gap",
        "bad" if abs(late) > 0.1 else "warning",
        "Sampler and trainer disagree on probabilities",
        f"mean log q − log p over sampled tokens is {late:.3g} at the end; on-policy it should be near 0",
        "Samples come from older weights than those trained, precision differs between the two, or the temperature is not 1 and one of them scales.",
        "Sample from a fresh snapshot after every step, train at temperature 1, or choose a loss made for stale samples (ppo, cispo).",
    )


def entropy_collapse(look: Look) -> Finding | None:
    """The model says the same thing every time."""
    name = "entropy" if look.late("entropy") is not None else "rollouts/entropy"
    late, early = look.late(name), look.early(name)
    if late is None or early is None or early <= 0 or late > 0.2 * early or (look.late("mean_correct") or 0) > 0.9:
        return None
    return Finding(
        "entropy-collapse",
        "warning",
        "The model has stopped exploring",
        f"mean surprise per token fell from {early:.3g} to {late:.3g} nats while {_percent(look.late('mean_correct') or 0)} pass",
        "Updates have made the model nearly deterministic before it solved the problems; groups then all agree and teach nothing.",
        "Lower learning_rate, keep temperature at 1, use more varied problems or more completions per prompt.",
    )


def truncation(look: Look) -> Finding | None:
    """Many answers are cut off at max_tokens."""
    late = look.late("truncated_rate")
    if late is None or late < 0.2:
        return None
    return Finding(
        "truncation",
        "bad" if late > 0.5 else "warning",
        "Many answers are cut off",
        f"{_percent(late)} of the completions at the end reached max_tokens={look.config.get('max_tokens', '?')}",
        "Answers are longer than max_tokens allows, so they end before their code block does and count as failures.",
        "Raise max_tokens (see the length curve), or shorten the prompt where the context is the limit.",
    )


def time_limits(look: Look) -> Finding | None:
    """Time-outs dominate the failures."""
    late, passed = look.share("time_limit"), look.share("passed")
    if late is None or passed is None or late < 0.1 or late < 0.5 * (1 - passed):
        return None
    return Finding(
        "time-limits",
        "warning",
        "Time-outs are most of the failures",
        f"{_percent(late)} of the completions at the end exceed the time limit; {_percent(1 - passed)} fail in all",
        "Programs are too slow for the limits (set for C++, perhaps), or the model has learnt to write endless loops.",
        "Raise reward_timeout or the problems' time_limit_s; look at time_limit programs in the viewer, and at the sandbox's load.",
    )


def compile_errors(look: Look) -> Finding | None:
    """Programs that are not Python."""
    late, early = look.share("compile_error"), look.share("compile_error", late=False)
    if late is None or early is None or late < 0.15 or late < early:
        return None
    return Finding(
        "compile-errors",
        "warning",
        "Many programs do not compile",
        f"{_percent(late)} of the completions at the end are compile errors, {_percent(early)} at the beginning",
        "Code is cut off, the last fenced block is not the program, or the model is coming apart.",
        "Look at some of them in the viewer (filter: compile_error) and at the truncation curve; lower learning_rate if programs degenerate.",
    )


Rule = Callable[[Look], Finding | None]
ALWAYS: tuple[Rule, ...] = (loss_not_finite, sandbox_errors, checker_errors, no_optimizer_step, no_format)
TRENDS: tuple[Rule, ...] = (
    no_learning_signal, reward_stuck_low, reward_stuck_high, format_falling, held_out_flat, held_out_worse, loss_exploding,
    sampler_trainer_gap, entropy_collapse, truncation, time_limits, compile_errors,
)  # fmt: skip


def _mean(records: Sequence[Record], name: str) -> float | None:
    values = [value for record in records for value in [as_number(record.get(name))] if value is not None]
    return sum(values) / len(values) if values else None


def _size(records: Sequence[Record], name: str) -> float | None:
    values = [abs(value) for record in records for value in [as_number(record.get(name))] if value is not None]
    return sum(values) / len(values) if values else None


def _verdicts(record: Record) -> dict[str, float]:
    return {
        name.removeprefix("verdicts/"): as_number(value) or 0.0
        for name, value in record.items()
        if name.startswith("verdicts/")
    }


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"
