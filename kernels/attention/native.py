# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native causal attention over the cache, with the output gate fused."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.buffers import require, require_rows
from kernels.gated_delta.buffers import MAX_NODES
from kernels.kv_cache.native import BLOCK, KvCache
from kernels.tape import StepModel, Tape

_BATCH_ROWS = 32
_HEADS_AT_ONCE = 6


class _Args(ctypes.Structure):
    _fields_ = [
        ("q", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
        ("gate", ctypes.c_void_p),
        ("start", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("gate_stride", ctypes.c_int64),
        ("gate_head_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("scratch_floats", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("rows", ctypes.c_int32),
        ("query_heads", ctypes.c_int32),
        ("key_heads", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("capacity", ctypes.c_int32),
    ]


def attention(
    tape: Tape,
    *,
    q: Tensor,
    cache: KvCache,
    start: Tensor,
    out: Tensor,
    scale: float,
    rows: int,
    gated: Tensor | None = None,
    parents: Tensor | None = None,
    name: str = "attention",
) -> None:
    """out = softmax(scale q k^T) v over each row's past, then round(out) * round(sigmoid(gate)).

    Row t of a chain sees positions 0 .. start + t; a tree node sees the committed positions and
    its ancestors, with the bits it would have at position start + depth of a chain. Scores,
    probabilities and sums stay in float32, positions are taken in blocks of 32 aligned to the
    absolute position. A cache in e4m3 gives each score the scale of its key and each probability
    that of its value.

    Args:
        q: bf16 [>= rows, Hq, D] from `attention_prepare`.
        cache: holds every position a row sees.
        start: int32 [1], position of the first row; read when the tape runs.
        out: bf16 [>= rows, Hq * D], unit column stride.
        gated: the query projection, bf16 [>= rows, Hq * 2D] with the gate in each head's second
            half; None for no gate.
        parents: int32 [32] as in `gated_delta`; None for a chain.

    Raises:
        ValueError: an operand differs from the above.
    """
    dim, heads = cache.dim, cache.heads
    query_heads = q.shape[1]
    limit = cache.capacity if parents is None else MAX_NODES
    if not 1 <= rows <= limit:
        raise ValueError(f"rows must lie in 1..{limit}, got {rows}")
    if query_heads % heads:
        raise ValueError(f"{query_heads} query heads do not divide into {heads} key heads")
    if q.shape[0] < rows:
        raise ValueError(f"q must hold at least {rows} rows, got {q.shape[0]}")
    out_at, out_stride = require_rows("out", out, torch.bfloat16, rows, query_heads * dim)
    running = _BATCH_ROWS * _HEADS_AT_ONCE * dim
    path = 2 * BLOCK * dim  # two blocks of keys and of values, bf16
    scales, decoded = (4 * BLOCK, path) if cache.scaled else (0, 0)
    scratch, scratch_bytes = tape.pool.scratch(4 * (running + path + scales + decoded))
    args = _Args(
        q=require("q", q, torch.bfloat16, (None, query_heads, dim)),
        **cache.addresses,
        start=require("start", start, torch.int32, (1,)),
        out=out_at,
        scratch=scratch,
        out_stride=out_stride,
        scratch_floats=scratch_bytes // 4,
        scale=scale,
        rows=rows,
        query_heads=query_heads,
        key_heads=heads,
        dim=dim,
        capacity=cache.capacity,
    )
    if gated is not None:
        gated_at, gated_stride = require_rows(
            "gated", gated, torch.bfloat16, rows, query_heads * 2 * dim
        )
        args.gate = gated_at + 2 * dim
        args.gate_stride, args.gate_head_stride = gated_stride, 2 * dim
    if parents is not None:
        args.parents = require("parents", parents, torch.int32, (MAX_NODES,))
    tape.append(
        StepModel(
            name,
            bytes_read=cache.position_bytes * rows + 2 * rows * query_heads * dim,
            flops=4 * rows * query_heads * dim * ((rows + 1) // 2),
            position_bytes=cache.position_bytes,
            position_flops=4 * rows * query_heads * dim,
        ),
        "rondo_attention",
        args,
        (q, cache, start, out, gated, parents),
    )
