# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native walk of the gated delta rule: commit what is pending, walk the rows, gate the output."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_copy, require, require_rows
from kernels.gated_delta.buffers import (
    LANES,
    MAX_NODES,
    DeltaRecord,
    DeltaShape,
    DeltaState,
    DeltaWork,
    Pending,
)
from kernels.tape import StepModel, Tape

_TILES_AT_ONCE = 2


class _Args(ctypes.Structure):
    _fields_ = [
        ("state", ctypes.c_void_p),
        ("q", ctypes.c_void_p),
        ("k", ctypes.c_void_p),
        ("v", ctypes.c_void_p),
        ("qk", ctypes.c_void_p),
        ("decay", ctypes.c_void_p),
        ("beta", ctypes.c_void_p),
        ("correction", ctypes.c_void_p),
        ("z", ctypes.c_void_p),
        ("norm_weight", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("pending_count", ctypes.c_void_p),
        ("pending_rows", ctypes.c_void_p),
        ("pending_k", ctypes.c_void_p),
        ("pending_decay", ctypes.c_void_p),
        ("pending_correction", ctypes.c_void_p),
        ("parents", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("scratch_floats", ctypes.c_int64),
        ("z_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("rows", ctypes.c_int32),
        ("key_heads", ctypes.c_int32),
        ("value_heads", ctypes.c_int32),
        ("key_dim", ctypes.c_int32),
        ("value_dim", ctypes.c_int32),
        ("capacity", ctypes.c_int32),
        ("pending_capacity", ctypes.c_int32),
        ("advance", ctypes.c_int32),
    ]


def gated_norm_weight(weight: Tensor) -> Tensor:
    """The gated norm's weight [dv] as the walk reads it: bf16 values in float32."""
    return aligned_copy(weight.detach().to(torch.bfloat16).float())


def gated_delta(
    tape: Tape,
    *,
    shape: DeltaShape,
    state: DeltaState,
    work: DeltaWork,
    z: Tensor,
    norm_weight: Tensor,
    out: Tensor,
    eps: float,
    rows: int,
    record: DeltaRecord | None = None,
    pending: Pending | None = None,
    pending_record: DeltaRecord | None = None,
    parents: Tensor | None = None,
    name: str = "gated_delta",
) -> None:
    """out = gated norm of the recurrence over this pass's rows, state committed as asked.

    The rows named by `pending` are applied to the state first, from what `pending_record` kept of
    them; the state then holds the bits that decoding those rows one at a time would have left.
    With a `record` (verify) the walked state is dropped and the rows are recorded; without one
    (advance) every row is committed. A row's bits depend on its ancestors alone.

    Args:
        work: operands left by `delta_prepare` of the same layer, rows and record.
        z: bf16 [>= rows, Hv*dv] output gate; out: bf16 [>= rows, Hv*dv]; unit column strides.
        norm_weight: float32 [dv] from `gated_norm_weight`; eps: of that norm.
        rows: 1..32 with a record, up to the work's capacity without; 0 only commits what is
            pending.
        parents: int32 [32], read when the tape runs: parent of each node in depth-first
            pre-order, -1 for a root; None for a chain. Needs a record.

    Raises:
        ValueError: an operand differs from the above.
    """
    heads, key_dim, value_dim = shape.value_heads, shape.key_dim, shape.value_dim
    capacity = check_rows(rows, work, record, parents)
    kept = work if record is None else record
    if (pending is None) != (pending_record is None):
        raise ValueError("pending and pending_record come together")
    if pending_record is not None and pending_record is record:
        raise ValueError("the pending rows must lie in the other parity's record")
    keys = (shape.key_heads, capacity, key_dim)
    z_at, z_stride = require_rows("z", z, torch.bfloat16, rows, shape.value_width)
    out_at, out_stride = require_rows("out", out, torch.bfloat16, rows, shape.value_width)
    depth = MAX_NODES if parents is not None else 1
    scratch, scratch_bytes = tape.pool.scratch(4 * _TILES_AT_ONCE * LANES * key_dim * depth)
    recurrent = (heads, value_dim // LANES, key_dim, LANES)
    args = _Args(
        state=require("state", state.recurrent, torch.float32, recurrent),
        q=require("work.q", work.q, torch.float32, keys),
        k=require("k", kept.k, torch.float32, keys),
        v=require("work.v", work.v, torch.bfloat16, (heads, capacity, value_dim)),
        qk=require("work.qk", work.qk, torch.float32, (capacity, shape.key_heads)),
        decay=require("decay", kept.decay, torch.float32, (capacity, heads)),
        beta=require("work.beta", work.beta, torch.float32, (capacity, heads)),
        z=z_at,
        norm_weight=require("norm_weight", norm_weight, torch.float32, (value_dim,)),
        out=out_at,
        scratch=scratch,
        scratch_floats=scratch_bytes // 4,
        z_stride=z_stride,
        out_stride=out_stride,
        eps=eps,
        rows=rows,
        key_heads=shape.key_heads,
        value_heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        capacity=capacity,
        advance=int(record is None),
    )
    if record is not None:
        args.correction = require(
            "record.correction", record.correction, torch.float32, (heads, capacity, value_dim)
        )
    if pending is not None and pending_record is not None:
        size = pending_record.capacity
        args.pending_count = require("pending.count", pending.count, torch.int32, (1,))
        args.pending_rows = require("pending.rows", pending.rows, torch.int32, (MAX_NODES,))
        args.pending_k = require(
            "pending_record.k", pending_record.k, torch.float32, (shape.key_heads, size, key_dim)
        )
        args.pending_decay = require(
            "pending_record.decay", pending_record.decay, torch.float32, (size, heads)
        )
        args.pending_correction = require(
            "pending_record.correction",
            pending_record.correction,
            torch.float32,
            (heads, size, value_dim),
        )
        args.pending_capacity = size
    if parents is not None:
        args.parents = require("parents", parents, torch.int32, (MAX_NODES,))
    operand_bytes = rows * (8 * shape.key_heads * key_dim + 6 * shape.value_width)
    tape.append(
        StepModel(
            name,
            bytes_read=shape.state_bytes + operand_bytes,
            flops=8 * rows * heads * key_dim * value_dim,
        ),
        "rondo_gated_delta",
        args,
        (state, work, z, norm_weight, out, record, pending, pending_record, parents),
    )


def check_rows(
    rows: int, work: DeltaWork, record: DeltaRecord | None, parents: Tensor | None
) -> int:
    """The rows the operand buffers hold, after checking that this pass fits them."""
    if record is not None and record.capacity != work.capacity:
        raise ValueError(
            f"record and work must hold the same rows, got {record.capacity} and {work.capacity}"
        )
    if record is None and parents is not None:
        raise ValueError("a tree needs a record: only its accepted path is ever committed")
    limit = work.capacity if parents is None else min(work.capacity, MAX_NODES)
    least = 0 if record is None else 1
    if not least <= rows <= limit:
        raise ValueError(f"rows must lie in {least}..{limit}, got {rows}")
    return work.capacity
