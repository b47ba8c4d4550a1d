"""Rollouts: sample a group of completions for one problem and score each as it arrives."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from code_rl.backends.connect import ready
from code_rl.concurrency import together
from code_rl.problems.problem import Problem
from code_rl.problems.prompts import build_prompt
from code_rl.renderers import Message, Renderer
from code_rl.reward.score import GroupScorer, RewardConfig, Score
from code_rl.sandbox.executor import Executor

if TYPE_CHECKING:
    import tinker


@dataclass(frozen=True, slots=True)
class Sampling:
    """How completions are drawn. `temperature` 0 is greedy.

    With `request_per="group"` one request draws a group; with `"completion"` each completion is a request of its own and goes
    to the sandbox the moment it is sampled. The two draw different completions from one seed.
    """

    max_tokens: int
    temperature: float = 1.0
    request_per: Literal["group", "completion"] = "group"


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled completion (T tokens with the sampler's logprobs_T) and what the reward said of it."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    truncated: bool
    score: Score


@dataclass(frozen=True, slots=True)
class Group:
    """One problem's prompt and its G completions. Times are seconds of wall clock, spent waiting for each stage.

    `max_tokens` is the limit that the completions had, `policy_step` the number of training steps behind the weights.
    """

    problem: Problem
    prompt_tokens: tuple[int, ...]
    completions: tuple[Completion, ...]
    sample_s: float
    score_s: float
    max_tokens: int
    policy_step: int = 0

    @property
    def rewards_G(self) -> list[float | None]:
        """One reward per completion; None where the sandbox gave no verdict."""
        return [completion.score.reward for completion in self.completions]


@dataclass(frozen=True, slots=True)
class Policy:
    """All that turns a problem into scored completions: a snapshot of the weights, a renderer, an executor, the reward.

    `step` is the number of training steps behind the snapshot.
    """

    sampler: tinker.SamplingClient
    renderer: Renderer
    executor: Executor
    reward: RewardConfig
    context: int
    step: int = 0

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """The problem's prompt as the model reads it; built from the public view only."""
        return self.renderer.prompt_tokens(problem_messages(problem))

    async def roll_out(self, problem: Problem, count: int, sampling: Sampling, seed: int) -> Group:
        """Sample `count` completions and score them. The draw depends on `seed`, the prompt and the weights alone."""
        prompt = self.prompt_tokens(problem)
        max_tokens = min(sampling.max_tokens, self.context - len(prompt))
        scorer = GroupScorer(problem, self.executor, self.reward)
        started = time.perf_counter()
        if sampling.request_per == "group":
            drawn = await self._sample(prompt, count, max_tokens, sampling.temperature, seed)
            sampled = [time.perf_counter()]
            completions = await together(self._scored(sequence, scorer) for sequence in drawn)
        else:
            sampled = []

            async def one(index: int) -> Completion:
                own = derive_seed(seed, "completion", index)
                (sequence,) = await self._sample(prompt, 1, max_tokens, sampling.temperature, own)
                sampled.append(time.perf_counter())
                return await self._scored(sequence, scorer)

            completions = await together(one(index) for index in range(count))
        scored = time.perf_counter()
        return Group(
            problem=problem,
            prompt_tokens=tuple(prompt),
            completions=tuple(completions),
            sample_s=max(sampled) - started,
            score_s=scored - max(sampled),
            max_tokens=max_tokens,
            policy_step=self.step,
        )

    async def _sample(
        self, prompt: Sequence[int], count: int, max_tokens: int, temperature: float, seed: int
    ) -> Sequence[tinker.types.SampledSequence]:
        return await draw(self.sampler, self.renderer, prompt, count, max_tokens, temperature, seed)

    async def _scored(self, sequence: tinker.types.SampledSequence, scorer: GroupScorer) -> Completion:
        text, truncated = read_answer(self.renderer, sequence)
        return Completion(
            tokens=tuple(sequence.tokens),
            logprobs=tuple(sequence.logprobs or ()),
            text=text,
            truncated=truncated,
            score=await scorer.score(text),
        )


async def draw(
    sampler: tinker.SamplingClient,
    renderer: Renderer,
    prompt: Sequence[int],
    count: int,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> Sequence[tinker.types.SampledSequence]:
    """One sampling request on any back end: `count` sequences that continue `prompt` [T] and end at the renderer's stop sequences."""
    from tinker import types

    parameters = types.SamplingParams(
        max_tokens=max_tokens, temperature=temperature, seed=seed, stop=renderer.get_stop_sequences()
    )
    request = sampler.sample(
        prompt=types.ModelInput.from_ints(list(prompt)), num_samples=count, sampling_params=parameters
    )
    response: tinker.types.SampleResponse = await ready(request)
    return response.sequences


def read_answer(renderer: Renderer, sequence: tinker.types.SampledSequence) -> tuple[str, bool]:
    """A sequence's text, and whether it was cut at the token limit."""
    message, ended = renderer.parse_response(sequence.tokens)
    return message["content"], sequence.stop_reason == "length" and not ended


def problem_messages(problem: Problem) -> list[Message]:
    """The conversation that asks for a solution."""
    return [{"role": "user", "content": build_prompt(problem.view())}]


def derive_seed(seed: int, *names: object) -> int:
    """A seed in [0, 2**31) for one named use; different names give independent streams, the same names the same seed."""
    key = "/".join([str(seed), *map(str, names)]).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") % 2**31
