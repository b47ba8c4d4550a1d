"""A loop of your own with the names of the course's assignment: two steps on the built-in model.

python examples/course_loop.py     # writes own-loop/, with a report
"""

from __future__ import annotations

import asyncio

import tinker

import code_rl
from code_rl import Problem, compute_advantages, load_problems, make_datum, should_skip, train_step
from code_rl.engine.local import EmbeddedService
from tinker_utils.checkpoint import get_last_checkpoint, save_checkpoint_async
from tinker_utils.cli import check_log_dir
from tinker_utils.env import CodeEnv
from tinker_utils.log import setup_logging
from tinker_utils.renderers import Renderer, get_renderer

PROMPTS, SAMPLES, STEPS = 8, 8, 2


async def group(
    sampler: tinker.SamplingClient, renderer: Renderer, problem: Problem
) -> tuple[list[float], list[tinker.Datum]]:
    """Sample one problem's completions, run them, and return the rewards and the datums. A
    completion without a verdict raises SandboxError."""
    env = CodeEnv(problem, problem, renderer, format_coef=0.1, reward_timeout=6)
    prompt, _ = await env.initial_observation()
    sampling = tinker.types.SamplingParams(max_tokens=64, temperature=1.0, stop=renderer.get_stop_sequences())
    answer = await sampler.sample(prompt=prompt, num_samples=SAMPLES, sampling_params=sampling)
    results = await asyncio.gather(*(env.step(each.tokens) for each in answer.sequences))
    rewards = [result.reward for result in results]
    advantages = compute_advantages(rewards)
    if should_skip(advantages):
        return rewards, []
    tokens = prompt.to_ints()
    return rewards, [
        make_datum([*tokens, *each.tokens], each.logprobs, len(tokens), advantage)
        for each, advantage in zip(answer.sequences, advantages, strict=True)
        if advantage is not None
    ]


async def main() -> None:
    log_dir = check_log_dir("own-loop", "delete")
    log = setup_logging(log_dir, config={"learning_rate": 2e-3, "max_steps": STEPS})
    # With a key: service = tinker.ServiceClient(), and its methods that end in _async
    service = EmbeddedService(state_dir=log_dir / "checkpoints")
    trainer = await service.create_lora_training_client("tiny", rank=32)
    renderer = get_renderer("auto", trainer.get_tokenizer())
    problems = load_problems("builtin", limit=PROMPTS * STEPS)
    for step in range(STEPS):
        sampler = await trainer.save_weights_and_get_sampling_client()
        batch = problems[step * PROMPTS : (step + 1) * PROMPTS]
        groups = await asyncio.gather(*(group(sampler, renderer, problem) for problem in batch))
        rewards = [reward for found, _ in groups for reward in found]
        datums = [datum for _, found in groups for datum in found]
        train_step(trainer, datums, tinker.types.AdamParams(learning_rate=2e-3))
        log.log_metrics({"mean_reward": sum(rewards) / len(rewards), "n_datums": len(datums)}, step)
    await save_checkpoint_async(trainer, "final", log_dir, {"step": STEPS})
    saved = get_last_checkpoint(log_dir)
    assert saved is not None
    assert saved["step"] == STEPS
    log.close()
    print(code_rl.report(log_dir, browse=False))


if __name__ == "__main__":
    asyncio.run(main())
