"""An accelerator that exists only in software: `install()` makes torch know the device `simgpu`.

Its tensors wrap tensors of the CPU, on which every operation is computed, and call themselves `simgpu:0`. Like a driver it
refuses operations that mix devices, counts bytes, raises when its memory is full, and it counts launches and waits.
With `compute=False` tensors have shapes and no contents, so that a model of any size runs; numbers read from it are 1.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import rms_norm
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from code_rl.engine.local.memory import Meter

NAME = "simgpu"
PLACE = torch.device("privateuseone", 0)  # renamed by `install`
GIB = 2**30
_CROSSING = {"aten::_to_copy", "aten::copy_", "aten::_local_scalar_dense", "aten::_copy_from", "aten::set_data"}
# Operations that a driver never hears of: they change a tensor's description, or make one without filling it.
_FREE = {"aten::detach", "aten::empty", "aten::alias", "aten::empty_like", "aten::new_empty", "aten::empty_strided"}
_FREE |= {"aten::_unsafe_view", "aten::lift_fresh", "aten::_reshape_alias", "aten::new_empty_strided"}


class Card(Meter):
    """The state of the simulated card. `launched` counts operations by name, `waits` the times the host waited for it."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.others, self.compute = 80 * GIB, 0, True
        self.waits = 0
        self.launched: Counter[str] = Counter()

    @property
    def launches(self) -> int:
        """Operations launched since the last reset."""
        return sum(self.launched.values())

    def reset(self) -> None:
        """Begin to count anew; tensors that exist stay counted."""
        self.peak, self.waits = self.live, 0
        self.launched.clear()

    def store(self, tensor: Tensor) -> None:
        """Count a new tensor's memory; raise if there is too little."""
        before = self.live
        self.count(tensor)
        if self.live > self.total - self.others:
            size, self.peak = self.live - before, before
            raise torch.OutOfMemoryError(f"{NAME}: {size} bytes more than the {self.total - self.others - before} left")


card = Card()


@contextmanager
def sized(total: int, *, others: int = 0, compute: bool = True) -> Iterator[Card]:
    """Give the card this many bytes of memory, `others` of them to other processes, and contents only with `compute`."""
    before = card.total, card.others, card.compute
    card.total, card.others, card.compute = total, others, compute
    card.reset()
    try:
        yield card
    finally:
        card.total, card.others, card.compute = before


class OnCard(Tensor):
    """A tensor of the card; `held` has its values, on the CPU, or its shape alone."""

    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnCard:
        made: OnCard = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=PLACE,
        )
        made.held = inner
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnCard({self.held!r})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, *args, **(kwargs or {}))


def run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run one operation: count it, check its devices, compute it on what the tensors wrap."""
    name = func._schema.name
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    ours = [leaf for leaf in tensors if isinstance(leaf, OnCard)]
    strangers = [leaf for leaf in tensors if not isinstance(leaf, OnCard) and leaf.dim()]
    if ours and strangers and name not in _CROSSING:
        raise RuntimeError(f"{name}: tensors on {PLACE} and on {strangers[0].device} in one operation")
    if name == "aten::_local_scalar_dense":
        card.waits += 1
        return ours[0].held.item() if card.compute else 1
    asked = kwargs.get("device")
    if name == "aten::_to_copy" and asked is not None and (not ours or torch.device(asked).type != NAME):
        return _moved(args[0], kwargs)
    if name == "aten::copy_" and strangers:
        return _filled(args[0], args[1], *args[2:])
    # Without autograd, compound operations arrive whole; a driver gets their parts.
    parts = func.decompose(*args, **kwargs) if ours else NotImplemented
    if parts is not NotImplemented:
        return parts
    if not func.is_view and name not in _FREE:
        card.launched[name] += 1
    host = "cpu" if card.compute else "meta"
    if asked is not None:
        kwargs["device"] = torch.device(host)
    inner_args, inner_kwargs = tree_map_only(OnCard, lambda each: each.held, (args, kwargs))
    with torch.inference_mode(False), torch.no_grad():
        found = func(*inner_args, **inner_kwargs)
    known = {id(each.held): each for each in ours}
    return tree_map_only(Tensor, lambda each: _wrapped(each, known), found)


def _wrapped(inner: Tensor, known: dict[int, OnCard]) -> OnCard:
    """Return the wrapper of a result: the operand's own if the operation changed it in place."""
    if id(inner) in known:
        return known[id(inner)]
    card.store(inner)
    return OnCard(inner)


