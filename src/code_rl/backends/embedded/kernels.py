"""Row-wise operations with hand-written gradients: fewer passes over the data than autograd makes of their formulas."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class _Norm(torch.autograd.Function):
    """x / sqrt(mean(x²) + eps) over the last axis; in fp32 inside, whatever x is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        inverse = _inverse_rms(x, eps)
        y = (x * inverse).to(x.dtype)
        ctx.save_for_backward(y, inverse)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        y, inverse = ctx.saved_tensors
        along = (gradient * y).mean(-1, keepdim=True, dtype=torch.float32)
        return torch.addcmul(gradient, y, along, value=-1).mul_(inverse).to(y.dtype), None


class _Gated(torch.autograd.Function):
    """silu(gate) · up, where gate and up are the two halves of the last axis."""

    @staticmethod
    def forward(ctx: Any, gate_up: Tensor) -> Tensor:
        ctx.save_for_backward(gate_up)
        return _gate(gate_up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        (gate_up,) = ctx.saved_tensors
        gate, up = gate_up.chunk(2, dim=-1)
        out = torch.empty_like(gate_up)
        of_gate, of_up = out.chunk(2, dim=-1)
        active = torch.sigmoid(gate)
        # The result's own halves hold what is needed on the way: this is where a layer's memory peaks.
        silu = torch.mul(gate, active, out=of_up)
        torch.sub(1, active, out=of_gate)
        active.addcmul_(silu, of_gate)
        torch.mul(gradient, up, out=of_gate).mul_(active)
        of_up.mul_(gradient)
        return out


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    width = x.shape[-1]
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return length.square_().add_(eps * width).rsqrt_().mul_(width**0.5)


def _gate(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm over the last axis, times `weight` when there is one."""
    if x.device.type != "cpu":
        scaled = F.rms_norm(x, (x.shape[-1],), None, eps)
    elif torch.is_grad_enabled():
        scaled = _Norm.apply(x, eps)  # type: ignore[no-untyped-call]
    else:
        scaled = (x * _inverse_rms(x, eps)).to(x.dtype)
    return scaled if weight is None else scaled * weight


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) · up for gate and up side by side, [n, 2 f] to [n, f]."""
    if not torch.is_grad_enabled():
        return _gate(gate_up)
    return _Gated.apply(gate_up)  # type: ignore[no-any-return, no-untyped-call]
