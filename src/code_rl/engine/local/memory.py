"""The memory of a run on a device, planned before the model is loaded.

The passes themselves are traced on tensors without contents, for models of one and of two layers of
the true shape; every further layer adds as much as the second. So the plan follows the code.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import astuple, dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from code_rl.engine.places import TrainingOptions
from code_rl.util.errors import ConfigError
from code_rl.util.options import SamplingOptions

from .decode import bytes_per_token
from .device import Device, tracing
from .hf import TOKENS as HF_TOKENS
from .hf import (
    HfArchitecture,
    HfWeights,
    architecture_of,
    cache_bytes,
    hf_weights,
    new_learner,
)
from .kv_caches import BLOCK
from .learner import kept_tokens, merges
from .lora import LoraSettings, modules
from .models import model_config
from .passes import EngineExample
from .weights import Architecture, Weights, assembled, rotary_tables

_GIB = 2**30
# Left to the driver, its libraries and the allocator's gaps.
_RESERVED = 0.06
# Assumed of the data: tokens of the longest prompt, and completions of a prompt.
_PROMPT, _GROUP = 1024, 8
# Of vLLM's share beside weights, adapters and caches: activations of 2,048 tokens, logits of 256
# sequences (`vllm_server` sets both), CUDA graphs with and without an adapter. Measured on no card.
_VLLM_BYTES = 3 * _GIB
# The smallest micro-batch that is tried, and the shortest completion that is proposed.
_LEAST_TOKENS, _SMALLEST = 1024, 256


@dataclass(frozen=True)
class Load:
    """The work that is planned: tokens of the longest prompt and completion, completions of a
    prompt, rank of the adapter, whether a vLLM on the same device samples, and the setting that has
    the tokens of a completion, up to its value."""

    prompt: int
    max_tokens: int
    group: int
    rank: int
    vllm: bool = field(default=False, compare=False)
    setting: str = field(default="max_tokens=", compare=False)

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
        """All of them, in bytes."""
        return self.weights + self.adapter + self.sampler + self.activations


@dataclass(frozen=True)
class MemoryPlan:
    """A plan that fits: `tokens` of a micro-batch, and the bytes that remain for the sampler's
    caches, which hold `rows` of the longest completions at once. `vllm` are the bytes that a vLLM
    takes beside its caches, `memory` those that were available."""

    parts: Parts
    tokens: int
    cache_bytes: int
    rows: int
    vllm: int
    memory: int
    device: Device

    @property
    def share(self) -> float:
        """The part of the device's memory, 0 to 1, that vLLM takes, caches included."""
        return (self.cache_bytes + self.vllm) / self.device.total

    def __str__(self) -> str:
        """Return the plan as one line for a reader, in GiB."""
        parts = self.parts
        named = {
            "weights": parts.weights,
            "adapter and optimizer": parts.adapter,
            "sampler's adapter": parts.sampler,
            f"micro-batch of {self.tokens:,} tokens": parts.activations,
            **({"vLLM's weights and working memory": self.vllm} if self.vllm else {}),
            f"caches of {self.rows:,} completions": self.cache_bytes,
        }
        listed = ", ".join(f"{name} {size / _GIB:.2f}" for name, size in named.items())
        return f"memory, GiB of {self.memory / _GIB:.1f} available on {self.device.name}: {listed}"


def plan_of(
    options: SamplingOptions, training: TrainingOptions, device: Device, dtype: torch.dtype
) -> MemoryPlan | None:
    """Return the plan for these settings, or None for a model whose pass cannot be traced. No
    weights are loaded.

    Raises ConfigError if the model cannot be read, or cannot fit.
    """
    _, described, arch = model_config(str(options.model_name))
    gc.collect()  # models of earlier runs in this process
    try:
        return plan_memory(described, dtype, device, load_of(options, training, arch.max_context))
    except RuntimeError:  # what a mixture of experts computes depends on its tokens
        return None


