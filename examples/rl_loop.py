r"""GRPO in one file: sample, judge, advantage, datum, step. Read it from `main` downwards.

    python examples/rl_loop.py                    # the built-in model, in this process
    python examples/rl_loop.py base_url=http://127.0.0.1:8000                  # `code-rl serve`
    python examples/rl_loop.py base_url=tinker model_name=Qwen/Qwen3.5-4B context_length=32768 \
        dataset=train.jsonl max_tokens=4096 learning_rate=4e-5 eval_limit=0    # costs money

The first command takes two minutes on two cores. It takes the same steps as `make train` and ends
with the same Pass@1, but writes no files and cannot be resumed. The servers of the other two need
a key in TINKER_API_KEY (for one of your own it is any text that begins with `tml-`).

A suffix gives the shape of a list: G completions in a group, T tokens in a completion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import chz
import tinker
from tinker import types

from code_rl import (
    CodeRLError,
    Policy,
    Problem,
    Single,
    compute_advantages,
    evaluate_async,
    extract_code,
    judge_async,
    load_problems,
    make_datum,
    should_skip,
    train_step,
)
from code_rl.data import ProblemOrder
from code_rl.engine import ready
from code_rl.engine.local import EmbeddedService
from code_rl.grading.sandbox import Executor, connect_executor
from code_rl.policy import derive_seed
from code_rl.policy.renderers import Renderer, get_renderer


@chz.chz
class Settings:
    """The settings of the loop; the defaults are those of `make train`."""

    base_url: str = "embedded"  # embedded, tinker (the hosted service), or a server's URL
    model_name: str = "tiny"
    dataset: str = "builtin"
    groups_per_batch: int = 8  # problems in a step
    group_size: int = 16  # completions of each problem
    max_steps: int = 30
    max_tokens: int = 128  # of a completion
    context_length: int = 512  # of the model: a prompt and its completion, in tokens
    learning_rate: float = 2e-3  # 4e-5 for a model of billions
    lora_rank: int = 32
    format_coef: float = 0.1  # cost of an answer without a fenced program
    eval_limit: int = 64  # built-in held-out problems of each split; 0: no evaluation
    eval_samples: int = 8
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer of the policy. `logprobs_T` are the sampler's; `reward` is None if the sandbox
    failed, since a failure of ours says nothing about the program."""

    tokens_T: Sequence[int]
    logprobs_T: Sequence[float]
    correct: bool
    reward: float | None


@dataclass(frozen=True, slots=True)
class Group:
    """The completions of one prompt."""

    prompt_tokens: Sequence[int]
    completions_G: Sequence[Completion]


@dataclass(frozen=True, slots=True)
class Sampler:
    """The policy of one step: a snapshot of the weights, a renderer and a sandbox."""

    settings: Settings
    client: tinker.SamplingClient
    renderer: Renderer
    executor: Executor

    async def sample_group(self, problem: Problem, seed: int) -> Group:
        """Sample `group_size` completions of a problem and judge them at the same time."""
        # The prompt is made from a view of the problem that has no hidden tests.
        messages = Single().begin(problem.view())
        prompt_tokens = self.renderer.prompt_tokens(messages)
        answer = await ready(
            self.client.sample(
                prompt=types.ModelInput.from_ints(prompt_tokens),
                num_samples=self.settings.group_size,
                sampling_params=types.SamplingParams(
                    max_tokens=self.settings.max_tokens,
                    temperature=1.0,
                    seed=seed,
                    stop=self.renderer.get_stop_sequences(),
                ),
            )
        )
        completions_G = await asyncio.gather(
            *(self.judge(problem, sequence) for sequence in answer.sequences),
        )
        return Group(prompt_tokens, completions_G)

    async def judge(self, problem: Problem, sequence: types.SampledSequence) -> Completion:
        """Run the program of one completion on the tests. Reward: 1 if every test passes, minus
        `format_coef` if there is no program."""
        message, _ = self.renderer.parse_response(sequence.tokens)
        code = extract_code(message["content"], problem.language)
        verdict = await judge_async(problem, code, self.executor)
        reward = float(verdict.correct) - (self.settings.format_coef if code is None else 0.0)
        return Completion(
            tokens_T=sequence.tokens,
            logprobs_T=sequence.logprobs or [],
            correct=verdict.correct,
            reward=None if verdict.undecided else reward,
        )


