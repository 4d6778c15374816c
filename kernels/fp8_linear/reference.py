# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable e4m3 weights, scaled per 128 x 128 block or per output."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

BLOCK = 128


def dequantise_blocks(codes: Tensor, scale_inv: Tensor) -> Tensor:
    """float32 [N, K] = e4m3 * scale_inv[n // 128, k // 128]; the last blocks may be ragged.

    Raises:
        ValueError: the shapes do not belong together.
    """
    rows, columns = codes.shape
    wanted = (-(-rows // BLOCK), -(-columns // BLOCK))
    if tuple(scale_inv.shape) != wanted:
        raise ValueError(f"scale_inv must be {list(wanted)}, got {list(scale_inv.shape)}")
    wide = scale_inv.float().repeat_interleave(BLOCK, 0)[:rows]
    return codes.float() * wide.repeat_interleave(BLOCK, 1)[:, :columns]


def dequantise_rows(codes: Tensor, scale: Tensor | float) -> Tensor:
    """float32 [N, K] = e4m3 * scale[n]; scale [N], [N, 1] or one number for the tensor.

    Raises:
        ValueError: the shapes do not belong together.
    """
    factor = torch.as_tensor(scale, dtype=torch.float32).reshape(-1, 1)
    if factor.shape[0] not in (1, codes.shape[0]):
        raise ValueError(f"scale must hold 1 or {codes.shape[0]} numbers, got {factor.shape[0]}")
    return codes.float() * factor


def linear_blocks(x: Tensor, codes: Tensor, scale_inv: Tensor) -> Tensor:
    """x @ W^T with float32 sums and one rounding: x [..., K] -> [..., N] in x's dtype."""
    return functional.linear(x.float(), dequantise_blocks(codes, scale_inv)).to(x.dtype)


def linear_rows(x: Tensor, codes: Tensor, scale: Tensor | float) -> Tensor:
    """x @ W^T with the scale on the finished float32 sums: x [..., K] -> [..., N] in x's dtype."""
    factor = torch.as_tensor(scale, dtype=torch.float32).reshape(-1)
    return (functional.linear(x.float(), codes.float()) * factor).to(x.dtype)
