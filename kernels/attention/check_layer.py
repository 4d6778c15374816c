# SPDX-License-Identifier: MIT OR Apache-2.0
"""One attention layer driven through the native kernels, for checks and tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.attention.native import attention
from kernels.build import NativeLibrary
from kernels.checks import poison
from kernels.gated_delta.buffers import MAX_NODES, Pending
from kernels.kv_cache.native import KvCache
from kernels.rms_norm.native import norm_scale
from kernels.rope.native import attention_prepare, rope_table
from kernels.tape import Pool, Tape

EPS = 1e-6
THETA = 1e7


@dataclass(frozen=True)
class AttentionShape:
    """Heads and dimensions of one attention layer."""

    query_heads: int
    key_heads: int
    dim: int
    rotary_dim: int


@dataclass(frozen=True)
class AttentionInputs:
    """Norm weights and T rows of projections of one layer."""

    q: Tensor  # bf16 [T, Hq * 2D], query and gate per head
    k: Tensor  # bf16 [T, Hkv * D]
    v: Tensor  # bf16 [T, Hkv * D]
    q_norm: Tensor  # bf16 [D]
    k_norm: Tensor  # bf16 [D]


def random_inputs(
    shape: AttentionShape, rows: int, seed: int, kind: str = "gaussian"
) -> AttentionInputs:
    """Random inputs of one class: gaussian, sharp, outliers, denormal or zeros."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    q = normal(rows, shape.query_heads * 2 * shape.dim)
    k = normal(rows, shape.key_heads * shape.dim)
    v = normal(rows, shape.key_heads * shape.dim)
    weight = 0.1
    if kind == "sharp":
        weight = 3.0
    elif kind == "outliers":
        q, k, v = (torch.where(normal(*x.shape) > 2.5, x * 300, x) for x in (q, k, v))
    elif kind == "denormal":
        q, k, v = q * 1e-38, k * 1e-38, v * 1e-38
    elif kind == "zeros":
        q, k, v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    return AttentionInputs(
        q.bfloat16(),
        k.bfloat16(),
        v.bfloat16(),
        (weight * normal(shape.dim)).bfloat16(),
        (weight * normal(shape.dim)).bfloat16(),
    )


class AttentionLayer:
    """One layer driven through the native kernels over a cache poisoned with NaN."""

    def __init__(
        self,
        library: NativeLibrary,
        shape: AttentionShape,
        inputs: AttentionInputs,
        capacity: int,
        threads: int = 1,
        *,
        scaled: bool = False,
    ) -> None:
        """An empty cache of `capacity` positions, in e4m3 if `scaled`; close() ends the workers."""
        self.shape, self.inputs = shape, inputs
        self.pool = Pool(library, threads)
        self.cache = KvCache.zeros(capacity, shape.key_heads, shape.dim, scaled=scaled)
        self.cache.poison()
        self.table = rope_table(self.cache.capacity, shape.rotary_dim, THETA)
        self.start = torch.zeros(1, dtype=torch.int32)
        self.pending = Pending.none()
        self.q_out = torch.empty(0)

    def close(self) -> None:
        """End the worker threads."""
        self.pool.close()

    def run(self, rows: list[int], parents: list[int] | None = None) -> Tensor:
        """Append the given rows of the inputs at the committed length and attend from them."""
        shape, count = self.shape, len(rows)
        tree = None
        if parents is not None:
            tree = torch.zeros(MAX_NODES, dtype=torch.int32)
            tree[:count] = torch.tensor(parents, dtype=torch.int32)
        self.q_out = poison(torch.empty(count, shape.query_heads, shape.dim, dtype=torch.bfloat16))
        out = poison(torch.empty(count, shape.query_heads * shape.dim, dtype=torch.bfloat16))
        q = self.inputs.q[rows]
        tape = Tape(self.pool)
        attention_prepare(
            tape,
            q=q,
            k=self.inputs.k[rows],
            v=self.inputs.v[rows],
            q_scale=norm_scale(self.inputs.q_norm),
            k_scale=norm_scale(self.inputs.k_norm),
            table=self.table,
            cache=self.cache,
            start=self.start,
            q_out=self.q_out,
            eps=EPS,
            rows=count,
            pending=self.pending,
            parents=tree,
        )
        attention(
            tape,
            q=self.q_out,
            cache=self.cache,
            start=self.start,
            out=out,
            scale=shape.dim**-0.5,
            rows=count,
            gated=q,
            parents=tree,
        )
        tape.run()
        self.pending.set([])
        return out

    def accept(self, nodes: list[int]) -> None:
        """Commit nodes of the latest run: the next run moves them to the end of the cache."""
        self.pending.set(nodes)
        self.start += len(nodes)
