# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable depthwise causal convolution of width 4 followed by SiLU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

CONV_WIDTH = 4


def causal_conv(x: Tensor, weight: Tensor, tail: Tensor) -> tuple[Tensor, Tensor]:
    """Convolve every channel with its own four taps over time, then apply SiLU.

    Tap 3 multiplies the current row, tap 0 the row three steps back. The four-term sum runs in
    float32 and is rounded, SiLU is rounded again, as the published PyTorch forward does.

    Args:
        x: [T, C] raw projections.
        weight: [C, 4].
        tail: [3, C], the three raw rows before x (zeros at the start of a sequence).

    Returns:
        (silu(conv) [T, C] in x's dtype, new tail [3, C]: the last three raw rows).
    """
    rows = torch.cat((tail.to(x.dtype), x), dim=0)
    windows = rows.unfold(0, CONV_WIDTH, 1)
    return causal_conv_windows(windows, weight), rows[-(CONV_WIDTH - 1) :]


def causal_conv_windows(windows: Tensor, weight: Tensor) -> Tensor:
    """Convolve ready-made windows, one for each row; the rows of a tree have different pasts.

    Args:
        windows: [T, C, 4], oldest row first, the current row last.
        weight: [C, 4].

    Returns:
        silu(conv) [T, C] in the windows' dtype.
    """
    wide, taps = windows.float(), weight.float()
    total = wide[..., 0] * taps[:, 0]
    for tap in range(1, CONV_WIDTH):
        total = total + wide[..., tap] * taps[:, tap]
    return functional.silu(total.to(windows.dtype))
