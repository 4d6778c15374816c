# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable RMS norms: zero-centred, fused with the residual sum, and gated per value head."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, zero_centred: bool = True) -> Tensor:
    """Normalise the last axis of x by its root mean square.

    y = round(x * rsqrt(mean(x^2) + eps) * (1 + w)) in float32 with one rounding to x's dtype;
    with zero_centred=False the weight multiplies as it is.

    Args:
        x: [..., N], bf16 or float32.
        weight: [N], any float dtype.
        eps: added to the mean square.

    Returns:
        [..., N] in x's dtype.
    """
    wide = x.float()
    scale = weight.float() + 1.0 if zero_centred else weight.float()
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse * scale).to(x.dtype)


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add x to the residual stream and take the zero-centred norm of the rounded sum.

    Bit-identical to an addition followed by `rms_norm`, because the norm reads the stored sum.

    Args:
        residual, x: [..., N] of one dtype.
        weight: [N].

    Returns:
        (sum [..., N], normed [..., N]), both in the residual's dtype.
    """
    total = residual + x
    return total, rms_norm(total, weight, eps)


def gated_rms_norm(o: Tensor, z: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the delta-rule output per head, weigh it, then gate it with SiLU(z).

    n = round(o * rsqrt(mean(o^2) + eps)); m = round(w * n) with w cast to o's dtype first and
    not zero-centred; y = round(m * silu(z)) in float32.

    Args:
        o, z: [..., N] with N the value head dimension.
        weight: [N], shared by all heads.

    Returns:
        [..., N] in o's dtype.
    """
    wide = o.float()
    normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(o.dtype)
    weighted = weight.to(o.dtype) * normed
    return (weighted.float() * functional.silu(z.float())).to(o.dtype)
