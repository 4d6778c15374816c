# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sizes and buffers of a gated delta layer as the native kernels hold them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_copy, aligned_zeros

LANES = 16
MAX_KEY_DIM = 128
MAX_NODES = 32
CONV_TAIL = 3


@dataclass(frozen=True)
class DeltaShape:
    """Heads and head sizes of one layer.

    Raises:
        ValueError: value heads that do not divide into key heads, key_dim not a multiple of 4 or
            above 128, value_dim not a multiple of 16.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    def __post_init__(self) -> None:
        if self.key_heads < 1 or self.value_heads % self.key_heads:
            raise ValueError(
                f"{self.value_heads} value heads do not divide into {self.key_heads} key heads"
            )
        if not 0 < self.key_dim <= MAX_KEY_DIM or self.key_dim % 4:
            raise ValueError(
                f"key_dim must be a multiple of 4 up to {MAX_KEY_DIM}, got {self.key_dim}"
            )
        if self.value_dim < LANES or self.value_dim % LANES:
            raise ValueError(f"value_dim must be a multiple of {LANES}, got {self.value_dim}")

    @property
    def channels(self) -> int:
        """Width of a raw row: q | k | v."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def value_width(self) -> int:
        """Width of an output row."""
        return self.value_heads * self.value_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of the float32 state."""
        return 4 * self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True)
class DeltaState:
    """What a layer carries from token to token.

    recurrent: float32 [Hv, dv/16, dk, 16]; tail: bf16 [3, channels], oldest raw row first.
    """

    recurrent: Tensor
    tail: Tensor

    @classmethod
    def zeros(cls, shape: DeltaShape) -> DeltaState:
        """The state before the first token."""
        tiles = (shape.value_heads, shape.value_dim // LANES, shape.key_dim, LANES)
        return cls(
            aligned_zeros(tiles, torch.float32),
            aligned_zeros((CONV_TAIL, shape.channels), torch.bfloat16),
        )


@dataclass(frozen=True)
class DeltaRecord:
    """What one layer keeps of a verify pass, so that accepted rows can be committed later.

    k: float32 [Hk, capacity, dk], unit length; decay: float32 [capacity, Hv];
    correction: float32 [Hv, capacity, dv], the d of every row.
    """

    k: Tensor
    decay: Tensor
    correction: Tensor

    @property
    def capacity(self) -> int:
        """Rows the record holds."""
        return self.k.shape[1]

    @classmethod
    def zeros(cls, shape: DeltaShape, capacity: int = MAX_NODES) -> DeltaRecord:
        """Buffers for `capacity` rows."""
        return cls(
            aligned_zeros((shape.key_heads, capacity, shape.key_dim), torch.float32),
            aligned_zeros((capacity, shape.value_heads), torch.float32),
            aligned_zeros((shape.value_heads, capacity, shape.value_dim), torch.float32),
        )


@dataclass(frozen=True)
class DeltaWork:
    """Operands between preparation and walk; one set serves all layers.

    q, k: float32 [Hk, capacity, dk]; v: bf16 [Hv, capacity, dv]; qk: float32 [capacity, Hk];
    decay, beta: float32 [capacity, Hv]. k and decay are used when no record is kept.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    qk: Tensor
    decay: Tensor
    beta: Tensor

    @property
    def capacity(self) -> int:
        """Rows the buffers hold."""
        return self.q.shape[1]

    @classmethod
    def zeros(cls, shape: DeltaShape, capacity: int) -> DeltaWork:
        """Buffers for `capacity` rows."""
        keys = (shape.key_heads, capacity, shape.key_dim)
        gates = (capacity, shape.value_heads)
        return cls(
            aligned_zeros(keys, torch.float32),
            aligned_zeros(keys, torch.float32),
            aligned_zeros((shape.value_heads, capacity, shape.value_dim), torch.bfloat16),
            aligned_zeros((capacity, shape.key_heads), torch.float32),
            aligned_zeros(gates, torch.float32),
            aligned_zeros(gates, torch.float32),
        )


@dataclass(frozen=True)
class Pending:
    """Rows of the previous verify pass that this pass commits first.

    count: int32 [1]; rows: int32 [32], ascending, the accepted path from its root. Both are read
    when the tape runs.
    """

    count: Tensor
    rows: Tensor

    @classmethod
    def none(cls) -> Pending:
        """Nothing pending."""
        return cls(aligned_zeros(1, torch.int32), aligned_zeros(MAX_NODES, torch.int32))

    def set(self, rows: list[int]) -> None:
        """Name the accepted rows; an empty list clears.

        Raises:
            ValueError: more than 32 rows, or rows that do not ascend.
        """
        if len(rows) > MAX_NODES or any(b <= a for a, b in zip(rows, rows[1:], strict=False)):
            raise ValueError(f"pending rows must ascend and be at most {MAX_NODES}, got {rows}")
        self.rows[: len(rows)] = torch.tensor(rows, dtype=torch.int32)
        self.count[0] = len(rows)


def state_to_tiles(state: Tensor) -> Tensor:
    """[Hv, dk, dv] -> aligned float32 [Hv, dv/16, dk, 16]."""
    heads, key_dim, value_dim = state.shape
    tiles = state.float().view(heads, key_dim, value_dim // LANES, LANES).transpose(1, 2)
    return aligned_copy(tiles)


def state_from_tiles(tiles: Tensor) -> Tensor:
    """[Hv, dv/16, dk, 16] -> [Hv, dk, dv]."""
    heads, blocks, key_dim, lanes = tiles.shape
    return tiles.transpose(1, 2).reshape(heads, key_dim, blocks * lanes).contiguous()


def tree_depths(parents: list[int]) -> list[int]:
    """Depth of every node of a tree given in depth-first pre-order.

    Raises:
        ValueError: a parent that is not on the path to the node before, or more than 32 nodes.
    """
    if len(parents) > MAX_NODES:
        raise ValueError(f"a tree has at most {MAX_NODES} nodes, got {len(parents)}")
    depths: list[int] = []
    path: list[int] = []
    for node, parent in enumerate(parents):
        depth = 0 if parent < 0 else depths[parent] + 1 if parent < node else -1
        if depth < 0 or parent < -1 or (parent >= 0 and path[depth - 1 : depth] != [parent]):
            raise ValueError(f"node {node} with parent {parent} breaks depth-first pre-order")
        del path[depth:]
        path.append(node)
        depths.append(depth)
    return depths
