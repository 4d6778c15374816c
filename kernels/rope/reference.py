# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable partial rotary embedding with rotate-half pairing."""

from __future__ import annotations

import torch
from torch import Tensor


def rope_tables(
    positions: Tensor, rotary_dim: int, theta: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, rounded to dtype before use.

    inv_freq_i = theta^(-2i / rotary_dim) for i < rotary_dim / 2; angles in float32.

    Args:
        positions: [T], integer.
        rotary_dim: even number of rotated dimensions.

    Returns:
        (cos, sin), each [T, rotary_dim] in dtype; the second half repeats the first.

    Raises:
        ValueError: rotary_dim is odd or not positive.
    """
    if rotary_dim <= 0 or rotary_dim % 2:
        raise ValueError(f"rotary_dim must be even and positive, got {rotary_dim}")
    even = torch.arange(0, rotary_dim, 2, dtype=torch.float32, device=positions.device)
    inverse_frequency = 1.0 / theta ** (even / rotary_dim)
    half = positions.float()[:, None] * inverse_frequency
    angles = torch.cat((half, half), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def apply_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first rotary_dim dimensions of every head; the others pass unchanged.

    Dimension i pairs with i + rotary_dim / 2; result = round(round(x cos) + round(rot(x) sin)).

    Args:
        x: [T, H, D].
        cos, sin: [T, rotary_dim] from `rope_tables`, in x's dtype.

    Returns:
        [T, H, D] in x's dtype.
    """
    rotary_dim = cos.shape[-1]
    turned, kept = x[..., :rotary_dim], x[..., rotary_dim:]
    first, second = turned.chunk(2, dim=-1)
    partner = torch.cat((-second, first), dim=-1)
    rotated = turned * cos[:, None] + partner * sin[:, None]
    return torch.cat((rotated, kept), dim=-1)
