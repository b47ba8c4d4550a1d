"""Generators of samples with one interface: a file, the reference solutions, weights on a back end.
`endpoint` is another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from code_rl.engine import TrainingOptions, connect
from code_rl.engine.checkpoints import checkpoint_record, read_config
from code_rl.engine.local import share_cores
from code_rl.evaluation.samples import GREEDY, SAMPLED, STATE, Mode, Sample, read_stored
from code_rl.evaluation.settings import EvalConfig
from code_rl.grading import Problem, extract_code
from code_rl.grading.sandbox import Executor
from code_rl.policy import Group, GroupGrader, Policy, Sampling
from code_rl.policy.completion_log import GroupLog
from code_rl.policy.environments import Environment, Single, get_environment
from code_rl.policy.renderers import Message, get_renderer
from code_rl.util.data_files import file_sha256
from code_rl.util.errors import CodeRLError, ConfigError
from code_rl.util.options import SamplingOptions


class CompletionError(CodeRLError):
    """One sample is not available; the others continue. The message begins with a code for
    counting, up to the first colon."""


@dataclass(frozen=True, slots=True)
class EvalEntry:
    """One problem's position. `split` and `index` decide the seeds, `tags` the breakdowns.
    `continued` is the text that an evalplus completion follows."""

    problem_id: str
    split: str
    index: int
    tags: Mapping[str, str] = field(default_factory=dict)
    continued: str | None = None


Question = tuple[Problem, Sequence[Message] | None]
"""A problem and its opening messages (None: the environment's)."""


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A problem, its opening `messages` (None: the environment's), and the seed of its samples.

    `total` is the number of samples of this mode. `log` stores an unfinished conversation; `grader`
    judges (None: the policy's own).
    """

    problem: Problem
    messages: Sequence[Message] | None
    seed: int
    mode: Mode
    total: int
    log: Callable[[], GroupLog] = GroupLog
    grader: GroupGrader | None = None

    @property
    def opening(self) -> Sequence[Message]:
        """The conversation up to the answer, for generators that answer once: `messages`, or else
        the course's prompt."""
        return Single().begin(self.problem.view()) if self.messages is None else self.messages


class CompletionGenerator(Protocol):
    """Generates samples for `at_once` requests at a time, however many are made. If `grouped`, all
    samples of a problem are one request."""

    description: str
    facts: Mapping[str, Any]
    at_once: int = 4
    grouped: bool = True

    async def complete(self, request: CompletionRequest, numbers: Sequence[int]) -> list[Sample]:
        """Return the samples of these numbers, in any order; a missing one counts as not available.
        Raises CompletionError if these are not available, another CodeRLError to end the
        evaluation."""
        ...


class Stored(CompletionGenerator):
    """Samples made elsewhere."""

    def __init__(self, path: str, samples: Mapping[str, Sequence[Sample]], sha256: str) -> None:
        """Hold `samples` by problem id, read from the file `path` with this hash, which the
        manifest records."""
        self.description = f"samples of {path}"
        self.facts = {"samples": path, "sha256": sha256}
        self._samples = samples

    async def complete(self, request: CompletionRequest, numbers: Sequence[int]) -> list[Sample]:
        """Return the file's samples of these numbers and this mode; those that it does not have are
        left out."""
        stored = self._samples.get(request.problem.id, ())
        return [
            sample for sample in stored if sample.mode == request.mode and sample.sample in numbers
        ]


class Reference(CompletionGenerator):
    """The data set's own solutions, which test the data set itself."""

    description = "the benchmark's own solutions"
    facts: Mapping[str, Any] = {"model": "reference"}

    async def complete(self, request: CompletionRequest, numbers: Sequence[int]) -> list[Sample]:
        """Return the first reference solution under each number. Raises CompletionError for a
        problem without one."""
        problem = request.problem
        if not problem.solutions:
            raise CompletionError("no_reference: the benchmark has no solution of this problem")
        return [
            Sample(problem.id, request.mode, number, code=problem.solutions[0])
            for number in numbers
        ]


@dataclass(slots=True)
class PolicyGenerator:
    """A policy of any back end, in its environment. All samples of a request are one group, so
    their seeds are reproducible."""

    policy: Policy
    sampling: Sampling
    at_once: int
    description: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    grouped: bool = True

    async def complete(self, request: CompletionRequest, numbers: Sequence[int]) -> list[Sample]:
        """Roll out the whole group of `request.total` samples, greedily at temperature 0, and
        return the requested ones, with their verdicts. Samples in the request's log are not
        generated again."""
        sampling = (
            replace(self.sampling, temperature=0.0) if request.mode == GREEDY else self.sampling
        )
        group = await self.policy.roll_out(
            request.problem,
            request.total,
            sampling,
            request.seed,
            request.log(),
            request.grader,
            request.messages,
        )
        return [_sample(group, request.mode, number) for number in numbers]


def _sample(group: Group, mode: Mode, number: int) -> Sample:
    """Return trajectory `number` of a group as a sample with its verdict: its last answer, or the
    program if an environment found it in its own way. `seconds` are those of the whole group."""
    trajectory = group.trajectories[number]
    plain = extract_code(trajectory.text, group.problem.language) == trajectory.last.code
    return Sample(
        group.problem.id,
        mode,
        number,
        completion=trajectory.text if plain else None,
        code=None if plain else trajectory.last.code,
        truncated=trajectory.truncated,
        prompt_tokens=trajectory.prefilled,
        completion_tokens=trajectory.length,
        seconds=group.sample_s,
        verdict=trajectory.verdict,
    )


async def open_policy(
    config: SamplingOptions,
    training: TrainingOptions,
    folder: Path,
    state_path: str | None,
    executor: Executor,
    environment: Environment,
    stack: AsyncExitStack,
) -> tuple[Policy, str]:
    """Connect the weights of `state_path` (None: the base model's) and return their policy, with
    the description of their back end. `folder` is for the embedded engine's state; `stack` closes
    the back end. Raises ConfigError, CheckpointError or BackendError if they cannot be
    connected."""

    share_cores()
    backend = await connect(config, training, folder, state_path)
    stack.callback(backend.close)
    sampler = await (backend.base_sampler() if state_path is None else backend.sync_weights())
    renderer = get_renderer(config.renderer, backend.tokenizer)
    policy = Policy(sampler, renderer, executor, backend.context, environment)
    return policy, backend.description


async def connect_weights(
    config: EvalConfig, out: Path, executor: Executor, stack: AsyncExitStack
) -> PolicyGenerator:
    """Connect the weights of `config.checkpoint` (None: the base model `config.model_name`) on
    their back end, in their environment; `stack` closes it. Raises ConfigError or CheckpointError
    for a checkpoint or an environment that cannot be used."""

    facts = dict[str, Any](model=config.model_name, backend=config.backend)
    where, state_path, training = str(config.model_name), None, TrainingOptions()
    if config.checkpoint is not None:
        run, record = checkpoint_record(config.checkpoint)
        where, state_path = f"checkpoint {record['name']} of {run.name}", record["state_path"]
        facts |= {"run": run.name, "checkpoint": record["name"], "step": record.get("step")}
        kept = read_config(run)
        training = TrainingOptions(lora_rank=kept.get("lora_rank", training.lora_rank))
        if kept.get("recipe") is not None:
            facts["recipe"] = kept["recipe"]
    environment = get_environment(config.environment, config.max_turns)
    how = ""
    if config.environment != "single":
        facts |= {"environment": config.environment, "max_turns": environment.max_turns}
        how = f", environment {config.environment} (up to {environment.max_turns} answers)"
    policy, backend = await open_policy(
        config, training, out / STATE, state_path, executor, environment, stack
    )
    return PolicyGenerator(
        replace(policy, drawing=asyncio.Semaphore(config.asking)),
        Sampling(config.max_tokens, config.temperature, top_p=config.top_p, top_k=config.top_k),
        at_once=config.asking,
        description=f"{where} on {backend}{how}",
        facts=facts,
    )


def read_samples_file(
    path: str, entries: Sequence[EvalEntry], others: Collection[str]
) -> tuple[Stored, int, bool, int]:
    """Return the stored samples for a benchmark, the largest number of sampled ones per problem,
    True if there are greedy ones, and the number left out because their problems are among
    `others`.

    Raises ConfigError if there is no file or no sample is left, DataError for malformed rows and
    for ids that are in neither `entries` nor `others`.
    """
    if not Path(path).is_file():
        raise ConfigError(f"samples={path} is no file")
    asked = {entry.problem_id: entry.continued for entry in entries}
    found = read_stored(path, dict.fromkeys(others, "") | asked)
    stored: Mapping[str, list[Sample]] = {name: found[name] for name in found if name in asked}
    left_out = sum(map(len, found.values())) - sum(map(len, stored.values()))
    if not stored:
        raise ConfigError(
            f"samples={path} has no sample of the {len(asked)} problems evaluated, and {left_out} "
            "of problems that are left out"
        )
    numbers = [sum(sample.mode == SAMPLED for sample in samples) for samples in stored.values()]
    greedy = any(sample.mode == GREEDY for samples in stored.values() for sample in samples)
    return Stored(Path(path).name, stored, file_sha256(Path(path))), max(numbers), greedy, left_out
