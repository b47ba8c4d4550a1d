"""Measure in a few seconds how fast the embedded engine samples and trains here, for a forecast."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from code_rl.engine import connect
from code_rl.engine.names import source_of
from code_rl.training.algorithm.datums import make_datum
from code_rl.training.config import Config, batch_shape

if TYPE_CHECKING:
    from code_rl.engine import Backend

LONG_ENOUGH_S = 0.5
MOST_TOKENS = 1024
"""The most tokens of the prompt, and of the completion, that are timed."""


def at_hand(config: Config) -> bool:
    """True when the model's files are on this machine, so that measuring downloads nothing."""
    from huggingface_hub import try_to_load_from_cache

    source = source_of(str(config.model_name))
    return Path(source).is_dir() or isinstance(
        try_to_load_from_cache(source, "model.safetensors"), str
    )


async def measure(config: Config, assume: Mapping[str, float]) -> dict[str, float]:
    """Return the tokens per second of sampling and of training, under a forecast's names for them.

    Prompt and completion are as long as assumed, up to `MOST_TOKENS`; their tokens are arbitrary.
    """
    with tempfile.TemporaryDirectory() as folder:
        backend = await connect(config, Path(folder), None)
        try:
            return await _speeds(config, backend, assume)
        finally:
            backend.close()


async def _speeds(
    config: Config, backend: Backend, assume: Mapping[str, float]
) -> dict[str, float]:
    from tinker import types

    shape, most = batch_shape(config), min(MOST_TOKENS, backend.context // 2)
    prompt = [1 + at % 50 for at in range(min(int(assume["prompt_tokens"]), most))]
    limit = min(max(1, int(assume["completion_share"] * config.max_tokens)), most)
    group, client = shape.samples_per_prompt, await backend.base_sampler()

    def sample(tokens: int) -> int:
        params = types.SamplingParams(max_tokens=tokens, temperature=1.0, stop=[], seed=0)
        model_input = types.ModelInput.from_ints(prompt)
        asked = [client.sample(model_input, group, params) for _ in range(shape.prompts)]
        return sum(len(each.tokens) for answer in asked for each in answer.result().sequences)

    datum = make_datum([*prompt, *prompt[:limit]], [-1.0] * len(prompt[:limit]), len(prompt), 1.0)

    def train(count: int) -> int:
        backend.trainer.forward_backward([datum] * count, "importance_sampling").result()
        return count * datum.model_input.length

    return {
        "sample_tokens_per_s": _rate(sample, 1, limit),
        "train_tokens_per_s": _rate(
            train, group, group * shape.prompts
        ),  # the completions of a group share a prompt
    }


def _rate(work: Callable[[int], int], amount: int, most: int) -> float:
    """Return the amount of `work` per second. The amount grows from `amount`, up to `most`, until a
    call takes long enough to measure; the first call is a warm-up."""
    work(1)
    while True:
        started = time.perf_counter()
        done = work(amount)
        elapsed = time.perf_counter() - started
        if elapsed > LONG_ENOUGH_S or amount >= most:
            return done / elapsed
        amount = min(most, 4 * amount)
