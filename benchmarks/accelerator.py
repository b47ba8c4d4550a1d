"""Launches, waits and memory of the embedded engine on an accelerator, counted without one.

    python benchmarks/accelerator.py [shapes=qwen3-0.6b,qwen3-1.7b,qwen3-4b,qwen3-8b] [rows=64] [group=8] [prompt=512] [new_tokens=1024]
                                     [plan_tokens=1024] [cards=16,24,48,80]

Every operation runs on the simulated card of the tests with shapes and no contents, in bfloat16 with LoRA of rank 32.
`launches` are operations that a driver would start (views are free), `waits` the times the host waits for the card.
Sampling: `rows` completions in groups, per step of the whole batch and per token. Training: one forward and backward
pass over a group, `prompt` + `new_tokens` tokens each. Then the memory plan (`dry_run=true`) of training beside the peak
of the same pass on the simulated card, and the plan of each card.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

import chz
import torch

from benchmarks.memory import GIB, SHAPES, architecture, configuration, group, make_weights
from code_rl.cli.main import run_script
from code_rl.engine.local.decode import SequenceRequest, decode
from code_rl.engine.local.device import Device
from code_rl.engine.local.forward import Prompt
from code_rl.engine.local.learner import Learner
from code_rl.engine.local.lora import Lora, LoraSettings
from code_rl.engine.local.memory import Load, plan_memory
from code_rl.engine.local.passes import read_pass
from code_rl.engine.local.picking import Choice
from code_rl.engine.local.weights import Weights
from code_rl.util.errors import ConfigError
from tests.engine.accelerator.simulated import NAME, PLACE, install, sized

CONTEXT = 40960
STEPS = 32  # decoding steps that are counted: enough for several looks at stops


@chz.chz
class Options:
    """Which shapes, and how much of each."""

    shapes: str = chz.field(default="qwen3-0.6b,qwen3-1.7b,qwen3-4b,qwen3-8b", doc="Which models.")
    rows: int = chz.field(default=64, doc="Completions sampled together.")
    group: int = chz.field(default=8, doc="Completions of a prompt.")
    prompt: int = chz.field(default=512, doc="Tokens of a prompt.")
    new_tokens: int = chz.field(default=1024, doc="Tokens of a completion in training.")
    rank: int = chz.field(default=32, doc="Rank of LoRA.")
    plan_tokens: int = chz.field(default=1024, doc="Tokens of a completion for the memory plan; 0 leaves plans out.")
    cards: str = chz.field(default="16,24,48,80", doc="Memory of the cards that are planned for, in GiB.")

    @chz.validate
    def _known(self) -> None:
        for shape in self.shapes.split(","):
            if shape not in SHAPES:
                raise ConfigError(f"shapes={self.shapes}: {shape!r} is none of {', '.join(SHAPES)}")


@dataclass(frozen=True)
class Counted:
    """Launches and waits of some work, and the most bytes that it held beyond those before it."""

    launches: int
    waits: int
    bytes: int


@dataclass(frozen=True)
class Meters:
    """The counts of one shape: bytes that stay, a decoding step of the whole batch, and a training pass."""

    weights: int
    adapter: int
    step: Counted
    per_token: float
    caches: Counted
    training: Counted
    trained: int


def counted(work: Callable[[], object]) -> Counted:
    """Count what the card is asked for by `work`."""
    card = install()
    gc.collect()
    card.reset()
    before = card.live
    work()
    return Counted(card.launches, card.waits, card.peak - before)


def sample(weights: Weights, options: Options, tokens: int) -> None:
    """Sample `rows` completions of so many tokens without a stop."""
    prompts = [Prompt((7,) * options.prompt) for _ in range(-(-options.rows // options.group))]
    requests = deque(
        SequenceRequest((i, 0), prompts[i // options.group], tokens, Choice(0, i), frozenset({3}))
        for i in range(options.rows)
    )
    for _ in decode(weights, requests, Device(PLACE).cache_bytes):
        pass


def train(learner: Learner, options: Options) -> int:
    """Train on one group; return its tokens."""
    examples = group(options.group, options.prompt + options.new_tokens, options.prompt)
    learner.forward_backward(examples, read_pass("importance_sampling", None))
    return options.prompt + options.group * options.new_tokens


@contextmanager
def loaded(shape: str, rank: int, tokens: int | None = None) -> Iterator[tuple[Learner, int, int]]:
    """A learner on a card without a limit, the bytes that the card held before, and those of the base weights."""
    install()
    with sized(1 << 50, compute=False) as card:
        gc.collect()
        before = card.live
        with torch.device(NAME):
            base = make_weights(architecture(shape, CONTEXT), torch.bfloat16, PLACE)
        gc.collect()
        weights = card.live - before
        yield Learner(base, Lora(base.arch, LoraSettings(rank, 0), PLACE), tokens), before, weights


def measure(shape: str, options: Options) -> Meters:
    """Count one shape."""
    with loaded(shape, options.rank) as (learner, before, weights):
        adapter = install().live - before - weights
        sampler = cast(Weights, learner.snapshot())
        few, many = (counted(partial(sample, sampler, options, n)) for n in (1, 1 + STEPS))
        step = Counted((many.launches - few.launches) // STEPS, 0, 0)
        waits = (many.waits - few.waits) / STEPS
        training = counted(lambda: train(learner, options))
        trained = options.prompt + options.group * options.new_tokens
        return Meters(weights, adapter, step, waits, many, training, trained)


def simulated(shape: str, load: Load, tokens: int) -> int:
    """The most bytes that training holds on the card, with a sampler's weights, in micro-batches of `tokens`."""
    with loaded(shape, load.rank, tokens) as (learner, before, _):
        card, sampler = install(), learner.snapshot()
        gc.collect()
        card.reset()
        examples = group(load.group, load.longest, load.prompt)
        learner.forward_backward(examples, read_pass("importance_sampling", None))
        del sampler
        return card.peak - before


