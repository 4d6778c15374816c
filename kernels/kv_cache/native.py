# SPDX-License-Identifier: MIT OR Apache-2.0
"""The key and value cache of one attention layer as the native kernels hold it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_zeros
from kernels.kv_cache.reference import dequantise, quantise

BLOCK = 32


@dataclass(frozen=True)
class KvCache:
    """Keys and values of up to `capacity` positions.

    keys: bf16 [Hkv, capacity/32, D/2, 32, 2], so that in a block of 32 positions the position is
    the vector lane; values: bf16 [Hkv, capacity, D]. Positions not yet written are never read. Or both in
    float8_e4m3fn, with float32 [Hkv, capacity] scales of keys and of values: an element is its code times the
    scale of its head and position.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @classmethod
    def zeros(cls, capacity: int, heads: int, dim: int, *, scaled: bool = False) -> KvCache:
        """Buffers for at least `capacity` positions, rounded up to whole blocks; `scaled`: in e4m3.

        Raises:
            ValueError: dim not a multiple of 16 in 16..256, or capacity or heads below 1.
        """
        if not 16 <= dim <= 256 or dim % 16:
            raise ValueError(f"head_dim must be a multiple of 16 up to 256, got {dim}")
        if capacity < 1 or heads < 1:
            raise ValueError(f"capacity and heads must be positive, got {capacity} and {heads}")
        blocks = -(-capacity // BLOCK)
        dtype = torch.float8_e4m3fn if scaled else torch.bfloat16
        scales = [aligned_zeros((heads, blocks * BLOCK), torch.float32) for _ in range(2 * scaled)]
        return cls(
            aligned_zeros((heads, blocks, dim // 2, BLOCK, 2), dtype),
            aligned_zeros((heads, blocks * BLOCK, dim), dtype),
            *scales,
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

    @property
    def scaled(self) -> bool:
        """Whether elements are e4m3 codes with scales."""
        return self.key_scales is not None

    @property
    def position_bytes(self) -> int:
        """Bytes of one position's keys, values and scales, all heads."""
        scales = sum(x.nbytes for x in (self.key_scales, self.value_scales) if x is not None)
        return (self.keys.nbytes + self.values.nbytes + scales) // self.capacity

    @property
    def addresses(self) -> dict[str, int | None]:
        """Where the buffers lie, by the names that kernels give them."""
        both = {"key_scales": self.key_scales, "value_scales": self.value_scales}
        scales = {name: None if each is None else each.data_ptr() for name, each in both.items()}
        return {"keys": self.keys.data_ptr(), "values": self.values.data_ptr(), **scales}

    def read(self, length: int, first: int = 0) -> tuple[Tensor, Tensor]:
        """Copies of positions first .. length - 1, (k, v) each [T, Hkv, D]; others stay untouched.

        bf16, or float32 out of e4m3.
        """
        keys, values, *scales = self.stored(torch.arange(first, length))
        if scales:
            return dequantise(keys, scales[0]), dequantise(values, scales[1])
        return keys, values

    def write(self, first: int, k: Tensor, v: Tensor) -> None:
        """Store k, v [T, Hkv, D] at positions first .. first + T.

        Raises:
            ValueError: the positions do not fit the cache.
        """
        k, v = k.to(torch.bfloat16), v.to(torch.bfloat16)
        if self.scaled:
            (keys, key_scales), (values, value_scales) = quantise(k), quantise(v)
            self._put(first, keys, values, key_scales, value_scales)
        else:
            self._put(first, k, v)

    def poison(self) -> None:
        """Fill every buffer with NaN, so that a position read before it was written shows."""
        for elements in (self.keys, self.values):
            if self.scaled:
                elements.view(torch.uint8).fill_(0x7F)
            else:
                elements.fill_(torch.nan)
        for scales in (self.key_scales, self.value_scales):
            if scales is not None:
                scales.fill_(torch.nan)

    def move(self, first: int, rows: Tensor) -> None:
        """Copy positions `rows`, int64 [T] ascending and none before its target, to first .. first + T."""
        self._put(first, *self.stored(rows))

    def stored(self, at: Tensor) -> list[Tensor]:
        """Copies of what positions `at`, int64 [T], hold: keys, values [T, Hkv, D] and any scales [T, Hkv]."""
        keys = self._raw(self.keys)[:, at // BLOCK, :, at % BLOCK]
        values = self._raw(self.values)[:, at].transpose(0, 1)
        scales = [
            each[:, at].t() for each in (self.key_scales, self.value_scales) if each is not None
        ]
        shape = (len(at), self.heads, self.dim)
        both = (keys.reshape(shape), values.reshape(shape))
        return [*(each.contiguous().view(self.keys.dtype) for each in both), *scales]

    def _put(self, first: int, k: Tensor, v: Tensor, *scales: Tensor) -> None:
        length = k.shape[0]
        if first < 0 or first + length > self.capacity:
            raise ValueError(f"positions {first}+{length} lie beyond {self.capacity}")
        at = torch.arange(first, first + length)
        pairs = self._raw(k.contiguous()).view(length, self.heads, self.dim // 2, 2)
        self._raw(self.keys)[:, at // BLOCK, :, at % BLOCK] = pairs
        self._raw(self.values)[:, first : first + length] = self._raw(v.contiguous()).transpose(
            0, 1
        )
        for held, new in zip((self.key_scales, self.value_scales), scales, strict=False):
            if held is not None:
                held[:, first : first + length] = new.t()

    def _raw(self, elements: Tensor) -> Tensor:
        """The same elements in a dtype that can be gathered: float8 tensors have few operations."""
        return elements.view(torch.uint8) if self.scaled else elements
