# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native attention of a draft block over its cache."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.buffers import require, require_rows
from kernels.kv_cache.native import KvCache
from kernels.tape import StepModel, Tape


class _Args(ctypes.Structure):
    _fields_ = [
        ("q", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("start", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("rows", ctypes.c_int32),
        ("query_heads", ctypes.c_int32),
        ("key_heads", ctypes.c_int32),
        ("dim", ctypes.c_int32),
        ("capacity", ctypes.c_int32),
        ("window", ctypes.c_int32),
    ]


def block_attention(
    tape: Tape,
    *,
    q: Tensor,
    cache: KvCache,
    start: Tensor,
    first: Tensor,
    out: Tensor,
    scale: float,
    window: int,
    rows: int,
) -> None:
    """out = softmax(scale q k^T) v of the rows at positions start .. start + rows - 1, all in the cache.

    The row at position p sees every position from `first` to the last row's, except those `window` or more
    before p. Scores, probabilities and sums stay in float32.

    Args:
        q: bf16 [>= rows, Hq, D] from `attention_prepare`.
        start, first: int32 [1], read when the tape runs.
        out: bf16 [>= rows, Hq * D], unit column stride.

    Raises:
        ValueError: an operand differs from the above.
    """
    dim, heads, query_heads = cache.dim, cache.heads, q.shape[1]
    if not 1 <= rows <= cache.capacity:
        raise ValueError(f"rows must lie in 1..{cache.capacity}, got {rows}")
    if query_heads % heads:
        raise ValueError(f"{query_heads} query heads do not divide into {heads} key heads")
    if cache.scaled:
        raise ValueError("block_attention takes a cache in bf16")
    if window < 1:
        raise ValueError(f"the window must be positive, got {window}")
    if q.shape[0] < rows:
        raise ValueError(f"q must hold at least {rows} rows, got {q.shape[0]}")
    out_at, out_stride = require_rows("out", out, torch.bfloat16, rows, query_heads * dim)
    tape.append(
        StepModel(
            "block_attention",
            bytes_read=4 * heads * dim * rows + 2 * rows * query_heads * dim,
            flops=4 * rows * query_heads * dim * rows,
            position_bytes=4 * heads * dim,
            position_flops=4 * rows * query_heads * dim,
            window=window,
        ),
        "rondo_block_attention",
        _Args(
            q=require("q", q, torch.bfloat16, (None, query_heads, dim)),
            keys=cache.keys.data_ptr(),
            values=cache.values.data_ptr(),
            start=require("start", start, torch.int32, (1,)),
            first=require("first", first, torch.int32, (1,)),
            out=out_at,
            out_stride=out_stride,
            scale=scale,
            rows=rows,
            query_heads=query_heads,
            key_heads=heads,
            dim=dim,
            capacity=cache.capacity,
            window=window,
        ),
        (q, cache, start, first, out),
    )
