"""LoRA: one flat fp32 vector of parameters, views of it per module, and two ways to apply it in a
forward pass.

Each adapted projection has `A` [rank, in] and `B` [out, rank]; its effect is `(ALPHA / rank) · B
A`, as in Tinker and peft. Modules have Hugging Face's names, so a checkpoint exports without
renaming.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from code_rl.util.errors import ConfigError

from .weights import SITES, Architecture, Linear, Weights

ALPHA = 32.0
MAX_RANK = 1024
HEAD = "lm_head"
# A and B, or their gradients, by projection.
Views = tuple[dict[str, Tensor], dict[str, Tensor]]


@dataclass(frozen=True)
class LoraSettings:
    """The adapted projections. `seed` fixes the initial A; B starts at zero."""

    rank: int
    seed: int
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True

    def __post_init__(self) -> None:
        """Raise ConfigError for a rank or a seed out of range, or if nothing is adapted."""
        if not 1 <= self.rank <= MAX_RANK:
            raise ConfigError(f"rank={str(self.rank)[:40]} must be from 1 to {MAX_RANK}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed={str(self.seed)[:40]} must be from 0 to 2^63 - 1")
        if not (self.train_mlp or self.train_attn or self.train_unembed):
            raise ConfigError(
                "nothing to train: train_mlp, train_attn and train_unembed are all false"
            )

    @classmethod
    def read(cls, meta: Mapping[str, Any]) -> LoraSettings:
        """Return the settings of a checkpoint's adapter from its metadata. Raises KeyError if one
        is missing, and ConfigError for an invalid one."""
        return cls(**{field.name: meta[field.name] for field in fields(cls)})


@dataclass(frozen=True)
class Module:
    """One adapted projection: columns [start, start + out) of the fused matrix `site` in `layer`
    (−1: the unembedding)."""

    name: str
    layer: int
    site: str
    start: int
    inputs: int
    outputs: int


def modules(arch: Architecture, settings: LoraSettings) -> list[Module]:
    """List the adapted projections in a fixed order, which is that of the parameters in `Lora.flat`
    and in checkpoints."""
    found: list[Module] = []
    q, kv = arch.q_width, arch.kv_width
    for i in range(arch.layers):
        if settings.train_attn:
            at = f"model.layers.{i}.self_attn"
            found += [
                Module(f"{at}.q_proj", i, "qkv", 0, arch.hidden, q),
                Module(f"{at}.k_proj", i, "qkv", q, arch.hidden, kv),
                Module(f"{at}.v_proj", i, "qkv", q + kv, arch.hidden, kv),
                Module(f"{at}.o_proj", i, "o", 0, q, arch.hidden),
            ]
        if settings.train_mlp:
            at = f"model.layers.{i}.mlp"
            found += [
                Module(f"{at}.gate_proj", i, "gate_up", 0, arch.hidden, arch.ffn),
                Module(f"{at}.up_proj", i, "gate_up", arch.ffn, arch.hidden, arch.ffn),
                Module(f"{at}.down_proj", i, "down", 0, arch.ffn, arch.hidden),
            ]
    if settings.train_unembed:
        found.append(Module(HEAD, -1, "head", 0, arch.hidden, arch.vocab))
    return found


class Lora:
    """The adapter's parameters (`flat`, fp32) and its views `a[name]` [rank, in] and `b[name]`
    [out, rank]."""

    def __init__(
        self,
        arch: Architecture,
        settings: LoraSettings,
        device: torch.device,
        adapted: list[Module] | None = None,
    ) -> None:
        """Make the parameters, all zero until `initialise` or a restore, of the projections
        `adapted` (None: those that the settings choose)."""
        self.arch = arch
        self.settings = settings
        self.modules = modules(arch, settings) if adapted is None else adapted
        self.scale = ALPHA / settings.rank
        size = sum(settings.rank * (m.inputs + m.outputs) for m in self.modules)
        self.flat = torch.zeros(size, dtype=torch.float32, device=device)
        self.a, self.b = self.views(self.flat)
        self._by_site: dict[tuple[int, str], list[Module]] = {}
        for module in self.modules:
            self._by_site.setdefault((module.layer, module.site), []).append(module)

    def initialise(self) -> None:
        """Fill A from the seed (uniform within ±1/√in, independent per module) and B with zeros, in
        place. The numbers depend only on seed, names and shapes, on every device."""
        for module in self.modules:
            key = f"{self.settings.seed}:{module.name}".encode()
            seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") >> 1
            generator = torch.Generator().manual_seed(seed)
            drawn = torch.rand(self.a[module.name].shape, generator=generator, dtype=torch.float32)
            self.a[module.name].copy_((2.0 * drawn - 1.0) * module.inputs**-0.5)
            self.b[module.name].zero_()

    def views(self, flat: Tensor) -> Views:
        """Return per-module views A [rank, in] and B [out, rank] of a vector that is laid out like
        the parameters; writing to them writes to `flat`."""
        rank, offset = self.settings.rank, 0
        a: dict[str, Tensor] = {}
        b: dict[str, Tensor] = {}
        for m in self.modules:
            a[m.name] = flat[offset : offset + rank * m.inputs].view(rank, m.inputs)
            offset += rank * m.inputs
            b[m.name] = flat[offset : offset + rank * m.outputs].view(m.outputs, rank)
            offset += rank * m.outputs
        return a, b

    def at(self, layer: int, site: str) -> list[Module]:
        """Return the adapted projections inside one fused matrix (`layer` −1: the unembedding), in
        the order of its columns. Empty if there are none."""
        return self._by_site.get((layer, site), [])

    def merged(self, base: Weights) -> Weights:
        """Return weights with the adapter added, in the base's dtype. They share nothing that
        training changes."""
        return self.mapped(base, self._merge)

    def apart(self, base: Weights, dtype: torch.dtype = torch.float32) -> Weights:
        """Return weights that keep a copy of the adapter in `dtype`, as two thin products per fused
        matrix; `base` is shared."""
        return self.mapped(
            base, lambda linear, layer, site: self._split(linear, layer, site, dtype)
        )

    def mapped(self, base: Weights, change: Callable[[Linear, int, str], Linear]) -> Weights:
        """Return weights with every adapted fused matrix replaced by `change(linear, layer, site)`.
        The others are shared with `base`, which is unchanged."""
        changed: list[dict[str, Any]] = [
            {s: change(getattr(layer, s), i, s) for s in SITES if self.at(i, s)}
            for i, layer in enumerate(base.layers)
        ]
        layers = tuple(map(lambda layer, new: replace(layer, **new), base.layers, changed))
        head = change(base.head, -1, "head") if self.at(-1, "head") else base.head
        return replace(base, layers=layers, head=head)

    def _merge(self, linear: Linear, layer: int, site: str) -> Linear:
        """Return a copy of the fused matrix with the adapter's scaled product added, in fp32 before
        it is rounded."""
        weight = linear.weight.to(torch.float32, copy=True)
        for m in self.at(layer, site):
            columns = weight[:, m.start : m.start + m.outputs]
            columns.addmm_(self.a[m.name].t(), self.b[m.name].t(), alpha=self.scale)
        return replace(linear, weight=weight.to(linear.weight.dtype))

    def _split(self, linear: Linear, layer: int, site: str, dtype: torch.dtype) -> Linear:
        """Return the fused matrix with A and B as matrices of their own, copied in `dtype`; B is
        scaled and has one block of rows per fused module."""
        found = self.at(layer, site)
        rank = self.settings.rank
        a = torch.cat([self.a[m.name] for m in found]).t().contiguous()
        b = torch.zeros(rank * len(found), linear.outputs, dtype=torch.float32, device=a.device)
        for i, m in enumerate(found):
            b[i * rank : (i + 1) * rank, m.start : m.start + m.outputs] = (
                self.scale * self.b[m.name].t()
            )
        return replace(linear, lora_a=a.to(dtype), lora_b=b.to(dtype))

    def chain_merged(self, layer: int, site: str, grad: Tensor, into: Views) -> None:
        """Add to `into` (the views of a gradient) the gradients of A and B that follow from a
        merged matrix's gradient [in, out]. A and B must be those of the pass."""
        into_a, into_b = into
        for m in self.at(layer, site):
            part = grad[:, m.start : m.start + m.outputs].float()
            into_a[m.name].addmm_(self.b[m.name].t(), part.t(), alpha=self.scale)
            into_b[m.name].addmm_(part.t(), self.a[m.name].t(), alpha=self.scale)

    def chain_apart(
        self, layer: int, site: str, grad_a: Tensor, grad_b: Tensor, into: Views
    ) -> None:
        """Add to `into` the gradients of A and B from those of the two thin matrices that `apart`
        makes, [in, R] and [R, out]."""
        (into_a, into_b), rank = into, self.settings.rank
        for i, m in enumerate(self.at(layer, site)):
            rows = slice(i * rank, (i + 1) * rank)
            into_a[m.name] += grad_a[:, rows].t()
            into_b[m.name] += self.scale * grad_b[rows, m.start : m.start + m.outputs].t()

    def pairs(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return copies of A [rank, in] and of the scaled B [out, rank] by projection."""
        return {name: (a.clone(), self.scale * self.b[name]) for name, a in self.a.items()}

    def chain_pair(self, name: str, grad_a: Tensor, grad_b: Tensor, into: Views) -> None:
        """Add to `into` (the views of a gradient) the gradients that follow from those of the pair
        `name` of `pairs`."""
        into_a, into_b = into
        into_a[name] += grad_a
        into_b[name] += self.scale * grad_b
