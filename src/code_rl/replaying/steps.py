"""One recorded step again: rewards, advantages, examples and metrics under any settings of the algorithm, from what was recorded; and whether that is what was recorded.

What a policy trained differently would have sampled cannot be known: each step is recomputed on the samples that the run drew.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from code_rl.algorithm.datums import Example, segments
from code_rl.algorithm.kl import penalise_kl
from code_rl.algorithm.metrics import step_metrics
from code_rl.config import Config
from code_rl.errors import ConfigError, DataError
from code_rl.loop import examples_of, score_group
from code_rl.objective import Objective, ScoredGroup, objective_of
from code_rl.pipeline import TrainedBatch
from code_rl.runs.journal import Logprobs
from code_rl.runs.recorded_run import NOT_RECORDED, UNREADABLE, RecordedRun, RecordedStep

Member = tuple[int, int, int, int]
"""Place in the batch, attempt, index in the group, number of the segment."""
NOT_COMPUTED = ("time/", "optim/", "prompts_replaced", "eval/", "sandbox/", "tokens/eval")
FROM_ANSWERS = ("loss", "kl_sample_train", "ratio_mean", "ratio_max", "clip_fraction")
"""Metrics that the trainer's answers decide."""
TOLERANCE = 1e-5
"""Relative, for sums over float32 numbers: another machine may add them in another order. All else must be equal."""


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """A step as recorded and as it would have been scored; `assumed` of its examples have no recorded answer of the trainer,
    so that their ratio is taken as 1."""

    recorded: RecordedStep
    scored: list[ScoredGroup]
    metrics: Mapping[str, Any]
    assumed: int


def replay_steps(recording: RecordedRun, config: Config) -> Iterator[ReplayedStep]:
    """Every recorded step under `config`'s algorithm. Raises DataError for damage, ConfigError for what no recording can give."""
    objective = objective_of(config)
    for step in recording.steps():
        try:
            yield _replayed(step, recording, objective)
        except UNREADABLE as error:
            raise DataError(f"{recording.log_path}: step {step.step} cannot be computed again: {error}") from error


def _replayed(step: RecordedStep, recording: RecordedRun, objective: Objective) -> ReplayedStep:
    _refuse_buffer(step, objective)
    answers = _by_member(step, recording)
    scored = [score_group(recorded.group, objective) for recorded in step.groups]
    trained = TrainedBatch(scored)
    assumed = 0
    size = recording.shape.prompts // recording.config.num_substeps
    for first in range(0, recording.shape.prompts, size):
        part = [each for each in scored if first <= each.group.place < first + size]
        members = [member for each in part for member, _ in _members(each)]
        examples = [example for each in part for example in examples_of(each)]
        if objective.kl_coef and examples:
            reference = [_reference(answers, member, step.step, objective) for member in members]
            examples, divergence = penalise_kl(
                examples, [list(map(float, each)) for each in reference], objective.kl_coef
            )
            trained.divergences.append(divergence)
        for member, example in zip(members, examples, strict=True):
            known = answers.get(member)
            assumed += known is None
            trained.logprobs.append(_trainer_logprobs(example, known[0] if known else None))
        trained.examples += examples
    metrics = step_metrics(step.step, trained, objective) | _limits(step)
    return ReplayedStep(step, scored, metrics, assumed)


def _limits(step: RecordedStep) -> dict[str, int]:
    """What a step's sampling was bounded by, as it was recorded."""
    recorded, sampled = step.metrics or {}, step.sampled or {}
    longest = max((recorded.group.max_tokens for recorded in step.groups), default=0)
    limit = sampled.get("max_tokens", recorded.get("max_tokens", longest))
    return {"max_tokens": limit, "stage": recorded.get("stage", 0)}


def _refuse_buffer(step: RecordedStep, objective: Objective) -> None:
    """Raise ConfigError where a group was sampled under a limit that the penalty's buffer would fill."""
    buffer = objective.shaping.buffer
    for group in [recorded.group for recorded in step.groups]:
        if 0 < group.max_tokens <= buffer:
            raise ConfigError(
                f"overlong_buffer={buffer} is not below {group.max_tokens}, the token limit that problem {group.problem.id!r} had at step "
                f"{step.step}: even the shortest answer would be penalised"
            )


def _members(scored: ScoredGroup) -> list[tuple[Member, int]]:
    """What each example of a group is of, and how many of its targets were sampled."""
    group = scored.group
    return [
        ((group.place, group.attempt, index, number), sum(logprob is not None for logprob in logprobs))
        for index, _ in scored.trained
        for number, (_, logprobs) in enumerate(segments(group.trajectories[index].turns))
    ]


