# SPDX-License-Identifier: MIT OR Apache-2.0
"""The key and value cache of one attention layer as the native kernels hold it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_zeros

BLOCK = 32


@dataclass(frozen=True)
class KvCache:
    """Keys and values of up to `capacity` positions.

    keys: bf16 [Hkv, capacity/32, D/2, 32, 2], so that in a block of 32 positions the position is
    the vector lane; values: bf16 [Hkv, capacity, D]. Positions not yet written are never read.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def zeros(cls, capacity: int, heads: int, dim: int) -> KvCache:
        """Buffers for at least `capacity` positions, rounded up to whole blocks.

        Raises:
            ValueError: dim not a multiple of 16 in 16..256, or capacity or heads below 1.
        """
        if not 16 <= dim <= 256 or dim % 16:
            raise ValueError(f"head_dim must be a multiple of 16 up to 256, got {dim}")
        if capacity < 1 or heads < 1:
            raise ValueError(f"capacity and heads must be positive, got {capacity} and {heads}")
        blocks = -(-capacity // BLOCK)
        return cls(
            aligned_zeros((heads, blocks, dim // 2, BLOCK, 2), torch.bfloat16),
            aligned_zeros((heads, blocks * BLOCK, dim), torch.bfloat16),
        )

    @property
    def capacity(self) -> int:
        """Positions the cache holds."""
        return self.values.shape[1]

    @property
    def heads(self) -> int:
        """Key and value heads."""
        return self.values.shape[0]

    @property
    def dim(self) -> int:
        """Head dimension."""
        return self.values.shape[2]

    def read(self, length: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Copies of positions first .. length - 1, (k, v) each [T, Hkv, D]; others stay untouched."""
        low, high = first // BLOCK, -(-length // BLOCK)
        keys = self.keys[:, low:high].permute(1, 3, 0, 2, 4).reshape(-1, self.heads, self.dim)
        wanted = slice(first - low * BLOCK, length - low * BLOCK)
        values = self.values[:, first:length].transpose(0, 1)
        return keys[wanted].clone(), values.clone(memory_format=torch.contiguous_format)

    def write(self, first: int, k: Tensor, v: Tensor) -> None:
        """Store k, v [T, Hkv, D] at positions first .. first + T.

        Raises:
            ValueError: the positions do not fit the cache.
        """
        length = k.shape[0]
        if first < 0 or first + length > self.capacity:
            raise ValueError(f"positions {first}+{length} lie beyond {self.capacity}")
        at = torch.arange(first, first + length)
        pairs = k.to(torch.bfloat16).view(length, self.heads, self.dim // 2, 2)
        self.keys[:, at // BLOCK, :, at % BLOCK] = pairs
        self.values[:, first : first + length] = v.to(torch.bfloat16).transpose(0, 1)
