"""The memory of a run on a device, planned before the model is loaded.

The passes themselves are traced on tensors without contents, for models of one and of two layers of
the true shape; every further layer adds as much as the second. So the plan follows the code.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from code_rl.engine.settings import EngineSettings
from code_rl.util.errors import ConfigError

from .caches import BLOCK
from .decode import bytes_per_token
from .device import Device
from .forward import LOGIT_CHUNK, tracing
from .hf import HfArchitecture
from .learner import Learner, kept_tokens, merges
from .lora import Lora, LoraSettings, modules
from .models import model_config
from .packing import Unit, plan
from .passes import EngineExample
from .weights import Architecture, Layer, Linear, Weights

_GIB = 2**30
# Left to the driver, its libraries and the allocator's gaps.
_RESERVED = 0.06
# Assumed of the data: tokens of the longest prompt, and completions of a prompt.
_PROMPT, _GROUP = 1024, 8
# The smallest micro-batch that is tried, and the shortest completion that is proposed.
_LEAST_TOKENS, _SMALLEST = 1024, 256
# Logits are computed in chunks, of which a few show the peak of all.
_CHUNKS = 3


@dataclass(frozen=True)
class Load:
    """The work that is planned: tokens of the longest prompt and completion, completions of a
    prompt, rank of the adapter."""

    prompt: int
    max_tokens: int
    group: int
    rank: int

    @property
    def longest(self) -> int:
        """Tokens of the longest example."""
        return self.prompt + self.max_tokens


@dataclass(frozen=True)
class Parts:
    """Bytes by purpose: base weights; adapter with optimizer and gradient; a sampler's copy of the
    adapter; what a micro-batch takes beside these."""

    weights: int
    adapter: int
    sampler: int
    activations: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.adapter + self.sampler + self.activations


@dataclass(frozen=True)
class MemoryPlan:
    """A plan that fits: `tokens` of a micro-batch, and the bytes that remain for the sampler's
    caches, which hold `rows` of the longest completions at once."""

    parts: Parts
    tokens: int
    cache_bytes: int
    rows: int
    memory: int
    device: str

    def __str__(self) -> str:
        parts = self.parts
        named = {
            "weights": parts.weights,
            "adapter and optimizer": parts.adapter,
            "sampler's adapter": parts.sampler,
            f"micro-batch of {self.tokens:,} tokens": parts.activations,
            f"caches of {self.rows:,} completions": self.cache_bytes,
        }
        listed = ", ".join(f"{name} {size / _GIB:.2f}" for name, size in named.items())
        return f"memory, GiB of {self.memory / _GIB:.1f} on {self.device}: {listed}"


def plan_run(config: EngineSettings, place: torch.device, dtype: torch.dtype) -> MemoryPlan | None:
    """Return the plan of a run on an accelerator; None elsewhere, where the system's memory gives
    way. Raises as `plan_of` does."""
    device = Device(place)
    return plan_of(config, device, dtype) if device.is_accelerator else None


def plan_of(config: EngineSettings, device: Device, dtype: torch.dtype) -> MemoryPlan | None:
    """Return the plan for these settings, or None for a model that transformers runs.

    Raises ConfigError if the model cannot be read, or cannot fit.
    """
    arch = model_config(str(config.model_name))[2]
    if isinstance(arch, HfArchitecture):
        return None
    prompt = min(_PROMPT, arch.max_context // 2)
    completion = min(config.longest_completion, arch.max_context - prompt)
    load = Load(prompt, completion, _GROUP, config.lora_rank)
    return plan_memory(arch, dtype, device, load)


def plan_memory(arch: Architecture, dtype: torch.dtype, device: Device, load: Load) -> MemoryPlan:
    """Return the plan with the largest micro-batch that leaves room for a group's caches, or else
    for one completion's.

    Raises ConfigError, with the setting that would make it fit, if no plan does.
    """
    memory = device.total
    found = _fitting(arch, dtype, device, load, memory)
    if found is None:
        raise ConfigError(_refusal(arch, dtype, device, load, memory))
    return found


def _fitting(
    arch: Architecture, dtype: torch.dtype, device: Device, load: Load, memory: int
) -> MemoryPlan | None:
    """Return the best plan for this memory, or None."""
    best: MemoryPlan | None = None
    row = bytes_per_token(arch, dtype) * (load.longest + BLOCK)
    tokens = device.tokens
    while tokens >= _LEAST_TOKENS:
        parts = measured(arch, dtype, load, tokens, device.is_accelerator)
        room = int(memory * (1 - _RESERVED)) - parts.total
        rows = room // row
        if rows >= 1 and (best is None or best.rows < load.group):
            best = MemoryPlan(parts, tokens, room, rows, memory, device.name)
        # A micro-batch is at least the longest example, so smaller budgets change nothing.
        if rows >= load.group or tokens <= load.longest:
            break
        tokens //= 2
    return best


def _refusal(
    arch: Architecture, dtype: torch.dtype, device: Device, load: Load, memory: int
) -> str:
    """Return the message of a plan that does not fit: the need, and the setting to change."""
    parts = measured(arch, dtype, load, device.tokens, device.is_accelerator)
    need = parts.total + bytes_per_token(arch, dtype) * load.longest
    said = (
        f"max_tokens={load.max_tokens} with lora_rank={load.rank} takes {need / _GIB:.1f} GiB, and "
        f"{device.name} has {memory / _GIB:.1f}; "
    )
    return said + _remedy(arch, dtype, device, load, memory)


def _remedy(arch: Architecture, dtype: torch.dtype, device: Device, load: Load, memory: int) -> str:
    fewer = load.max_tokens // 2
    while fewer >= _SMALLEST:
        if _fitting(arch, dtype, device, replace(load, max_tokens=fewer), memory) is not None:
            return f"give max_tokens={fewer}"
        fewer //= 2
    lower = replace(load, max_tokens=_SMALLEST, rank=max(1, load.rank // 4))
    if _fitting(arch, dtype, device, lower, memory) is not None:
        return f"give lora_rank={lower.rank} max_tokens={_SMALLEST}"
    return "give a smaller model_name"


@cache
def measured(
    arch: Architecture, dtype: torch.dtype, load: Load, tokens: int, view_head: bool
) -> Parts:
    """Return the bytes of a model's parts, from traces of one and two of its layers. `view_head`
    means that a tied unembedding takes no memory of its own."""
    one, two = (_traced(arch, n, dtype, load, tokens, view_head) for n in (1, 2))
    grown = [
        first + (second - first) * (arch.layers - 1) for first, second in zip(one, two, strict=True)
    ]
    return Parts(*grown)


def _traced(
    arch: Architecture, layers: int, dtype: torch.dtype, load: Load, tokens: int, view_head: bool
) -> tuple[int, int, int, int]:
    """Trace a training pass of a model of the same shape with so many layers."""
    settings = LoraSettings(load.rank, 0)
    small = replace(arch, layers=layers, max_context=min(arch.max_context, max(load.longest, 1)))
    with FakeTensorMode(allow_non_fake_inputs=True), _counted() as memory:
        weights = _empty_weights(small, dtype, view_head)
        tables = 2 * (arch.max_context - small.max_context) * arch.head_dim * dtype.itemsize
        held = memory.live
        lora = Lora(small, settings, weights.device)
        learner = Learner(weights, lora, tokens)
        learner.recompute = tokens > kept_tokens(arch, dtype)
        learner.merging = merges(modules(arch, settings), dtype)
        adapter = memory.live - held
        snapshot = _snapshot(learner, lora, weights)
        sampler = memory.live - held - adapter
        gc.collect()
        memory.peak = before = memory.live
        learner.trace(_largest(load, tokens), _CHUNKS * LOGIT_CHUNK // arch.vocab)
        del snapshot
        # Two gradients, of the step so far and of the request, are made after the activations.
        gradients = 2 * lora.flat.nbytes
        return held + tables, adapter, sampler, max(memory.peak - before, gradients)


def _snapshot(learner: Learner, lora: Lora, weights: Weights) -> Weights:
    """Return a sampler's weights as the learner makes them on an accelerator."""
    if learner.merging or weights.dtype != torch.float32:
        return learner.sampler_weights()
    return lora.merged(weights)


