# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable rotation of head vectors by a Walsh-Hadamard transform between two diagonals of signs.

It spreads a vector's outliers over all its elements, which is what a low-bit cache wants (arXiv:2504.19874),
and leaves scalar products as they are: y = S2 H S1 x with H orthonormal. The inverse is S1 H S2.
"""

from __future__ import annotations

import torch
from torch import Tensor


def transform(x: Tensor) -> Tensor:
    """H x times sqrt(D), float32 [..., D]: butterflies at strides 1, 2, 4 ... D / 2, each sum rounded once.

    Raises:
        ValueError: D is no power of two.
    """
    size = x.shape[-1]
    if size < 2 or size & (size - 1):
        raise ValueError(f"the transform takes a power of two of elements, got {size}")
    y = x.float()
    stride = 1
    while stride < size:
        pairs = y.unflatten(-1, (-1, 2, stride))
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        y = torch.stack((low + high, low - high), -2).flatten(-3)
        stride *= 2
    return y


def rotate(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """round(second * H (first * x)) in x's dtype; with `first` and `second` exchanged it is the inverse.

    Args:
        x: [..., D]; first, second: float32 [D] of +-1.
    """
    sums = transform(x.float() * first)
    return (sums * (second * x.shape[-1] ** -0.5)).to(x.dtype)


def signs(size: int, seed: int) -> Tensor:
    """float32 [size] of +-1, the same on every machine."""
    generator = torch.Generator().manual_seed(seed)
    return 1.0 - 2.0 * torch.randint(0, 2, (size,), generator=generator).float()
