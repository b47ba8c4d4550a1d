"""τ ~ π(·|x): trajectories of one problem, sampled from a snapshot of the weights and judged as
they arrive; and the room that a model's context leaves for answers."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from code_rl.engine import ready
from code_rl.grading import Problem, Verdict, VerdictKind, judge_async
from code_rl.grading.sandbox import Executor
from code_rl.policy.completion_log import (
    GroupLog,
    Program,
    SampledAnswer,
    SampledAnswers,
    SamplingRequest,
)
from code_rl.policy.environments.base import Environment, Single
from code_rl.policy.environments.tools import output_of
from code_rl.policy.renderers import Message, Renderer
from code_rl.policy.trajectory import Group, Trajectory, Turn
from code_rl.util.concurrency import gather_or_cancel
from code_rl.util.door import Lazy
from code_rl.util.errors import DataError, resource_errors

if TYPE_CHECKING:
    import tinker
else:
    tinker = Lazy("tinker")

What = TypeVar("What", bound=Hashable)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Sampling:
    """The sampling parameters. `temperature` 0 is greedy; `max_tokens` limits all turns of a
    trajectory together.

    With `request_per="group"` one request samples the first answers of a whole group. With
    `"completion"` each answer has its own request and is judged as soon as it is sampled. The two
    modes give different answers for the same seed.
    """

    max_tokens: int
    temperature: float = 1.0
    request_per: Literal["group", "completion"] = "group"
    top_p: float = 1.0
    top_k: int = -1


@dataclass(frozen=True, slots=True)
class Policy:
    """Turns a problem into judged trajectories: a snapshot of the weights, a renderer, an
    environment and an executor.

    `step` is the number of training steps behind the snapshot; `context` is the model's context
    length in tokens. `cpu_limit_s` lowers each problem's own limit. Each sampling request runs
    inside the context manager `drawing`, which may delay it.
    """

    sampler: tinker.SamplingClient
    renderer: Renderer
    executor: Executor
    context: int
    environment: Environment = field(default_factory=Single)
    cpu_limit_s: float | None = None
    all_tests: bool = False
    step: int = 0
    drawing: AbstractAsyncContextManager[object, None] = field(default_factory=nullcontext)

    async def roll_out(
        self,
        problem: Problem,
        count: int,
        sampling: Sampling,
        seed: int,
        log: GroupLog | None = None,
        grader: GroupGrader | None = None,
        opening: Sequence[Message] | None = None,
    ) -> Group:
        """Sample `count` trajectories and judge them. The samples depend only on `seed`, the
        prompt, the parameters, the weights and the environment's replies.

        Answers in `log` are reused, and new ones are kept there; without a `grader`, verdicts are
        too. `log` None keeps nothing. The conversation begins with `opening`, or else as the
        environment begins it. A prompt that fills the context gets empty answers. The first
        exception of the sampler, the judge or the environment cancels all trajectories and is
        raised.
        """
        opening = self.environment.begin(problem.view()) if opening is None else opening
        prompt = self.renderer.prompt_tokens(opening)
        max_tokens = min(sampling.max_tokens, self.context - len(prompt))
        log = log if log is not None and max_tokens > 0 else GroupLog()
        grader = grader or GroupGrader(
            problem, self.executor, log, cpu_limit_s=self.cpu_limit_s, all_tests=self.all_tests
        )
        if max_tokens < 1:
            turn = Turn(
                tuple(prompt),
                (),
                (),
                "",
                truncated=True,
                code=None,
                verdict=await grader.judge(None),
            )
            return Group(problem, (Trajectory((turn,)),) * count, 0.0, 0, self.step)
        request = SamplingRequest(prompt, count, max_tokens, sampling.temperature, seed)
        rollout = _Rollout(self, problem, opening, request, sampling, log, grader)
        trajectories = await rollout.run()
        return Group(
            problem=problem,
            trajectories=tuple(trajectories),
            sample_s=max(each.sample_s for each in rollout.sampled),
            max_tokens=max_tokens,
            policy_step=rollout.sampled[0].policy_step,
        )


class GroupGrader:
    """Judges the programs of one problem. Identical programs share one run.

    Verdicts in `log` are reused; new ones are kept there.
    """

    def __init__(
        self,
        problem: Problem,
        executor: Executor,
        log: GroupLog | None = None,
        *,
        cpu_limit_s: float | None = None,
        all_tests: bool = False,
    ) -> None:
        """Run nothing yet. `cpu_limit_s` lowers the problem's CPU limit per test (None: keeps it).
        With `all_tests` the judge does not stop at the first failure, except on public tests."""
        self.language = problem.language
        self._problem = problem
        self._executor, self._log = executor, log or GroupLog()
        self._cpu_limit_s, self._all_tests = cpu_limit_s, all_tests
        self._runs: dict[Hashable, asyncio.Task[Any]] = {}

    async def judge(self, code: str | None) -> Verdict:
        """Judge on all tests; None is an answer without a program. Cancelling one call cancels
        every call that shares its run. Raises as `judge_async` does, with a ResourceError for an
        OSError; other failures of the sandbox are an undecided verdict."""
        return await self._once((False, code), self._verdict)

    async def judge_public(self, code: str | None) -> Verdict:
        """Judge on the public tests only; without any, the verdict is `passed`, 0 of 0. It stops at
        the first failure. Raises as `judge` does."""
        return await self._once((True, code), self._verdict)

    async def run_commands(self, commands: Sequence[str]) -> str:
        """Run shell commands as `Grader.run_commands` says; equal sequences share one run. Raises
        SandboxError, IsolationError, and ResourceError for an OSError."""
        return await self._once(tuple(commands), self._output)

    async def _once(self, what: What, run: Callable[[What], Coroutine[Any, Any, Result]]) -> Result:
        """Return the result of `run(what)`, which is called only once for equal keys; later calls
        share its task, its failure and its cancellation."""
        if what not in self._runs:
            self._runs[what] = asyncio.create_task(run(what))
        result: Result = await self._runs[what]
        return result

    async def _output(self, commands: tuple[str, ...]) -> str:
        """Return the kept output of the last of these commands, or run them now and keep it. An
        OSError becomes a ResourceError."""
        output = self._log.output(commands)
        if output is None:
            with resource_errors():
                output = await output_of(commands, self._problem.view())
                self._log.keep_output(commands, output)
        return output

    async def _verdict(self, program: Program) -> Verdict:
        """Return a program's kept verdict, or judge it now and keep the verdict unless it is
        undecided. An OSError becomes a ResourceError."""
        verdict = self._log.verdict(program)
        if verdict is None:
            with resource_errors():
                verdict = await self._run(*program)
                self._log.keep_verdict(program, verdict)
        return verdict

    async def _run(self, public: bool, code: str | None) -> Verdict:
        """Judge on all tests, or on the public ones only, which always ends at the first failure.
        Without public tests the verdict is `passed` without running anything."""
        problem = self._problem
        if public:
            problem = replace(problem, tests=tuple(test for test in problem.tests if test.public))
        if public and not problem.tests:
            return Verdict(VerdictKind.PASSED, 0, 0, "no public tests")
        every = self._all_tests and not public
        limit = self._cpu_limit_s
        return await judge_async(problem, code, self._executor, cpu_limit_s=limit, all_tests=every)


@dataclass(slots=True)
class _Rollout:
    """One group in progress; `sampled` has the answers to its requests so far."""

    policy: Policy
    problem: Problem
    opening: Sequence[Message]
    request: SamplingRequest
    sampling: Sampling
    log: GroupLog
    grader: GroupGrader
    started: float = field(default_factory=time.perf_counter)
    sampled: list[SampledAnswers] = field(default_factory=list)

    async def run(self) -> list[Trajectory]:
        """Return the trajectories, in the order of their members. The first failure cancels the
        others and is raised."""
        request = self.request
        first: Sequence[SampledAnswer | None] = [None] * request.count
        if self.sampling.request_per == "group":
            first = await self._sample_or_reuse(request)
        return await gather_or_cancel(self._trajectory(*each) for each in enumerate(first))

    async def _trajectory(self, member: int, answer: SampledAnswer | None) -> Trajectory:
        """Sample turns until the environment ends the conversation, or the turns, the trajectory's
        tokens or the context run out. In these cases the last answer is judged on all tests here.

        `answer` is the first answer, if it is sampled already. The seed of every other one depends
        only on the request's seed, the member and the turn.
        """
        policy, turns, conversation = self.policy, list[Turn](), list(self.opening)
        prompt, left = list(self.request.prompt_tokens), self.request.max_tokens
        room = left
        while True:
            if answer is None:
                names = ("turn", member, len(turns)) if turns else ("completion", member)
                seed = derive_seed(self.request.seed, *names)
                (answer,) = await self._sample_or_reuse(
                    SamplingRequest(prompt, 1, room, self.request.temperature, seed)
                )
            turn = await self._turn(answer, conversation, prompt)
            answer = None
            turns.append(turn)
            if turn.messages:
                conversation += [{"role": "assistant", "content": turn.text}, *turn.messages]
                prompt, left = policy.renderer.prompt_tokens(conversation), left - len(turn.tokens)
                room = min(left, policy.context - len(prompt))
                if len(turns) < policy.environment.max_turns and room > 0:
                    continue
                turns[-1] = replace(turn, verdict=await self.grader.judge(turn.code), messages=())
            return Trajectory(tuple(turns), derive_seed(self.request.seed, "member", member))

    async def _turn(
        self, sampled: SampledAnswer, conversation: Sequence[Message], prompt: Sequence[int]
    ) -> Turn:
        """Return an answer together with the environment's reply. It counts as truncated only if
        the sampler stopped for length and no stop sequence ended it."""
        policy = self.policy
        said, ended = policy.renderer.parse_response(sampled.tokens)
        text, truncated = said["content"], sampled.stop_reason == "length" and not ended
        answered: list[Message] = [*conversation, {"role": "assistant", "content": text}]
        reply = await policy.environment.reply(self.problem.view(), answered, self.grader)
        return Turn(
            prompt_tokens=tuple(prompt),
            tokens=sampled.tokens,
            logprobs=sampled.logprobs,
            text=text,
            truncated=truncated,
            code=reply.code,
            verdict=reply.verdict,
            messages=reply.messages,
            reasoning=said.get("reasoning_content"),
        )

    async def _sample_or_reuse(self, request: SamplingRequest) -> Sequence[SampledAnswer]:
        """Return the kept answers to a request, or sample them now and keep them. Both are added to
        `sampled`."""
        sampled = self.log.sampled(request)
        if sampled is None:
            answers = await self._sample(request)
            sampled = SampledAnswers(answers, time.perf_counter() - self.started, self.policy.step)
            self.log.keep_sampled(request, sampled)
        self.sampled.append(sampled)
        return sampled.answers

    async def _sample(self, request: SamplingRequest) -> tuple[SampledAnswer, ...]:
        """Send one sampling request to any back end, inside `policy.drawing`, and return its
        `count` answers. Answers end at the renderer's stop sequences. Missing log-probabilities
        become an empty tuple."""
        policy = self.policy
        parameters = tinker.SamplingParams(
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=self.sampling.top_p,
            top_k=self.sampling.top_k,
            seed=request.seed,
            stop=policy.renderer.get_stop_sequences(),
        )
        async with policy.drawing:
            prompt = tinker.ModelInput.from_ints(list(request.prompt_tokens))
            sampled = policy.sampler.sample(
                prompt=prompt, num_samples=request.count, sampling_params=parameters
            )
            answer = await ready(sampled)
        return tuple(
            SampledAnswer(tuple(each.tokens), tuple(each.logprobs or ()), str(each.stop_reason))
            for each in answer.sequences
        )


def derive_seed(seed: int, *names: object) -> int:
    """Return a seed in [0, 2**31) for one named use. Different names give independent streams; the
    same names give the same seed on every machine. Runs are reproduced by these seeds, so the rule
    must not change."""
    key = "/".join([str(seed), *map(str, names)]).encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") % 2**31


def cap_max_tokens(max_tokens: int, context: int, say: Callable[[str], None]) -> int:
    """Return `max_tokens`, lowered to at most `context` − 1 tokens; `say` gets a notice if it is.
    Each prompt leaves less."""
    room = context - 1
    if max_tokens > room:
        say(
            f"max_tokens={max_tokens} capped to {room}: the model's context is {context} tokens, "
            "each prompt's own included"
        )
    return min(max_tokens, room)


def prompt_length(problem: Problem, environment: Environment, renderer: Renderer) -> int:
    """Return the number of tokens of a problem's first prompt. Raises DataError if the renderer
    refuses the conversation, ConfigError if a user's template or environment fails."""
    return len(renderer.prompt_tokens(environment.begin(problem.view())))


def refuse_prompts(lengths: Sequence[tuple[str, int]], context: int, which: str) -> None:
    """Raise DataError if prompts, given as (id, length), leave no room for an answer in the model's
    context. The message has their number and the first of them."""
    overlong = [(name, length) for name, length in lengths if length >= context]
    if overlong:
        raise DataError(
            f"{len(overlong)} of {len(lengths)} {which} problems have prompts that do not fit "
            f"into the model's context of {context} tokens; the first is {overlong[0][0]!r} with "
            f"{overlong[0][1]}. Leave these problems out, or choose another model"
        )
