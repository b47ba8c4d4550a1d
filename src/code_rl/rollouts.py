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
from code_rl.reward.extract import extract_code
from code_rl.reward.score import GroupScorer, RewardConfig, Score
from code_rl.runs.inflight import Drawn, Request, Slot
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

    async def roll_out(
        self, problem: Problem, count: int, sampling: Sampling, seed: int, slot: Slot | None = None
    ) -> Group:
        """Sample `count` completions and score them. The draw depends on `seed`, the prompt and the weights alone.

        What `slot` has of this group is neither sampled nor judged again; what comes is kept there.
        """
        prompt = self.prompt_tokens(problem)
        max_tokens = min(sampling.max_tokens, self.context - len(prompt))
        request = Request(problem.id, prompt, count, max_tokens, seed)
        rollout = _Rollout(self, problem, request, sampling, slot)
        started = time.perf_counter()
        completions, sampled, sample_s = await rollout.run(started)
        scored = time.perf_counter()
        return Group(
            problem=problem,
            prompt_tokens=tuple(prompt),
            completions=tuple(completions),
            sample_s=sample_s,
            score_s=scored - sampled,
            max_tokens=max_tokens,
            policy_step=self.step if slot is None or slot.policy_step is None else slot.policy_step,
        )


class _Rollout:
    """One group on its way."""

    def __init__(
        self, policy: Policy, problem: Problem, request: Request, sampling: Sampling, slot: Slot | None
    ) -> None:
        self._policy, self._request, self._sampling, self._slot = policy, request, sampling, slot
        self._scorer = GroupScorer(problem, policy.executor, policy.reward)
        self._sampled = 0.0
        self._judged: set[str | None] = set()

    async def run(self, started: float) -> tuple[list[Completion], float, float]:
        """The completions, when the last was sampled, and seconds of sampling."""
        self._sampled = started
        known: dict[int, Drawn] = {}
        if self._slot is not None:
            self._slot.open(self._request)
            known = dict(self._slot.drawn)
            for member, verdict in self._slot.verdicts.items():
                code = extract_code(read_answer(self._policy.renderer, known[member])[0])
                self._scorer.reached(code, verdict)
                self._judged.add(code)
        count, seed = self._request.count, self._request.seed
        if self._sampling.request_per == "group" and len(known) < count:
            drawn = await self._draw(0, count, seed, started)
            known = dict(enumerate(drawn))

        async def one(member: int) -> Completion:
            if member not in known:
                (known[member],) = await self._draw(member, 1, derive_seed(seed, "completion", member), started)
            return await self._scored(member, known[member])

        completions = await together(one(member) for member in range(count))
        sample_s = self._slot.sample_s if self._slot is not None else self._sampled - started
        return completions, self._sampled, sample_s

    async def _draw(self, first: int, count: int, seed: int, started: float) -> list[Drawn]:
        policy, request = self._policy, self._request
        sequences = await draw(
            policy.sampler,
            policy.renderer,
            request.prompt_tokens,
            count,
            request.max_tokens,
            self._sampling.temperature,
            seed,
        )
        drawn = [Drawn(tuple(each.tokens), tuple(each.logprobs or ()), str(each.stop_reason)) for each in sequences]
        self._sampled = time.perf_counter()
        if self._slot is not None:
            self._slot.keep_drawn(first, drawn, self._sampled - started, policy.step)
        return drawn

    async def _scored(self, member: int, sequence: Drawn) -> Completion:
        text, truncated = read_answer(self._policy.renderer, sequence)
        score = await self._scorer.score(text)
        if self._slot is not None and score.code not in self._judged:
            self._judged.add(score.code)
            self._slot.keep_verdict(member, score.verdict)
        return Completion(
            tokens=sequence.tokens,
            logprobs=sequence.logprobs,
            text=text,
            truncated=truncated,
            score=score,
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


def read_answer(renderer: Renderer, sequence: tinker.types.SampledSequence | Drawn) -> tuple[str, bool]:
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
