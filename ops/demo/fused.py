# SPDX-License-Identifier: MIT OR Apache-2.0
"""The memory-bound steps between the matrix products, optionally compiled into single passes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from kernels.gated_delta.reference import l2_normalise
from ops.demo.delta import delta_rule


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Zero-centred RMS norm over the last axis in x's dtype."""
    wide = x.float()
    unit = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (unit * (1.0 + weight.float())).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) * up in gate's dtype."""
    return functional.silu(gate) * up


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Partial rotate-half of x [B, T, H, D] by tables [T, rotary_dim]."""
    dim = cos.shape[-1]
    cos, sin = cos[:, None].to(x.dtype), sin[:, None].to(x.dtype)
    first, second = x[..., :dim].chunk(2, -1)
    rotated = x[..., :dim] * cos + torch.cat((-second, first), -1) * sin
    return torch.cat((rotated, x[..., dim:]), -1)


def convolve(raw: Tensor, taps: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Causal convolution and SiLU of raw [B, T, C], then q and k normalised, q scaled.

    Returns:
        float32 q, k [B, T, dim] and v [B, T, C - 2 dim].
    """
    tokens, width = raw.shape[1], taps.shape[-1]
    padded = functional.pad(raw, (0, 0, width - 1, 0)).float()
    total = padded[:, :tokens] * taps[:, 0].float()
    for tap in range(1, width):
        total = total + padded[:, tap : tap + tokens] * taps[:, tap].float()
    mixed = functional.silu(total)
    q = l2_normalise(mixed[..., :dim]) * dim**-0.5
    return q, l2_normalise(mixed[..., dim : 2 * dim]), mixed[..., 2 * dim :]


def gate_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Norm of o [B, T, H, dv] per head, weighed, gated by SiLU(z [B, T, H dv]), in z's dtype."""
    unit = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + eps) * weight.float()
    return (unit.flatten(2) * functional.silu(z.float())).to(z.dtype)


class Fused:
    """The functions above, compiled when asked; compiling pays after some minutes of training."""

    def __init__(self, compiled: bool) -> None:
        def ready(function: Callable[..., Any]) -> Callable[..., Any]:
            return torch.compile(function, dynamic=True) if compiled else function

        self.norm, self.swiglu, self.rotate = ready(norm), ready(swiglu), ready(rotate)
        self.convolve, self.gate_norm = ready(convolve), ready(gate_norm)
        self.delta = delta_rule