def _by_member(step: RecordedStep, recording: RecordedRun) -> dict[Member, tuple[Logprobs, Logprobs | None]]:
    """Recorded answers by member; empty when the step's were not recorded."""
    if step.answers is None:
        return {}
    parts = [part for recorded in step.groups for part in _members(recorded)]
    members, lengths = [member for member, _ in parts], [length for _, length in parts]
    logprobs, reference = step.answers
    wrong = [each for each in (logprobs, reference or logprobs) if [len(answer) for answer in each] != lengths]
    if wrong:
        raise DataError(
            f"{recording.log_path}: step {step.step} has answers of the trainer that do not fit its rollouts "
            f"({len(members)} datums were recorded)"
        )
    return {member: (logprobs[i], reference[i] if reference else None) for i, member in enumerate(members)}


def _reference(
    answers: Mapping[Member, tuple[Logprobs, Logprobs | None]], member: Member, step: int, objective: Objective
) -> Logprobs:
    known = answers.get(member)
    if known is None or known[1] is None:
        raise ConfigError(
            f"kl_coef={objective.kl_coef} needs the reference model's log-probabilities, which the recording lacks (step {step}); "
            "give kl_coef=0"
        )
    return known[1]


def _trainer_logprobs(example: Example, answered: Logprobs | None) -> Logprobs:
    """Over all targets, as a trainer answers; without a recorded answer the sampler's, which means a ratio of 1."""
    logprobs_T: Logprobs = np.array(example.datum.loss_fn_inputs["logprobs"].to_numpy(), dtype=np.float32)
    if answered is not None:
        logprobs_T[example.sampled] = answered
    return logprobs_T


def differences(step: ReplayedStep, recording: RecordedRun) -> Iterator[str]:
    """One sentence per difference."""
    for recorded, scored in zip(step.recorded.groups, step.scored, strict=True):
        yield from _score_differences(recorded, scored)
    yield from _place_differences(step, recording)
    if step.recorded.sampled is not None:
        yield from _decision_differences(step, step.recorded.sampled)
    if step.recorded.metrics is not None:
        yield from _metric_differences(step, step.recorded.metrics)
    elif step.recorded.groups and step.recorded.answers is not None:
        recording.notices.append(f"step {step.recorded.step} was cut before its metrics were logged")


def _score_differences(recorded: ScoredGroup, scored: ScoredGroup) -> Iterator[str]:
    where = recorded.group.where
    for name, was, now in (
        ("reward", recorded.rewards_G, scored.rewards_G),
        ("advantage", recorded.advantages_G, scored.advantages_G),
        ("masked", recorded.mask_reasons_G, scored.mask_reasons_G),
    ):
        for index, (before, after) in enumerate(zip(was, now, strict=True)):
            if before != after:
                yield f"{where} completion {index}: {name} {before} is recorded, {after} follows from its verdict"
    for index, trajectory in enumerate(recorded.group.trajectories):
        if trajectory.format_ok == (trajectory.verdict.kind == "no_code"):
            block = "a" if trajectory.format_ok else "no"
            yield f"{where} completion {index}: its text has {block} fenced block, its verdict is {trajectory.verdict.kind}"
    if recorded.skipped != scored.skipped and not (recorded.skipped == NOT_RECORDED and scored.skipped):
        yield f"{where}: skipped={recorded.skipped} is recorded, {scored.skipped} follows from its verdicts"


def _place_differences(step: ReplayedStep, recording: RecordedRun) -> Iterator[str]:
    """Every place of the batch is there once, from attempt 0 on without a gap, with all its completions."""
    attempts: dict[int, list[int]] = {}
    for group in [recorded.group for recorded in step.recorded.groups]:
        attempts.setdefault(group.place, []).append(group.attempt)
        count = len(group.trajectories)
        if count != recording.shape.samples_per_prompt:
            yield f"group {group.place} has {count} completions instead of {recording.shape.samples_per_prompt}"
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
    for group in [recorded.group for recorded in step.recorded.groups]:
        if group.attempt == 0 and group.place < len(problems) and group.problem.id != problems[group.place]:
            yield f"group {group.place} is of problem {group.problem.id}, the journal decided on {problems[group.place]}"
        if "policy_step" in sampled and group.policy_step != sampled["policy_step"]:
            yield f"group {group.place} was sampled at step {group.policy_step}, the journal decided on {sampled['policy_step']}"


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
