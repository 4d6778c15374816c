# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native preparation of a gated delta layer: convolution, SiLU, unit length, decay and beta."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_copy, require, require_rows
from kernels.gated_delta.buffers import (
    CONV_TAIL,
    MAX_NODES,
    DeltaRecord,
    DeltaShape,
    DeltaState,
    DeltaWork,
    Pending,
)
from kernels.gated_delta.native import check_rows
from kernels.tape import StepModel, Tape

_UNIT_EPS = 1e-6


class _Args(ctypes.Structure):
    _fields_ = [
        ("raw", ctypes.c_void_p),
        ("taps", ctypes.c_void_p),
        ("tail", ctypes.c_void_p),
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("rate", ctypes.c_void_p),
        ("dt_bias", ctypes.c_void_p),
        ("pending_count", ctypes.c_void_p),
        ("pending_rows", ctypes.c_void_p),
        ("pending_raw", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("qk", ctypes.c_void_p),
        ("decay", ctypes.c_void_p),
        ("beta", ctypes.c_void_p),
        ("raw_stride", ctypes.c_int64),
        ("pending_raw_stride", ctypes.c_int64),
        ("a_stride", ctypes.c_int64),
        ("b_stride", ctypes.c_int64),
        ("query_scale", ctypes.c_float),
        ("eps", ctypes.c_float),
        ("rows", ctypes.c_int32),
        ("key_heads", ctypes.c_int32),
        ("value_heads", ctypes.c_int32),
        ("key_dim", ctypes.c_int32),
        ("value_dim", ctypes.c_int32),
        ("capacity", ctypes.c_int32),
        ("advance", ctypes.c_int32),
    ]


@dataclass(frozen=True)
class DeltaWeights:
    """The small weights of a gated delta layer as the preparation reads them.

    taps: bf16 [4, channels], oldest first; rate: float32 [Hv], -exp(A_log); dt_bias: float32 [Hv].
    """

    taps: Tensor
    rate: Tensor
    dt_bias: Tensor

    @classmethod
    def pack(cls, conv: Tensor, a_log: Tensor, dt_bias: Tensor) -> DeltaWeights:
        """From conv [C, 4] or [C, 1, 4], A_log [Hv] and dt_bias [Hv] in any float dtype."""
        taps = conv.detach().reshape(conv.shape[0], conv.shape[-1])
        return cls(
            aligned_copy(taps.to(torch.bfloat16).t()),
            aligned_copy(-a_log.detach().float().exp()),
            aligned_copy(dt_bias.detach().float()),
        )


def delta_prepare(
    tape: Tape,
    *,
    shape: DeltaShape,
    raw: Tensor,
    a: Tensor,
    b: Tensor,
    weights: DeltaWeights,
    state: DeltaState,
    work: DeltaWork,
    rows: int,
    record: DeltaRecord | None = None,
    pending: Pending | None = None,
    pending_raw: Tensor | None = None,
    parents: Tensor | None = None,
    name: str = "delta_prepare",
) -> None:
    """Operands of the walk from the layer's projections, and the commit of the conv tail.

    The tail first takes the raw rows named by `pending`. q and k become unit vectors (epsilon
    1e-6 on the sum, q also times dk^-0.5), v the convolved values, decay = exp(-exp(A_log) *
    softplus(a + dt_bias)), beta = sigmoid(b) in float32. The four-term sum of the convolution and
    SiLU run in float32 with one rounding. Without a record the tail takes this pass's rows too.

    Args:
        raw: bf16 [>= rows, channels], q | k | v; kept untouched until these rows are committed.
        a, b: bf16 [>= rows, Hv].
        pending_raw: the raw rows of the pass that `pending` refers to.
        record, parents: as in `gated_delta`.

    Raises:
        ValueError: an operand differs from the above.
    """
    capacity = check_rows(rows, work, record, parents)
    kept = work if record is None else record
    if (pending is None) != (pending_raw is None):
        raise ValueError("pending and pending_raw come together")
    heads, channels = shape.value_heads, shape.channels
    keys = (shape.key_heads, capacity, shape.key_dim)
    raw_at, raw_stride = require_rows("raw", raw, torch.bfloat16, rows, channels)
    a_at, a_stride = require_rows("a", a, torch.bfloat16, rows, heads)
    b_at, b_stride = require_rows("b", b, torch.bfloat16, rows, heads)
    args = _Args(
        raw=raw_at,
        taps=require("weights.taps", weights.taps, torch.bfloat16, (4, channels)),
        tail=require("state.tail", state.tail, torch.bfloat16, (CONV_TAIL, channels)),
        a=a_at,
        b=b_at,
        rate=require("weights.rate", weights.rate, torch.float32, (heads,)),
        dt_bias=require("weights.dt_bias", weights.dt_bias, torch.float32, (heads,)),
        q=require("work.q", work.q, torch.float32, keys),
        k=require("k", kept.k, torch.float32, keys),
        v=require("work.v", work.v, torch.bfloat16, (heads, capacity, shape.value_dim)),
        qk=require("work.qk", work.qk, torch.float32, (capacity, shape.key_heads)),
        decay=require("decay", kept.decay, torch.float32, (capacity, heads)),
        beta=require("work.beta", work.beta, torch.float32, (capacity, heads)),
        raw_stride=raw_stride,
        a_stride=a_stride,
        b_stride=b_stride,
        query_scale=shape.key_dim**-0.5,
        eps=_UNIT_EPS,
        rows=rows,
        key_heads=shape.key_heads,
        value_heads=heads,
        key_dim=shape.key_dim,
        value_dim=shape.value_dim,
        capacity=capacity,
        advance=int(record is None),
    )
    if pending is not None and pending_raw is not None:
        args.pending_raw, args.pending_raw_stride = require_rows(
            "pending_raw", pending_raw, torch.bfloat16, 1, channels
        )
        args.pending_count = require("pending.count", pending.count, torch.int32, (1,))
        args.pending_rows = require("pending.rows", pending.rows, torch.int32, (MAX_NODES,))
    if parents is not None:
        args.parents = require("parents", parents, torch.int32, (MAX_NODES,))
    tape.append(
        StepModel(
            name,
            bytes_read=2 * channels * (rows + CONV_TAIL + 4) + 4 * rows * heads,
            flops=rows * channels * 20,
        ),
        "rondo_delta_prepare",
        args,
        (raw, a, b, weights, state, work, record, pending, pending_raw, parents),
    )