def _largest(load: Load, tokens: int) -> list[Unit]:
    """Return the micro-batch with the most tokens of a group of the longest examples."""
    off = np.zeros(load.prompt - 1, dtype=np.float32)
    on = np.ones(load.max_tokens + 1, dtype=np.float32)
    inputs = {name: np.concatenate([off, on]) for name in ("logprobs", "advantages")}
    ids = np.zeros(load.longest, dtype=np.int64)
    group = [EngineExample(ids, ids, inputs, load.prompt - 1) for _ in range(load.group)]
    return max(plan(group, tokens), key=lambda units: sum(unit.tokens for unit in units))


def _empty_weights(arch: Architecture, dtype: torch.dtype, view_head: bool) -> Weights:
    def empty(*shape: int) -> Tensor:
        return torch.empty(*shape, dtype=dtype)

    hidden, q, kv = arch.hidden, arch.q_width, arch.kv_width
    layer = [
        Layer(
            norm_1=empty(hidden),
            qkv=Linear(empty(hidden, q + 2 * kv)),
            qk_gain=empty(arch.heads + arch.kv_heads, arch.head_dim) if arch.qk_norm else None,
            o=Linear(empty(q, hidden)),
            norm_2=empty(hidden),
            gate_up=Linear(empty(hidden, 2 * arch.ffn)),
            down=Linear(empty(arch.ffn, hidden)),
        )
        for _ in range(arch.layers)
    ]
    embed = empty(arch.vocab, hidden)
    shared = view_head and arch.tied_unembedding
    return Weights(
        arch=arch,
        embed=embed,
        layers=tuple(layer),
        norm=empty(hidden),
        head=Linear(embed.t() if shared else empty(hidden, arch.vocab)),
        cos=empty(arch.max_context, arch.head_dim),
        sin=empty(arch.max_context, arch.head_dim),
    )


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that operations make, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return

        def freed(_: object) -> None:
            del self._seen[key]
            self.live -= size

        self._seen[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


@contextmanager
def _counted() -> Iterator[Allocations]:
    """Count allocations, with norms as an accelerator computes them."""
    tracing.norm = _FusedNorm.apply
    try:
        with Allocations() as memory:
            yield memory
    finally:
        tracing.norm = None


class _FusedNorm(torch.autograd.Function):
    """A norm that keeps its input alone, as a fused kernel does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del gradients
        return torch.empty_like(ctx.saved_tensors[0])