def load_of(options: SamplingOptions, training: TrainingOptions, context: int) -> Load:
    """Return the load of a run with a model of this context, in tokens. Prompts are assumed to have
    1,024 tokens, or half of the context if that is less, and groups eight completions."""
    prompt = min(_PROMPT, context // 2)
    longest = min(max(options.max_tokens, training.longest_completion), context - prompt)
    scheduled = training.longest_completion > options.max_tokens
    setting = "max_tokens_schedule=0:" if scheduled else "max_tokens="
    return Load(prompt, longest, _GROUP, training.lora_rank, training.starts_vllm, setting)


def plan_memory(config: Any, dtype: torch.dtype, device: Device, load: Load) -> MemoryPlan:
    """Return the plan, for a model of this transformers configuration, with the largest micro-batch
    that leaves room for a group's caches, or else for one completion's.

    Raises ConfigError, with the setting that would make it fit, if no plan does.
    """
    memory = device.free if device.is_accelerator else device.total
    shape = _Shape(config, architecture_of(config), dtype, device, memory)
    tokens = HF_TOKENS if isinstance(shape.arch, HfArchitecture) else device.tokens
    best: MemoryPlan | None = None
    while True:
        found = _plan(shape, load, tokens)
        if found.rows >= 1 and (best is None or best.rows < found.rows):
            best = found
        # A micro-batch is at least the longest example, so smaller budgets change nothing.
        if found.rows >= load.group or tokens <= max(load.longest, _LEAST_TOKENS):
            break
        tokens //= 2
    if best is None:
        need = found.parts.total + found.vllm + shape.bytes_per_token * load.longest
        vllm = " and sampler=vllm" if load.vllm else ""
        raise ConfigError(
            f"{load.setting}{load.max_tokens} with lora_rank={load.rank}{vllm} takes "
            f"{need / _GIB:.1f} GiB, and {device.name} has {shape.room / _GIB:.1f} for it; "
            f"{_remedy(shape, load)}"
        )
    return best


def _plan(shape: _Shape, load: Load, tokens: int) -> MemoryPlan:
    """Return the plan with micro-batches of `tokens`; it fits if it has a row."""
    parts = measured(shape, load, tokens)
    vllm = load.vllm * (parts.weights + 2 * parts.sampler + _VLLM_BYTES)
    room = shape.room - parts.total - vllm
    rows = room // (shape.bytes_per_token * (load.longest + BLOCK))
    return MemoryPlan(parts, tokens, room, rows, vllm, shape.memory, shape.device)


def _remedy(shape: _Shape, load: Load) -> str:
    """Return the settings that make a load fit, with the smallest micro-batches, as words for a
    message."""
    fewer = [load.max_tokens >> i for i in range(1, load.max_tokens.bit_length())]
    loads = [replace(load, max_tokens=tokens) for tokens in fewer if tokens >= _SMALLEST]
    lower = replace(load, max_tokens=_SMALLEST, rank=max(1, load.rank // 4))
    alone = [replace(load, vllm=False)] if load.vllm else []
    for smaller in (*alone, *loads, lower):
        if _plan(shape, smaller, max(smaller.longest, _LEAST_TOKENS)).rows >= 1:
            if smaller.vllm != load.vllm:
                return "leave out sampler=vllm"
            rank = f"lora_rank={smaller.rank} " if smaller is lower else ""
            return f"give {rank}{load.setting}{smaller.max_tokens}"
    return "give a smaller model_name"


@dataclass(frozen=True)
class _Shape:
    """A model to be planned for: its transformers configuration, its shape, its dtype, its device
    and the bytes that are free there."""

    config: Any = field(compare=False)
    arch: Architecture
    dtype: torch.dtype
    device: Device
    memory: int = field(compare=False)

    @property
    def room(self) -> int:
        """Bytes that a run may take: those available less `_RESERVED`."""
        return int(self.memory * (1 - _RESERVED))

    @cached_property
    def bytes_per_token(self) -> int:
        """Bytes of a token in the sampler's caches."""
        if not isinstance(self.arch, HfArchitecture):
            return bytes_per_token(self.arch, self.dtype)
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            token = torch.zeros(1, 1, dtype=torch.int64)
            return cache_bytes(self.transformed()(token, use_cache=True).past_key_values)

    def transformed(self) -> HfWeights:
        """Return a model that transformers runs, on tensors without contents. Call it in a
        FakeTensorMode."""
        from transformers import AutoModelForCausalLM

        made = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            self.config, dtype=self.dtype
        )
        return hf_weights(made)


@cache
def measured(shape: _Shape, load: Load, tokens: int) -> Parts:
    """Return the bytes of a model's parts, traced with micro-batches of `tokens` and kept for this
    process. Every further layer of the engine's own models adds as much as the second. Raises
    RuntimeError for a model whose pass cannot be traced."""
    if isinstance(shape.arch, HfArchitecture):
        return _traced(shape, load, tokens)
    one, two = (
        astuple(_traced(replace(shape, arch=replace(shape.arch, layers=n)), load, tokens, shape))
        for n in (1, 2)
    )
    more = shape.arch.layers - 1
    return Parts(*(first + (second - first) * more for first, second in zip(one, two, strict=True)))


def _traced(shape: _Shape, load: Load, tokens: int, whole: _Shape | None = None) -> Parts:
    """Trace a training pass of a model and return the bytes of its parts. `whole` is the engine's
    model of which it has some layers, whose size decides how it is trained (None: a model of
    transformers, traced whole)."""
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        _counted(shape.device.is_accelerator) as memory,
    ):
        weights = _empty_weights(shape) if whole else shape.transformed()
        held = memory.live
        settings = LoraSettings(load.rank, 0)
        learner = new_learner(weights, settings, tokens)
        if whole is not None:
            learner.recompute = tokens > kept_tokens(whole.arch, whole.dtype)
            learner.merging = merges(modules(whole.arch, settings), whole.dtype)
        adapter = memory.live - held
        snapshot = learner.snapshot()
        sampler = memory.live - held - adapter
        memory.peak = before = memory.live
        with nullcontext() if whole else _unpacked():
            learner.trace(_group(load))
        del snapshot
        # The gradient of the step so far stays beside the activations and the request's gradient.
        gradient = learner.lora.flat.nbytes
        return Parts(held, adapter, sampler, gradient + max(memory.peak - before, gradient))


def _group(load: Load) -> list[EngineExample]:
    """Return a group of the longest examples, with zeros for tokens, which share their prompt and
    have a loss on every token of the completion."""
    off = np.zeros(load.prompt - 1, dtype=np.float32)
    on = np.ones(load.max_tokens + 1, dtype=np.float32)
    inputs = {name: np.concatenate([off, on]) for name in ("logprobs", "advantages")}
    ids = np.zeros(load.longest, dtype=np.int64)
    return [EngineExample(ids, ids, inputs, load.prompt - 1) for _ in range(load.group)]


def _empty_weights(shape: _Shape) -> Weights:
    """Return weights of this shape without contents, for counting bytes. Call it in a
    FakeTensorMode."""
    arch, dtype, host = shape.arch, shape.dtype, torch.device("cpu")

    def empty(_: str, *sizes: int) -> Tensor:
        """Return a tensor of these sizes without contents."""
        return torch.empty(*sizes, dtype=dtype)

    tables = rotary_tables(torch.empty(arch.head_dim // 2), 1.0, arch)
    return assembled(arch, empty, (), tables, host, dtype)


class Meter:
    """Counts the bytes of the storages of tensors, and their peak."""

    def __init__(self) -> None:
        """Begin at zero, without anything counted."""
        self.live = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def count(self, tensor: Tensor) -> None:
        """Count the tensor's storage, once for all its views, until it is freed; `peak` follows."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return

        def freed(_: object) -> None:
            """Subtract the storage's bytes when it is freed."""
            del self._seen[key]
            self.live -= size

        self._seen[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)


class Allocations(Meter, TorchDispatchMode):
    """Counts the tensors that operations make."""

    def __init__(self) -> None:
        """Count nothing until it is entered as a context."""
        Meter.__init__(self)
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, count the tensors that it returns, and return them unchanged."""
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.count(leaf)
        return out


@contextmanager
def _counted(fuses: bool) -> Iterator[Allocations]:
    """Count the allocations in the block, with norms and fused operations as the planned device
    computes them; `fuses` is True for an accelerator. Other threads are not affected."""
    tracing.norm, tracing.fuses = _FusedNorm.apply, fuses
    try:
        with Allocations() as memory:
            yield memory
    finally:
        del tracing.norm, tracing.fuses


@contextmanager
def _unpacked() -> Iterator[None]:
    """Tell transformers in the block, in this whole process, that no row holds several sequences:
    in tensors without contents it cannot see that, and would make masks of tokens × tokens."""
    from transformers import masking_utils

    plain = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None  # noqa: ARG005
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = plain


class _FusedNorm(torch.autograd.Function):
    """A norm that keeps its input alone, as a fused kernel does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Return a tensor like x, without its contents, and keep x."""
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        """Return a tensor like x for its gradient, without contents."""
        del gradients
        return torch.empty_like(ctx.saved_tensors[0])
