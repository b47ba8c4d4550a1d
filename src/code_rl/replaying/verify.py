"""Whether a recorded step is what its own samples and verdicts mean: rewards, advantages, masks, metrics and decisions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from code_rl.objective import Credit
from code_rl.replaying.again import ReplayedStep
from code_rl.replaying.recording import RecordedGroup, Recording

NOT_COMPUTED = ("time/", "optim/", "prompts_replaced", "eval/", "sandbox/", "tokens/eval")
FROM_ANSWERS = ("loss", "kl_sample_train", "ratio_mean", "ratio_max", "clip_fraction")
"""Metrics that the trainer's answers decide."""
TOLERANCE = 1e-5
"""Relative, for sums over float32 numbers: another machine may add them in another order. All else must be equal."""


def differences(step: ReplayedStep, recording: Recording) -> Iterator[str]:
    """One sentence per difference."""
    for line, credited in step.credited:
        yield from _credit_differences(line, credited)
    yield from _place_differences(step, recording)
    if step.recorded.sampled is not None:
        yield from _decision_differences(step, step.recorded.sampled)
    if step.recorded.metrics is not None:
        yield from _metric_differences(step, step.recorded.metrics)
    elif step.recorded.groups and step.recorded.answers is not None:
        recording.notices.append(f"step {step.recorded.step} was cut before its metrics were logged")


def _credit_differences(line: RecordedGroup, credited: Credit) -> Iterator[str]:
    where = f"group {line.place}" + (f" attempt {line.attempt}" if line.attempt else "")
    recorded = {"reward": line.rewards_G, "advantage": line.advantages_G, "masked": line.mask_reasons_G}
    computed = {"reward": credited.rewards_G, "advantage": credited.advantages_G, "masked": credited.mask_reasons_G}
    for name, values in recorded.items():
        for index, (before, after) in enumerate(zip(values, computed[name], strict=True)):
            if before != after:
                yield f"{where} completion {index}: {name} {before} is recorded, {after} follows from its verdict"
    for index, trajectory in enumerate(line.group.trajectories):
        if trajectory.format_ok == (trajectory.verdict.kind == "no_code"):
            block = "a" if trajectory.format_ok else "no"
            yield f"{where} completion {index}: its text has {block} fenced block, its verdict is {trajectory.verdict.kind}"
    if line.skipped != credited.skipped:
        yield f"{where}: skipped={line.skipped} is recorded, {credited.skipped} follows from its verdicts"


def _place_differences(step: ReplayedStep, recording: Recording) -> Iterator[str]:
    """Every place of the batch is there once, from attempt 0 on without a gap, with all its completions."""
    attempts: dict[int, list[int]] = {}
    for line in step.recorded.groups:
        attempts.setdefault(line.place, []).append(line.attempt)
        if len(line.rewards_G) != recording.shape.samples_per_prompt:
            yield f"group {line.place} has {len(line.rewards_G)} completions instead of {recording.shape.samples_per_prompt}"
    for place, found in sorted(attempts.items()):
        if found != list(range(len(found))):
            yield f"group {place} is recorded as attempts {found}"
        if not 0 <= place < recording.shape.prompts:
            yield f"group {place} is outside the batch of {recording.shape.prompts} prompts"
    absent = sorted(set(range(recording.shape.prompts)) - set(attempts))
    if absent and (step.recorded.metrics is not None):
        yield f"{len(absent)} groups are missing from the rollouts ({', '.join(map(str, absent[:8]))})"


def _decision_differences(step: ReplayedStep, sampled: Mapping[str, Any]) -> Iterator[str]:
    """What was sampled is what the journal decided to sample."""
    problems = list(sampled.get("problems") or [])
    for place, problem in (sampled.get("instead") or {}).items():
        problems[int(place)] = problem
    for line in step.recorded.groups:
        if line.attempt == 0 and line.place < len(problems) and line.group.problem.id != problems[line.place]:
            yield f"group {line.place} is of problem {line.group.problem.id}, the journal decided on {problems[line.place]}"
        if "policy_step" in sampled and line.group.policy_step != sampled["policy_step"]:
            yield f"group {line.place} was sampled at step {line.group.policy_step}, the journal decided on {sampled['policy_step']}"


def _metric_differences(step: ReplayedStep, recorded: Mapping[str, Any]) -> Iterator[str]:
    unknown = step.recorded.answers is None
    names = Counter([*recorded, *step.metrics])
    for name in names:
        if name == "step" or name.startswith(NOT_COMPUTED) or (unknown and name in FROM_ANSWERS):
            continue
        before, after = recorded.get(name), step.metrics.get(name)
        if not _same(before, after):
            yield f"{name} {before} is recorded in the metrics, {after} follows from the rollouts"


def _same(before: Any, after: Any) -> bool:
    if isinstance(before, float) and isinstance(after, int | float):
        return math.isclose(before, after, rel_tol=TOLERANCE, abs_tol=1e-9)
    return bool(before == after)