def _moved(source: Tensor, kwargs: dict[str, Any]) -> Tensor:
    """Copy a tensor to the card or from it. The host waits, unless it sends with `non_blocking`."""
    dtype = kwargs.get("dtype") or source.dtype
    if isinstance(source, OnCard):
        card.waits += 1
        host = source.held
        return host.to(dtype, copy=True) if card.compute else torch.ones(source.shape, dtype=dtype)
    card.waits += not kwargs.get("non_blocking")
    inner = source.to(dtype, copy=True) if card.compute else source.to(device="meta", dtype=dtype)
    return _wrapped(inner, {})


def _filled(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """Copy into an existing tensor from the other side."""
    card.waits += not (non_blocking and isinstance(target, OnCard))
    inner, values = (each.held if isinstance(each, OnCard) else each for each in (target, source))
    if card.compute:
        with torch.no_grad():
            inner.copy_(values)
    return target


class _Module:
    """The device's torch module: what `torch.cuda` is to cuda."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        del seed

    def get_device_name(self, place: object = None) -> str:
        del place
        return "Simulated GPU"

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def mem_get_info(self, place: object = None) -> tuple[int, int]:
        del place
        return card.total - card.others - card.live, card.total

    def memory_allocated(self, place: object = None) -> int:
        del place
        return card.live

    def memory_reserved(self, place: object = None) -> int:
        del place
        return card.live

    def synchronize(self, place: object = None) -> None:
        del place
        card.waits += 1


_kept: list[object] = []


def install() -> Card:
    """Make torch know the device in this process; a second call does nothing."""
    if not _kept:
        _setup_privateuseone_for_python_backend(NAME, _Module())
        library = torch.library.Library("_", "IMPL")
        library.fallback(run, "PrivateUse1")
        _kept.append(library)
        _complete()
        # Modules that stay would be looked through at every collection.
        gc.freeze()
    return card


class _FusedNorm(torch.autograd.Function):
    """A card's norm: one launch forward and one backward, which keeps its input. The arithmetic is the CPU's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        card.launched["fused_rms_norm"] += 1
        return _wrapped(rms_norm(_inner(x), x.shape[-1:], None if weight is None else _inner(weight), eps), {})

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        x, weight = ctx.saved_tensors
        card.launched["fused_rms_norm_backward"] += 1
        with torch.enable_grad():
            leaf = _inner(x).detach().requires_grad_()
            found = rms_norm(leaf, x.shape[-1:], None if weight is None else _inner(weight), ctx.eps)
        (gradient,) = torch.autograd.grad(found, leaf, _inner(gradients[0]))
        return _wrapped(gradient, {}), None, None


def _inner(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, OnCard)
    return tensor.held


def _complete() -> None:
    """Give torch what it lacks for a device of Python: tensors from numbers, and the fused kernels that cards have."""
    plain_tensor, plain_attention = torch.tensor, functional.scaled_dot_product_attention
    plain_norm = functional.rms_norm

    def tensor(data: Any, **options: Any) -> Tensor:
        device = options.pop("device", None)
        made = plain_tensor(data, **options)
        return made if device is None else made.to(device)

    def attention(query: Tensor, key: Tensor, value: Tensor, *args: Any, **options: Any) -> Any:
        if not isinstance(query, OnCard):
            return plain_attention(query, key, value, *args, **options)
        mask, dropout, causal = (*args, None, 0.0, False)[:3] if args else (None, 0.0, False)
        if options.pop("enable_gqa", False):
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (each.repeat_interleave(repeats, -3) for each in (key, value))
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query,
            key,
            value,
            options.get("dropout_p", dropout),
            options.get("is_causal", causal),
            attn_mask=options.get("attn_mask", mask),
            scale=options.get("scale"),
        )[0]

    def norm(x: Tensor, shape: Any, weight: Tensor | None = None, eps: float | None = None) -> Any:
        if not isinstance(x, OnCard):
            return plain_norm(x, shape, weight, eps)
        return _FusedNorm.apply(x, weight, eps)

    made: dict[str, Any] = {"rms_norm": norm, "scaled_dot_product_attention": attention}
    vars(functional).update(made)
    vars(torch).update({"tensor": tensor})
