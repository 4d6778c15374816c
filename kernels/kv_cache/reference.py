# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable e4m3 rows of keys and values, each with a scale of its own."""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST = 448.0


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Codes float8_e4m3fn of rows [..., D], nearest, ties to even, and their scales float32 [...].

    The scale is max|row| / 448. A row of zeros has scale 1; one that holds a NaN or an infinity has a NaN for
    a scale, and every code of it is NaN.
    """
    wide = rows.float()
    largest = wide.abs().amax(-1)
    scale = torch.where(largest > 0, largest / _LARGEST, 1.0)
    scale = torch.where(largest < torch.inf, scale, torch.nan)
    codes = (wide / scale[..., None]).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn)
    # A NaN has one form: a code keeps no sign of it.
    nan = torch.full((), torch.nan).to(torch.float8_e4m3fn).view(torch.uint8)
    kept = torch.where(scale[..., None].isnan(), nan, codes.view(torch.uint8))
    return kept.view(torch.float8_e4m3fn), scale


def dequantise(codes: Tensor, scale: Tensor) -> Tensor:
    """float32 [..., D] = codes times the scale of their row, rounded once."""
    return codes.float() * scale[..., None]
