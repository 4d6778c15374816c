# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the GPU's walks of the gated delta rule share: the operands of a pass, and what they have to be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from kernels.tree_paths.reference import MAX_NODES
from kernels.triton_operands import require, require_device, require_rows

MAX_KEY_DIM = 256
VALUE_BLOCK = 16
_MOST_ELEMENTS = 1 << 31


class Sizes(NamedTuple):
    """Heads and dimensions, in the order that the kernels take them."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True)
class DeltaFactors:
    """What passes keep of their rows, so that accepted ones can be committed later; of one layer or of many.

    k: float32 [rows, Hk, dk], unit keys; u: float32 [rows, Hv, dv], corrections (v - k^T S) beta;
    g, gc: float32 [rows, Hv], the decay's logarithm and its sum along the row's path. Of many layers: [L,
    rows, ...].
    """

    k: Tensor
    u: Tensor
    g: Tensor
    gc: Tensor

    @classmethod
    def empty(
        cls,
        *,
        rows: int,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        device: torch.device | str,
        layers: int | None = None,
    ) -> DeltaFactors:
        """Buffers for `rows` rows of one layer, or of `layers`."""

        def buffer(*shape: int) -> Tensor:
            shape = shape if layers is None else (layers, *shape)
            return torch.empty(shape, dtype=torch.float32, device=device)

        return cls(
            buffer(rows, key_heads, key_dim),
            buffer(rows, value_heads, value_dim),
            buffer(rows, value_heads),
            buffer(rows, value_heads),
        )

    def layer(self, index: int) -> DeltaFactors:
        """One layer's part, as a view."""
        return DeltaFactors(self.k[index], self.u[index], self.g[index], self.gc[index])


@dataclass(frozen=True)
class Accepted:
    """Rows of the pass before that are to be committed, read on the device.

    count: int32 [1]; rows: int32 [32], the accepted path from its root.
    """

    count: Tensor
    rows: Tensor


@dataclass(frozen=True)
class DeltaPass:
    """Rows of one pass in one layer, and the rows of the pass before that are committed first.

    Attributes:
        state: float32 [Hv, dk, dv], updated in place.
        q: float32 [>= rows, Hk, dk] of `delta_operands`; beta: float32 [>= rows, Hv].
        factors: of this pass; k and g are read, u and gc are written.
        v: bf16 [>= rows, Hv * dv], unit column stride (a part of the convolution's output).
        out: bf16 [>= rows, Hv * dv], unit column stride.
        accepted: rows of the pass before; a count of 0 commits nothing. accepted_factors: of that pass, other
            memory than `factors`.
    """

    state: Tensor
    q: Tensor
    factors: DeltaFactors
    v: Tensor
    beta: Tensor
    out: Tensor
    rows: int
    accepted: Accepted
    accepted_factors: DeltaFactors

    @property
    def own(self) -> tuple[Tensor, ...]:
        """The pass's operands, in the order that the walks take them."""
        own = self.factors
        return self.state, self.q, own.k, self.v, own.g, self.beta, own.u, own.gc, self.out

    @property
    def pending(self) -> tuple[Tensor, ...]:
        """What is committed first, in that order."""
        old = self.accepted_factors
        return self.accepted.count, self.accepted.rows, old.k, old.u, old.g, old.gc

    def checked(self) -> tuple[Sizes, tuple[int, int]]:
        """Heads and dimensions, and the row strides of v and out.

        Raises:
            ValueError: an operand does not fit the others.
        """
        state, q, factors, rows = self.state, self.q, self.factors, self.rows
        wanted = (None, None, None)
        value_heads, key_dim, value_dim = require("state", state, torch.float32, wanted).shape
        key_heads = q.shape[1] if q.dim() == 3 else 0
        sizes = Sizes(key_heads, value_heads, key_dim, value_dim)
        require_sizes(sizes)
        for prefix, kept in (("factors", factors), ("accepted_factors", self.accepted_factors)):
            require(f"{prefix}.k", kept.k, torch.float32, (None, key_heads, key_dim))
            require(f"{prefix}.u", kept.u, torch.float32, (None, value_heads, value_dim))
            require(f"{prefix}.g", kept.g, torch.float32, (None, value_heads))
            require(f"{prefix}.gc", kept.gc, torch.float32, (None, value_heads))
        require("q", q, torch.float32, (None, key_heads, key_dim))
        require("beta", self.beta, torch.float32, (None, value_heads))
        held = (q, self.beta, factors.k, factors.u, factors.g, factors.gc)
        least = min(len(part) for part in held)
        if not 1 <= rows <= least:
            raise ValueError(f"rows must lie in 1..{least}, what the buffers hold, got {rows}")
        if factors.u.data_ptr() == self.accepted_factors.u.data_ptr():
            raise ValueError("the accepted rows must lie in the other pass's factors")
        require_accepted(self.accepted)
        width = value_heads * value_dim
        strides = (
            require_rows("v", self.v, torch.bfloat16, rows, width),
            require_rows("out", self.out, torch.bfloat16, rows, width),
        )
        if rows * max(strides) >= _MOST_ELEMENTS:
            raise ValueError(
                f"{rows} rows span {rows * max(strides)} elements, the kernel counts to 2^31"
            )
        require_device(
            state=state, q=q, k=factors.k, v=self.v, beta=self.beta, out=self.out,
            count=self.accepted.count,
        )  # fmt: skip
        return sizes, strides


def require_tree(paths: Tensor | None, depths: Tensor | None, rows: int) -> None:
    """Raise ValueError unless both tables of a tree of up to 32 rows are there, or neither is."""
    if (paths is None) != (depths is None):
        raise ValueError("paths and depths come together")
    if paths is not None and depths is not None:
        require("paths", paths, torch.int32, (MAX_NODES, MAX_NODES))
        require("depths", depths, torch.int32, (MAX_NODES,))
        if rows > MAX_NODES:
            raise ValueError(f"a tree has 1 to {MAX_NODES} rows, got {rows}")


def require_accepted(accepted: Accepted) -> None:
    """Raise ValueError unless the rows to commit are int32 [1] and [32]."""
    require("accepted.count", accepted.count, torch.int32, (1,))
    require("accepted.rows", accepted.rows, torch.int32, (MAX_NODES,))


def require_sizes(sizes: Sizes) -> None:
    """Raise ValueError unless the kernels take these heads and dimensions."""
    if sizes.key_heads < 1 or sizes.value_heads % sizes.key_heads:
        raise ValueError(
            f"{sizes.value_heads} value heads do not divide into {sizes.key_heads} key heads"
        )
    require_power("the key dimension", sizes.key_dim, MAX_KEY_DIM)
    if sizes.value_dim % VALUE_BLOCK:
        raise ValueError(
            f"the value dimension must be a multiple of {VALUE_BLOCK}, got {sizes.value_dim}"
        )


def require_power(name: str, value: int, most: int) -> None:
    """Raise ValueError unless a dimension is a power of two from 16 to `most`."""
    if value < 16 or value > most or value & (value - 1):
        raise ValueError(f"{name} must be a power of two in 16..{most}, got {value}")
