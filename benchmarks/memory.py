"""Peak memory of the embedded engine: of a training step, traced without computing it, and of sampling, measured.

    python benchmarks/memory.py [part=all|train|sample] [shapes=qwen3-0.6b,qwen3-4b] [tokens=8192,16384,24576] [groups=1,2,16]
                                [prompt=512] [budget=8192] [rows=16] [new_tokens=8192] [share=0.5]

`train`: one forward and backward pass in bfloat16 with LoRA (rank 32 on every projection and the unembedding) for a group of
completions of one prompt, each `tokens` long with its prompt, on fake tensors: every operation is dispatched and every
allocation counted, nothing is computed. `budget` is the learner's tokens in a micro-batch (8,192 on a GPU). "Must keep" is what
no schedule with checkpointed layers can be without: weights, adapter with gradient and optimizer state, the input of every
layer, and what the backward pass of one layer reads. Both are for the largest micro-batch.

`sample`: `rows` completions of `new_tokens` each on a small random model in fp32, on this machine, with a budget of caches
that holds `share` of them at once; the peak counts every tensor of the run but the weights. Beside it, by how much the process's resident memory grew at its peak.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import chz
import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from transformers import Qwen3Config

from code_rl.cli.main import run_script
from code_rl.engine.local import learner
from code_rl.engine.local.decode import SequenceRequest, bytes_per_token, decode
from code_rl.engine.local.forward import Prompt, decoder_layer, rotation
from code_rl.engine.local.lora import Lora, LoraSettings
from code_rl.engine.local.memory import Allocations
from code_rl.engine.local.packing import plan
from code_rl.engine.local.passes import EngineExample, read_pass
from code_rl.engine.local.picking import Choice
from code_rl.engine.local.weights import Architecture, LoadedModel, Weights, fuse, read_architecture
from code_rl.util.errors import ConfigError

SHAPES: dict[str, dict[str, Any]] = {
    "small": {"vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    | {"num_key_value_heads": 1, "head_dim": 32, "intermediate_size": 128},
    "qwen3-0.6b": {"vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16}
    | {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072},
    "qwen3-1.7b": {"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16}
    | {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 6144},
    "qwen3-4b": {"vocab_size": 151936, "hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32}
    | {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728},
    "qwen3-8b": {"vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32}
    | {"num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288, "tie_word_embeddings": False},
}
GIB = 2**30


@chz.chz
class Options:
    """Which part, and how large."""

    part: Literal["all", "train", "sample"] = chz.field(default="all", doc="What is measured.")
    shapes: str = chz.field(default="qwen3-0.6b,qwen3-4b", doc="train: which, comma-separated.")
    tokens: str = chz.field(default="8192,16384,24576", doc="train: tokens of an example, comma-separated.")
    groups: str = chz.field(default="1,2,16", doc="train: completions of one prompt, comma-separated.")
    prompt: int = chz.field(default=512, doc="train: tokens of the prompt.")
    budget: int = chz.field(default=8192, doc="train: tokens of a micro-batch.")
    rows: int = chz.field(default=16, doc="sample: completions.")
    new_tokens: int = chz.field(default=8192, doc="sample: tokens of each.")
    share: float = chz.field(default=0.5, doc="sample: the budget, as a part of what all rows at once would take.")

    @chz.validate
    def _known(self) -> None:
        for shape in self.shapes.split(","):
            if shape not in SHAPES:
                raise ConfigError(f"shapes={self.shapes}: {shape!r} is none of {', '.join(SHAPES)}")


def configuration(shape: str, context: int) -> Qwen3Config:
    settings = {"tie_word_embeddings": True, **SHAPES[shape]}
    return Qwen3Config(**settings, max_position_embeddings=context)


def architecture(shape: str, context: int) -> Architecture:
    return read_architecture(configuration(shape, context))


def make_weights(arch: Architecture, dtype: torch.dtype, device: torch.device | None = None) -> Weights:
    """Random weights of a shape, through the engine's own reading of a Hugging Face state."""

    def drawn(*shape: int) -> Tensor:
        made: Tensor = torch.randn(*shape, dtype=dtype) * shape[-1] ** -0.5
        return made

    untied = {} if arch.tied_unembedding else {"lm_head.weight": drawn(arch.vocab, arch.hidden)}
    state = untied | {
        "model.embed_tokens.weight": drawn(arch.vocab, arch.hidden),
        "model.norm.weight": drawn(arch.hidden),
    }
    for i in range(arch.layers):
        at = f"model.layers.{i}"
        sizes = {
            "self_attn.q_proj": (arch.q_width, arch.hidden),
            "self_attn.k_proj": (arch.kv_width, arch.hidden),
            "self_attn.v_proj": (arch.kv_width, arch.hidden),
            "self_attn.o_proj": (arch.hidden, arch.q_width),
            "self_attn.q_norm": (arch.head_dim,),
            "self_attn.k_norm": (arch.head_dim,),
            "mlp.gate_proj": (arch.ffn, arch.hidden),
            "mlp.up_proj": (arch.ffn, arch.hidden),
            "mlp.down_proj": (arch.hidden, arch.ffn),
            "input_layernorm": (arch.hidden,),
            "post_attention_layernorm": (arch.hidden,),
        }
        state |= {f"{at}.{name}.weight": drawn(*size) for name, size in sizes.items()}
    inverse = 1.0 / (1e6 ** (torch.arange(0, arch.head_dim, 2, dtype=torch.float32) / arch.head_dim))
    return fuse(LoadedModel(arch, state, inverse), device or torch.device("cpu"), dtype)


