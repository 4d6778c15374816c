# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native preparation of an attention layer: head norms, partial rotary embedding, KV append."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_copy, require, require_rows
from kernels.gated_delta.buffers import MAX_NODES, Pending
from kernels.kv_cache.native import KvCache
from kernels.rope.reference import rope_tables
from kernels.tape import StepModel, Tape


class _Args(ctypes.Structure):
    _fields_ = [
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("q_scale", ctypes.c_void_p),
        ("k_scale", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("start", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("pending_count", ctypes.c_void_p),
        ("pending_rows", ctypes.c_void_p),
        ("q_out", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
        ("q_stride", ctypes.c_int64),
        ("q_head_stride", ctypes.c_int64),
        ("k_stride", ctypes.c_int64),
        ("v_stride", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("rows", ctypes.c_int32),
        ("query_heads", ctypes.c_int32),
        ("key_heads", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("rotary_dim", ctypes.c_int32),
        ("capacity", ctypes.c_int32),
        ("positions", ctypes.c_int32),
    ]


def rope_table(positions: int, rotary_dim: int, theta: float) -> Tensor:
    """Cosines then sines of positions 0 .. positions - 1, bf16 [positions, rotary_dim]."""
    half = rotary_dim // 2
    cos, sin = rope_tables(torch.arange(positions), rotary_dim, theta, torch.bfloat16)
    return aligned_copy(torch.cat((cos[:, :half], sin[:, :half]), dim=1))


def attention_prepare(
    tape: Tape,
    *,
    k: Tensor,
    v: Tensor,
    k_scale: Tensor,
    table: Tensor,
    cache: KvCache,
    start: Tensor,
    eps: float,
    rows: int,
    q: Tensor | None = None,
    q_scale: Tensor | None = None,
    q_out: Tensor | None = None,
    gated: bool = True,
    pending: Pending | None = None,
    parents: Tensor | None = None,
    name: str = "attention_prepare",
) -> None:
    """q_out = rotated norm of the queries; keys and values appended at start + row, in e4m3 where the
    cache is: bf16 rows as `kernels.kv_cache.reference.quantise` has them.

    Positions named by `pending` first move to the end of the committed ones: row pending.rows[j]
    of the previous pass goes to start - pending.count + j. The rotary position of a row is
    start + row in a chain and start + depth in a tree. A row past the cache or the table gives
    NaN queries, which the argmax of the round reports.

    Args:
        k, v: bf16 [>= rows, Hkv * D].
        q_scale, k_scale: float32 [D] from `norm_scale`.
        table: bf16 [positions, rotary_dim] from `rope_table`.
        start: int32 [1], committed positions, the pending included; read when the tape runs.
        q: bf16 [>= rows, Hq * 2D], per head D query values then D gate values; [>= rows, Hq * D] when
            not `gated`. None, with q_scale and q_out, for keys and values alone.
        q_out: bf16 [>= rows, Hq, D], contiguous.
        rows: up to the cache's capacity, 32 in a tree; 0 only moves what is pending.
        parents: int32 [32] as in `gated_delta`; None for a chain.

    Raises:
        ValueError: an operand differs from the above.
    """
    dim, heads = cache.dim, cache.heads
    query_heads = 0 if q_out is None else q_out.shape[1]
    if (q is None, q_scale is None) != (q_out is None, q_out is None):
        raise ValueError("q, q_scale and q_out come together")
    positions, rotary_dim = table.shape
    limit = cache.capacity if parents is None else MAX_NODES
    if not 0 <= rows <= limit:
        raise ValueError(f"rows must lie in 0..{limit}, got {rows}")
    if query_heads % heads:
        raise ValueError(f"{query_heads} query heads do not divide into {heads} key heads")
    if rotary_dim % 2 or rotary_dim > dim:
        raise ValueError(f"rotary_dim must be even and at most {dim}, got {rotary_dim}")
    k_at, k_stride = require_rows("k", k, torch.bfloat16, rows, heads * dim)
    v_at, v_stride = require_rows("v", v, torch.bfloat16, rows, heads * dim)
    args = _Args(
        k=k_at,
        v=v_at,
        k_scale=require("k_scale", k_scale, torch.float32, (dim,)),
        table=require("table", table, torch.bfloat16, (None, None)),
        start=require("start", start, torch.int32, (1,)),
        **cache.addresses,
        k_stride=k_stride,
        v_stride=v_stride,
        eps=eps,
        rows=rows,
        query_heads=query_heads,
        key_heads=heads,
        dim=dim,
        rotary_dim=rotary_dim,
        capacity=cache.capacity,
        positions=positions,
    )
    if q is not None and q_scale is not None and q_out is not None:
        if q_out.shape[0] < rows:
            raise ValueError(f"q_out must hold at least {rows} rows, got {q_out.shape[0]}")
        head = 2 * dim if gated else dim
        args.q, args.q_stride = require_rows("q", q, torch.bfloat16, rows, query_heads * head)
        args.q_head_stride = head
        args.q_scale = require("q_scale", q_scale, torch.float32, (dim,))
        args.q_out = require("q_out", q_out, torch.bfloat16, (None, query_heads, dim))
    if pending is not None:
        args.pending_count = require("pending.count", pending.count, torch.int32, (1,))
        args.pending_rows = require("pending.rows", pending.rows, torch.int32, (MAX_NODES,))
    if parents is not None:
        args.parents = require("parents", parents, torch.int32, (MAX_NODES,))
    width = (query_heads + 2 * heads) * dim
    tape.append(
        StepModel(name, bytes_read=2 * rows * width, flops=8 * rows * width),
        "rondo_attention_prepare",
        args,
        (q, k, v, q_scale, k_scale, table, cache, start, q_out, pending, parents),
    )
