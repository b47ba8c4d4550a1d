"""Time and peak memory of `make_datum` for a batch of long completions.

    python benchmarks/datums.py [completions=128] [tokens=24576] [prompt=1024]

Beside it, in the same run, the plain way: Python lists of zeros and values, converted by the SDK. Peak memory is what the
Python allocator saw above the inputs (tracemalloc, in a second pass so that tracing does not slow the timed one).
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import chz
from tinker import types

from code_rl.cli.main import run_script
from code_rl.training.algorithm.datums import make_datum

Rollout = tuple[list[int], list[float], int]


@chz.chz
class Settings:
    """Size of the batch."""

    completions: int = chz.field(default=128, doc="Completions in the batch.")
    tokens: int = chz.field(default=24576, doc="Tokens per completion.")
    prompt: int = chz.field(default=1024, doc="Tokens per prompt.")
    repeats: int = chz.field(default=3, doc="Timed passes; the fastest is shown.")


def plain_datum(tokens: list[int], logprobs: list[float], ob_len: int, advantage: float) -> types.Datum:
    """The list-based way, for comparison."""
    zeros = [0.0] * (ob_len - 1)
    loss_fn_inputs: dict[str, Any] = {
        "target_tokens": [int(token) for token in tokens[1:]],
        "logprobs": zeros + [float(value) for value in logprobs],
        "advantages": zeros + [advantage for _ in logprobs],
    }
    return types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=loss_fn_inputs)


def measure(build: Callable[..., types.Datum], rollouts: list[Rollout], repeats: int) -> tuple[float, float]:
    """(seconds, peak MiB) of building a datum for every rollout."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        datums = [build(tokens, logprobs, ob_len, 0.5) for tokens, logprobs, ob_len in rollouts]
        seconds.append(time.perf_counter() - started)
        del datums
    tracemalloc.start()
    datums = [build(tokens, logprobs, ob_len, 0.5) for tokens, logprobs, ob_len in rollouts]
    peak = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    del datums
    return min(seconds), peak


def main(settings: Settings) -> int:
    rng = random.Random(0)
    rollouts: list[Rollout] = []
    for _ in range(settings.completions):
        tokens = [rng.randrange(150_000) for _ in range(settings.prompt + settings.tokens)]
        rollouts.append((tokens, [-rng.random() for _ in range(settings.tokens)], settings.prompt))
    print(f"{settings.completions} completions of {settings.tokens} tokens after {settings.prompt} prompt tokens")
    for name, build in (("make_datum", make_datum), ("plain lists", plain_datum)):
        seconds, peak = measure(build, rollouts, settings.repeats)
        print(f"{name:<12} {seconds:7.2f} s  {peak:7.0f} MiB peak")
    return 0


if __name__ == "__main__":
    run_script(Settings, main, __doc__)
