"""One training run, assembled: its parts, and the values that follow from them alone."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from code_rl.data import ProblemOrder
from code_rl.engine import Backend
from code_rl.grading import Problem
from code_rl.grading.sandbox import Executor
from code_rl.policy import Policy, Sampling, prompt_length
from code_rl.policy.environments import Environment
from code_rl.policy.renderers import Renderer
from code_rl.training.algorithm.lengths import ContextSchedule
from code_rl.training.budget import Budget, Tokens
from code_rl.training.config import BatchShape, Config
from code_rl.training.objective import Objective
from code_rl.training.problem_sampler import ProblemSampler
from code_rl.training.runs.recorder import Recorder

if TYPE_CHECKING:
    import tinker

ADAM: Mapping[str, float] = {"beta1": 0.9, "beta2": 0.95, "eps": 1e-12}
"""These three values are the course's."""


@dataclass(frozen=True)
class Run:
    """All parts of one training run; `first_step` is above 0 if it is resumed.

    `eval_sampling` are the sampling parameters of evaluations; `schedule` has the token limits of
    training. `reference` samples from the base model for the KL term.
    """

    config: Config
    shape: BatchShape
    objective: Objective
    environment: Environment
    backend: Backend
    executor: Executor
    renderer: Renderer
    eval_sampling: Sampling
    schedule: ContextSchedule
    train_problems: ProblemOrder
    test_splits: Mapping[str, Sequence[Problem]]
    recorder: Recorder
    budget: Budget
    stop: asyncio.Event
    reference: tinker.SamplingClient | None
    first_step: int
    _lengths: dict[tuple[str, int], int] = field(default_factory=dict)

    def has_step(self, step: int) -> bool:
        """Return True if `max_steps` (below 0: no end) includes this step (the first is 0)."""
        return self.config.max_steps < 0 or step < self.config.max_steps

    def goes_on(self, step: int) -> bool:
        """Return True if `max_steps` includes this step and the run was not asked to stop."""
        return self.has_step(step) and not self.stop.is_set()

    async def policy(self, step: int, unchanged: Policy | None = None) -> Policy:
        """Return the policy after `step` steps with a new snapshot of the weights, or with that of
        `unchanged` if no step has changed them since. Sampling from an older snapshot would
        silently be off-policy."""
        if unchanged is not None:
            return replace(unchanged, step=step)
        return Policy(
            sampler=await self.backend.sync_weights(),
            renderer=self.renderer,
            executor=self.executor,
            context=self.backend.context,
            environment=self.environment,
            cpu_limit_s=self.config.reward_timeout,
            all_tests=self.objective.reward.all_tests,
            step=step,
        )

    def before_training(self, evaluated: Mapping[str, Any]) -> None:
        """Log the metrics of the evaluation of the untrained policy as step −1, and charge its
        tokens."""
        self.budget.spent += Tokens.of(evaluated)
        self.recorder.log_step(-1, evaluated)

    @property
    def adam_params(self) -> tinker.types.AdamParams:
        """Adam's settings: the run's learning rate and, if it is not 0, `grad_clip_norm`; the rest
        is `ADAM`."""
        from tinker import types

        config = self.config
        return types.AdamParams(
            learning_rate=config.learning_rate,
            **ADAM,
            **({"grad_clip_norm": config.grad_clip_norm} if config.grad_clip_norm else {}),
        )

    @cached_property
    def problem_sampler(self) -> ProblemSampler:
        """The sampler of each batch's problems, made once. Their prompts leave room for an answer
        (above the tokens of `overlong=penalty:TOKENS`)."""
        limit = self.backend.context - self.objective.shaping.buffer
        return ProblemSampler(
            self.train_problems, self.config, self.shape.prompts, self._prompt_length, limit
        )

    def _prompt_length(self, problem: Problem) -> int:
        """Return the tokens of a problem's prompt; each problem is encoded once. Raises DataError
        or ConfigError as `prompt_length` does."""
        key = (problem.id, hash(problem.statement))
        if key not in self._lengths:
            self._lengths[key] = prompt_length(problem, self.environment, self.renderer)
        return self._lengths[key]

    @cached_property
    def held_out_prompts(self) -> int:
        """Number of tokens of all held-out prompts, each counted once; computed once."""
        return sum(
            self._prompt_length(problem) for split in self.test_splits.values() for problem in split
        )


def sampling_of(config: Config, room: int) -> Sampling:
    """Return the sampling parameters of a run's settings, with at most `room` tokens per
    completion."""
    return Sampling(
        min(config.max_tokens, room), config.temperature, top_p=config.top_p, top_k=config.top_k
    )


def worst_batch(run: Run, step: int) -> Tokens:
    """Return the most tokens that a step's batch can use: every trajectory at its limit, every slot
    resampled as often as allowed, canaries and the reference model included. It must not be below
    the tokens that the step's metrics report, or a cap could be exceeded."""
    config, shape, turns = run.config, run.shape, run.environment.max_turns
    limit, longest = run.schedule.longest, run.problem_sampler.longest(step)
    groups = shape.prompts * (1 + config.dynamic_sampling) + math.ceil(
        config.canary * shape.prompts
    )
    trajectories = groups * shape.samples_per_prompt
    sample = trajectories * limit
    # Each later turn reads the whole conversation again, up to the context length.
    prefill = trajectories * (longest + (turns - 1) * run.backend.context)
    return Tokens(prefill + (sample + prefill if config.kl_coef else 0), sample, sample + prefill)


def worst_evaluation(run: Run) -> Tokens:
    """Return the most tokens that a full evaluation can use: greedy and sampled completions, all at
    their limit."""
    each = 1 + run.config.eval_samples
    count = sum(map(len, run.test_splits.values())) * each
    later = (run.environment.max_turns - 1) * run.backend.context
    return Tokens(run.held_out_prompts * each + count * later, count * run.eval_sampling.max_tokens)


def unaffordable(run: Run, step: int, evaluations: int = 1) -> str | None:
    """Return why the batch of a step, with this number of evaluations (none with `eval_every` below
    0), could exceed a cap, or None if it cannot. Nothing is reserved."""
    if not run.budget.capped:
        return None
    worst = worst_batch(run, step)
    for _ in range(evaluations if run.config.eval_every >= 0 else 0):
        worst += worst_evaluation(run)
    return run.budget.refusal(worst)