def make_datums(group: Group) -> list[types.Datum]:
    """Return a datum for each completion of a group: its tokens, and how much better its reward is
    than the group's mean. A group whose rewards are all equal teaches nothing and has none."""
    rewards_G = [completion.reward for completion in group.completions_G]
    advantages_G = compute_advantages(rewards_G)
    if should_skip(advantages_G):
        return []
    prompt_tokens = list(group.prompt_tokens)
    return [
        make_datum(
            tokens=[*prompt_tokens, *completion.tokens_T],
            logprobs=completion.logprobs_T,
            ob_len=len(prompt_tokens),
            advantage=advantage,
        )
        for completion, advantage in zip(group.completions_G, advantages_G, strict=True)
        if advantage is not None and completion.tokens_T
    ]


async def main(settings: Settings) -> list[dict[str, float]]:
    """Train for `max_steps` steps. Return the metrics of each step, and those of the held-out
    problems after the last."""
    records: list[dict[str, float]] = []
    service = connect(settings.base_url)
    trainer = await call(
        service.create_lora_training_client,
        settings.model_name,
        rank=settings.lora_rank,
        seed=settings.seed,
    )
    renderer = get_renderer("auto", trainer.get_tokenizer())
    executor = connect_executor("auto")
    adam_params = types.AdamParams(
        learning_rate=settings.learning_rate,
        beta1=0.9,
        beta2=0.95,
        eps=1e-12,
    )
    order = ProblemOrder(load_problems(settings.dataset), settings.seed)
    try:
        for step in range(settings.max_steps):
            # Each step samples with the newest weights, so the data are on-policy.
            client = await call(trainer.save_weights_and_get_sampling_client)
            sampler = Sampler(settings, client, renderer, executor)
            problems = order.batch(step * settings.groups_per_batch, settings.groups_per_batch)
            groups = await asyncio.gather(
                *(
                    sampler.sample_group(problem, derive_seed(settings.seed, "sample", step, slot))
                    for slot, problem in enumerate(problems)
                )
            )
            datums = [datum for group in groups for datum in make_datums(group)]
            # One gradient of the importance-sampling loss, one step of Adam.
            await asyncio.to_thread(train_step, trainer, datums, adam_params)
            records.append({"step": step, **summarize(groups), "n_datums": len(datums)})
            print(*(f"{name} {value:<6.3g}" for name, value in records[-1].items()))
        if settings.eval_limit > 0:
            client = await call(trainer.save_weights_and_get_sampling_client)
            held_out = await evaluate_async(
                policy=Policy(client, renderer, executor, settings.context_length),
                max_tokens=settings.max_tokens,
                eval_limit=settings.eval_limit,
                eval_samples=settings.eval_samples,
                seed=settings.seed,
            )
            print(f"held-out Pass@1 {held_out['eval/pass@1']:.1%}")
            records.append(held_out)
        return records
    finally:
        await executor.aclose()


def summarize(groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of right completions and the mean reward, of those with a reward."""
    completions = [completion for group in groups for completion in group.completions_G]
    rewards = [each.reward for each in completions if each.reward is not None]
    right = sum(completion.correct for completion in completions)
    count = max(1, len(rewards))
    return {"mean_correct": right / count, "mean_reward": sum(rewards) / count}


def connect(base_url: str) -> Any:
    """Return the service at `base_url`. The embedded one has the methods of Tinker's."""
    if base_url == "embedded":
        return EmbeddedService()
    return tinker.ServiceClient(base_url=None if base_url == "tinker" else base_url)


async def call(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a method of a client without blocking the event loop. The embedded engine returns a
    future where Tinker's SDK waits."""
    return await ready(await asyncio.to_thread(method, *arguments, **named))


if __name__ == "__main__":
    try:
        asyncio.run(main(chz.entrypoint(Settings)))
    except CodeRLError as error:
        raise SystemExit(f"error: {error}") from None