def group(size: int, tokens: int, prompt: int, fill: int = 0) -> list[EngineExample]:
    """Completions of one prompt, each with it `tokens` long; all tokens are `fill`."""
    off = np.zeros(prompt - 1, dtype=np.float32)
    inputs = {
        name: np.concatenate([off, np.ones(tokens - prompt + 1, np.float32)]) for name in ("logprobs", "advantages")
    }
    ids = np.full(tokens, fill, dtype=np.int64)
    return [EngineExample(ids, ids, inputs, prompt - 1) for _ in range(size)]


@dataclass(frozen=True)
class Traced:
    """Bytes at the peak of a pass over the largest micro-batch, the bytes that must be kept of it, and its tokens."""

    peak: int
    must_keep: int
    tokens: int


def trace(shape: str, size: int, tokens: int, prompt: int, budget: int) -> Traced:
    """Trace a pass over the largest micro-batch of a group of `size` completions, each with its prompt `tokens` long."""
    examples = group(size, tokens, prompt)
    units = max(plan(examples, budget), key=lambda batch: sum(unit.tokens for unit in batch))
    return trace_units(
        shape, tuple((unit.prefix, *(suffix.length for suffix in unit.suffixes)) for unit in units), budget
    )


@cache
def trace_units(shape: str, units: tuple[tuple[int, ...], ...], budget: int) -> Traced:
    """Trace forward and backward passes in bfloat16 over a micro-batch: for each unit the length of its prefix and of its suffixes."""
    tokens = sum(map(sum, units))
    chosen = [
        e for i, (prefix, *own) in enumerate(units) for n in own for e in group(1, prefix + n, prefix + 1, fill=i)
    ]
    arch = architecture(shape, max(len(example.tokens) for example in chosen))
    with FakeTensorMode(allow_non_fake_inputs=True), Allocations() as memory:
        weights = make_weights(arch, torch.bfloat16)
        lora = Lora(arch, LoraSettings(32, 0), weights.device)
        made = learner.Learner(weights, lora, budget)
        made.gradient = torch.zeros_like(lora.flat)
        apart = lora.apart(weights)
        layer = apart.layers[0]
        for linear in (layer.qkv, layer.o, layer.gate_up, layer.down):
            assert linear.lora_a is not None
            assert linear.lora_b is not None
            linear.lora_a.requires_grad_()
            linear.lora_b.requires_grad_()
        held = memory.live
        x = torch.empty(tokens, arch.hidden, dtype=torch.bfloat16)
        rotate = rotation(weights, torch.zeros(1, dtype=torch.int64))
        flat = decoder_layer(weights, layer, x, rotate, lambda q, k, v: q.reshape(tokens, -1) + 0 * (k + v).sum())
        one_layer = memory.live - held
        del flat, x, rotate, layer, apart, linear
        gc.collect()
        must = held + one_layer + arch.layers * tokens * arch.hidden * weights.embed.element_size()
        made.gradient, memory.peak = None, 0
        with patch.object(learner, "_spread"):
            made.forward_backward(chosen, read_pass("importance_sampling", None))
        return Traced(memory.peak, must, tokens)


def train_part(options: Options) -> None:
    print(
        f"peak of a training pass, bfloat16, prompt {options.prompt}, budget {options.budget}, torch {torch.__version__}"
    )
    print(
        f"  {'shape':12} {'tokens':>7} {'group':>6} {'micro-batch':>12} {'peak GiB':>9} {'must keep':>10} {'ratio':>6}"
    )
    for shape in options.shapes.split(","):
        for tokens in map(int, options.tokens.split(",")):
            for size in map(int, options.groups.split(",")):
                found = trace(shape, size, tokens, options.prompt, options.budget)
                ratio = found.peak / found.must_keep
                print(
                    f"  {shape:12} {tokens:7,} {size:6} {found.tokens:12,} {found.peak / GIB:9.2f} "
                    f"{found.must_keep / GIB:10.2f} {ratio:6.2f}",
                    flush=True,
                )


def resident(field: str) -> int:
    """Bytes of a line of /proc/self/status, VmRSS or VmHWM; 0 where there is no such file."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure_sampling(rows: int, new_tokens: int, prompt: int, share: float) -> tuple[int, int, float]:
    """Peak bytes of sampling beyond the weights, the budget (`share` of the need of all rows at once), and seconds."""
    torch.manual_seed(0)
    weights = make_weights(architecture("small", prompt + new_tokens), torch.float32)
    text = Prompt(tuple(4 + i % 500 for i in range(prompt)))
    draws = deque(SequenceRequest((0, i), text, new_tokens, Choice(0, i), frozenset()) for i in range(rows))
    budget = int(bytes_per_token(weights.arch, weights.dtype) * (prompt + 16 + share * rows * (new_tokens + 16)))
    start = time.perf_counter()
    with Allocations() as memory:
        done = list(decode(weights, draws, budget))
    assert len(done) == rows
    assert all(len(completion.tokens) == new_tokens for _, completion in done)
    return memory.peak, budget, time.perf_counter() - start


def sample_part(options: Options) -> None:
    print(f"\nsampling {options.rows} × {options.new_tokens} tokens, small random model, fp32")
    measure_sampling(options.rows, 16, 64, options.share)  # what is loaded on first use
    before = resident("VmRSS")
    peak, budget, took = measure_sampling(options.rows, options.new_tokens, 64, options.share)
    grown = max(0, resident("VmHWM") - before)
    print(
        f"  budget {budget / 2**20:8.1f} MiB   peak {peak / 2**20:8.1f} MiB   {peak / budget:5.2f}   {took:6.1f} s"
        f"   resident memory grew by {grown / 2**20:.1f} MiB"
    )


def main(options: Options) -> int:
    if options.part in ("all", "train"):
        train_part(options)
    if options.part in ("all", "sample"):
        sample_part(options)
    return 0


if __name__ == "__main__":
    run_script(Options, main, __doc__ or "")
