# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable FP32 to E2M1 conversion, exact with ties to even, and back."""

from __future__ import annotations

import torch
from torch import Tensor

VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Magnitude bits at which the code steps up. Where the upper code is odd a tie stays below, so its
# threshold lies one bit pattern above the midpoint; where it is even the midpoint itself steps.
THRESHOLD_BITS = (
    0x3E800001,
    0x3F400000,
    0x3FA00001,
    0x3FE00000,
    0x40200001,
    0x40600000,
    0x40A00001,
)


def encode(x: Tensor) -> Tensor:
    """E2M1 codes 0..15 of float32 values: nearest, ties to even, saturating at 6.

    Bit 3 is the sign, kept for zeros; infinities and NaN give the largest magnitude.

    Args:
        x: float32, any shape.

    Returns:
        uint8 of the same shape, one code a byte.
    """
    bits = x.float().contiguous().view(torch.int32)
    magnitude = bits & 0x7FFFFFFF
    code = torch.zeros_like(bits, dtype=torch.uint8)
    for threshold in THRESHOLD_BITS:
        code += (magnitude >= threshold).to(torch.uint8)
    return code | ((bits < 0).to(torch.uint8) << 3)


def decode(codes: Tensor) -> Tensor:
    """float32 values of codes 0..15 (uint8, any shape); code 8 is -0."""
    table = torch.tensor([*VALUES, *(-value for value in VALUES)], dtype=torch.float32)
    return table.to(codes.device)[codes.long()]


def pack(codes: Tensor) -> Tensor:
    """uint8 [..., K] of codes -> uint8 [..., K/2], the even element in the low nibble.

    Raises:
        ValueError: K is odd.
    """
    if codes.shape[-1] % 2:
        raise ValueError(f"packing takes an even number of codes, got {codes.shape[-1]}")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """uint8 [..., K/2] -> uint8 codes [..., K], the low nibble first."""
    return torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
