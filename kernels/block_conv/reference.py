# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable grouped dynamic convolution over the rows of a draft block."""

from __future__ import annotations

import torch
from torch import Tensor


def block_conv(x: Tensor, base: Tensor, dynamic: Tensor) -> Tensor:
    """out[t, c] = sum over taps o of (base[o, c] + dynamic[t, o, group of c]) * x[t - o, c].

    Rows before the first count as zero. Coefficients and the sum stay in float32; one rounding at the end.

    Args:
        x: [R, C].
        base: [taps, C]; tap 0 multiplies the row itself.
        dynamic: [R, taps, groups]; channel c belongs to group c // (C / groups).

    Returns:
        [R, C] in x's dtype.

    Raises:
        ValueError: the groups do not divide the channels, or the shapes differ from the above.
    """
    rows, channels = x.shape
    taps, groups = dynamic.shape[1:]
    if channels % groups or dynamic.shape[0] != rows or tuple(base.shape) != (taps, channels):
        raise ValueError(
            f"x {list(x.shape)}, base {list(base.shape)} and dynamic {list(dynamic.shape)} do not fit"
        )
    coefficient = base.float() + dynamic.float().repeat_interleave(channels // groups, -1)
    wide, total = x.float(), torch.zeros(rows, channels)
    for tap in range(min(taps, rows)):
        total[tap:] += coefficient[tap:, tap] * wide[: rows - tap]
    return total.to(x.dtype)