def plan_part(options: Options) -> None:
    """Print the plan beside the simulated peak, and the plan of each card."""
    print(f"\n{'shape':12}{'max_tokens':>12}{'planned GiB':>14}{'simulated':>12}{'ratio':>8}")
    for shape in options.shapes.split(","):
        load = Load(options.prompt, options.plan_tokens, options.group, options.rank)
        with sized(1 << 50, compute=False):
            plan = plan_memory(configuration(shape, CONTEXT), torch.bfloat16, Device(PLACE), load)
        peak, planned = simulated(shape, load, plan.tokens), plan.parts.total
        cells = f"{load.max_tokens:12,}{planned / GIB:14.2f}{peak / GIB:12.2f}{planned / peak:8.3f}"
        print(f"{shape:12}{cells}", flush=True)
    for shape in options.shapes.split(","):
        described = configuration(shape, CONTEXT)
        for gib in map(int, options.cards.split(",")):
            for max_tokens in (8192, 24576):
                load = Load(options.prompt, max_tokens, options.group, options.rank)
                with sized(gib * GIB, compute=False):
                    try:
                        said = str(plan_memory(described, torch.bfloat16, Device(PLACE), load))
                    except ConfigError as error:
                        said = str(error)
                print(f"{shape} at {max_tokens:,} tokens on {gib} GB: {said}", flush=True)


def main(options: Options) -> int:
    head = ("shape", "weights", "adapter", "caches", "activations", "launches/step", "/token", "waits/step")
    print(f"{head[0]:12}" + "".join(f"{each:>14}" for each in (*head[1:], "launches/1k tr.", "waits/pass")))
    for shape in options.shapes.split(","):
        found = measure(shape, options)
        cells = [
            f"{size / GIB:.2f}" for size in (found.weights, found.adapter, found.caches.bytes, found.training.bytes)
        ]
        cells += [f"{found.step.launches}", f"{found.step.launches / options.rows:.1f}", f"{found.per_token:.2f}"]
        cells += [f"{1000 * found.training.launches / found.trained:.0f}", f"{found.training.waits}"]
        print(f"{shape:12}" + "".join(f"{each:>14}" for each in cells), flush=True)
    if options.plan_tokens:
        plan_part(options)
    return 0


if __name__ == "__main__":
    run_script(Options, main, __doc__ or "")
