"""One recorded step again: credit, examples and metrics under any settings of the algorithm, from what was recorded.

What a policy trained differently would have sampled cannot be known: each step is recomputed on the samples that the run drew.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from code_rl.accounting import step_metrics
from code_rl.config import Config
from code_rl.errors import ConfigError, DataError
from code_rl.objective import (
    Credit,
    Example,
    Objective,
    build_examples,
    credit,
    objective_of,
    penalise_kl,
    trained_members,
)
from code_rl.replaying.recording import UNREADABLE, RecordedGroup, RecordedStep, Recording
from code_rl.rollouts import Group
from code_rl.runs.trained import Logprobs

Member = tuple[int, int, int]
"""Place in the batch, attempt, index in the group."""


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """What metrics want to know of a batch."""

    step: int
    stage: int
    max_tokens: int
    size: int


@dataclass(frozen=True, slots=True)
class ReplayedStep:
    """A step as recorded and as it would have been credited; `assumed` of its examples have no recorded answer of the trainer,
    so that their ratio is taken as 1."""

    recorded: RecordedStep
    credited: list[tuple[RecordedGroup, Credit]]
    metrics: Mapping[str, Any]
    assumed: int


def replay_steps(recording: Recording, config: Config) -> Iterator[ReplayedStep]:
    """Every recorded step under `config`'s algorithm. Raises DataError for damage, ConfigError for what no recording can give."""
    objective = objective_of(config)
    for step in recording.steps(config.format_coef):
        try:
            yield _replayed(step, recording, objective)
        except UNREADABLE as error:
            raise DataError(f"{recording.log_path}: step {step.step} cannot be computed again: {error}") from error


def _replayed(step: RecordedStep, recording: Recording, objective: Objective) -> ReplayedStep:
    from code_rl.loop import Learned

    answers = _by_member(step, recording)
    credited = [(line, credit(line.group, objective)) for line in step.groups]
    learned = Learned(credited=[(line.group, each) for line, each in credited])
    assumed = 0
    for part in _requests(credited, recording):
        pairs = [_examples(line, each) for line, each in part]
        members = [member for names, _ in pairs for member in names]
        examples = [example for _, made in pairs for example in made]
        if objective.kl_coef and examples:
            reference = [_reference(answers, member, step.step, objective) for member in members]
            examples, divergence = penalise_kl(
                examples, [list(map(float, each)) for each in reference], objective.kl_coef
            )
            learned.kl_reference.append(divergence)
        for member, example in zip(members, examples, strict=True):
            known = answers.get(member)
            assumed += known is None
            learned.trained.logprobs.append(_trainer_logprobs(example, known[0] if known else None))
        learned.trained.examples += examples
    return ReplayedStep(step, credited, step_metrics(_batch(step, recording), learned, objective), assumed)


def _requests(
    credited: Sequence[tuple[RecordedGroup, Credit]], recording: Recording
) -> Iterator[list[tuple[RecordedGroup, Credit]]]:
    """The groups of each request to the trainer, in order."""
    config = recording.config
    size = recording.shape.prompts // (config.num_substeps * config.num_minibatches)
    for first in range(0, recording.shape.prompts, size):
        yield [pair for pair in credited if first <= pair[0].place < first + size]


def _examples(line: RecordedGroup, each: Credit) -> tuple[list[Member], list[Example]]:
    pair: list[tuple[Group, Credit]] = [(line.group, each)]
    members = [(line.place, line.attempt, index) for index in trained_members(line.group, each)]
    return members, build_examples(pair)


def _by_member(step: RecordedStep, recording: Recording) -> dict[Member, tuple[Logprobs, Logprobs | None]]:
    """Recorded answers by member; empty when the step's were not recorded."""
    if step.answers is None:
        return {}
    members = [(line.place, line.attempt, index) for line in step.groups for index in line.trained_on]
    lengths = [len(line.group.completions[index].tokens) for line in step.groups for index in line.trained_on]
    logprobs, reference = step.answers.logprobs, step.answers.reference
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
        logprobs_T[example.start :] = answered
    return logprobs_T


def _batch(step: RecordedStep, recording: Recording) -> ReplayedBatch:
    recorded, sampled = step.metrics or {}, step.sampled or {}
    longest = max((line.group.max_tokens for line in step.groups), default=0)
    return ReplayedBatch(
        step=step.step,
        stage=recorded.get("stage", 0),
        max_tokens=sampled.get("max_tokens", recorded.get("max_tokens", longest)),
        size=recording.shape.prompts,
    )
