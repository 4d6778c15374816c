# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native mixture of experts: route, the experts' products, and their weighted sum.

One layer is five calls over static buffers; which experts run, and on how many rows, is decided when the tape
runs. R rows, E experts, k of them chosen by a row, H hidden, I inner width of an expert::

    plan = MoePlan.empty(rows=32, experts=E, top_k=k)      # shared by all layers of a tape
    hidden, y = plan.buffer(I), plan.buffer(H)              # bf16 [rows * k, I] and [rows * k, H]
    linear(tape, router, x, logits, rows=R)                 # logits float32 or bf16 [>= R, E]
    moe_route(tape, plan, logits=logits, rows=R, distinct=counts[layer : layer + 1])
    moe_gate_up(tape, gate_up, plan, x=x, out=hidden, rows=R, distinct=counts[layer : layer + 1])
    moe_down(tape, down, plan, x=hidden, out=y, rows=R, distinct=counts[layer : layer + 1])
    moe_combine(tape, plan, y=y, shared=shared, shared_gate=gate, out=out, rows=R)

The (row, slot) pairs of a pass are sorted by expert, rows ascending inside an expert; their places in that
order are the rows of `hidden` and `y`, so an expert's rows lie together and a distinct expert is read once. The
bits of an expert's product are those of `linear` with its weight, whatever else is in the pass.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.blocking import DEFAULT, Blocking
from kernels.cpu.buffers import require, require_rows
from kernels.cpu.product import (
    PRIVATE_ROWS,
    LinearArgs,
    activation_bytes,
    linear_args,
    pack_step,
)
from kernels.moe.pack import PackedExperts, pack_experts
from kernels.moe.plan import MoePlan, expected_distinct
from kernels.tape import StepModel, Tape

__all__ = [
    "MoePlan",
    "PackedExperts",
    "expected_distinct",
    "moe_combine",
    "moe_down",
    "moe_gate_up",
    "moe_route",
    "pack_experts",
]


class _RouteArgs(ctypes.Structure):
    _fields_ = [
        ("logits", ctypes.c_void_p),
        ("chosen", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("distinct", ctypes.c_void_p),
        ("distinct_of", ctypes.c_void_p),
        ("listed", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("row_of", ctypes.c_void_p),
        ("place", ctypes.c_void_p),
        ("place_weight", ctypes.c_void_p),
        ("logits_stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("experts", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("logits_bf16", ctypes.c_int32),
    ]


class _GatherArgs(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("row_of", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("places", ctypes.c_int32),
        ("width", ctypes.c_int32),
    ]


class _EachArgs(ctypes.Structure):
    _fields_ = [
        ("linear", LinearArgs),
        ("call", ctypes.c_void_p),
        ("distinct", ctypes.c_void_p),
        ("listed", ctypes.c_void_p),
        ("first", ctypes.c_void_p),
        ("row_of", ctypes.c_void_p),
        ("weight_step", ctypes.c_int64),
        ("scale_step", ctypes.c_int64),
        ("row_scale_step", ctypes.c_int64),
        ("packed_step", ctypes.c_int64),
        ("gather_bytes", ctypes.c_int64),
        ("repacks", ctypes.c_int64),
    ]


class _CombineArgs(ctypes.Structure):
    _fields_ = [
        ("y", ctypes.c_void_p),
        ("place", ctypes.c_void_p),
        ("place_weight", ctypes.c_void_p),
        ("shared", ctypes.c_void_p),
        ("shared_gate", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("y_stride", ctypes.c_int64),
        ("shared_stride", ctypes.c_int64),
        ("gate_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("top_k", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    ]


def moe_route(
    tape: Tape,
    plan: MoePlan,
    *,
    logits: Tensor,
    rows: int,
    distinct: Tensor | None = None,
    name: str = "moe_route",
) -> None:
    """Record the choice of experts and the order of their rows.

    Softmax over all experts in float32, the k largest logits (of equals the lower expert), their shares
    divided by the sum of these and rounded to bf16. A row with a NaN or without a finite softmax gets the
    experts 0..k-1 with NaN weights.

    Args:
        logits: float32 or bf16 [>= rows, E], unit column stride.
        distinct: int32 [1] that also receives the number of distinct experts of each pass, such as a
            layer's own element of a counter tensor.

    Raises:
        ValueError: an operand or a count does not fit.
    """
    _check_rows(plan, rows)
    if logits.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"logits must be torch.float32 or torch.bfloat16, got {logits.dtype}")
    address, stride = require_rows("logits", logits, logits.dtype, rows, plan.experts)
    args = _RouteArgs(
        logits=address,
        chosen=plan.chosen.data_ptr(),
        weights=plan.weights.data_ptr(),
        distinct=plan.distinct.data_ptr(),
        distinct_of=None if distinct is None else require("distinct", distinct, torch.int32, (1,)),
        listed=plan.listed.data_ptr(),
        first=plan.first.data_ptr(),
        row_of=plan.row_of.data_ptr(),
        place=plan.place.data_ptr(),
        place_weight=plan.place_weight.data_ptr(),
        logits_stride=stride,
        rows=rows,
        experts=plan.experts,
        top_k=plan.top_k,
        logits_bf16=int(logits.dtype == torch.bfloat16),
    )
    tape.append(
        StepModel(
            name,
            bytes_read=rows * plan.experts * logits.element_size(),
            flops=4 * rows * plan.experts,
        ),
        "rondo_moe_route",
        args,
        (plan, logits, distinct),
        serial=True,
    )


def moe_gate_up(
    tape: Tape,
    packed: PackedExperts,
    plan: MoePlan,
    *,
    x: Tensor,
    out: Tensor,
    rows: int,
    distinct: Tensor | None = None,
    name: str = "moe_gate_up",
    blocking: Blocking = DEFAULT,
) -> None:
    """Record out[place] = round(round(silu(gate)) * up) of the place's expert and its row of x.

    Args:
        packed: gate and up of every expert, interleaved (or any weight: then out[place] = W x[row]).
        x: bf16 [>= rows, K], on 4 bytes, even row stride.
        out: bf16 [>= rows * k, outputs of an expert], such as `plan.buffer(I)`.
        distinct: the counter of `moe_route`, for the step's model to count the experts that a run read; without
            it the model has the mean of random choices.

    Raises:
        ValueError: an operand or a count does not fit.
    """
    _check_rows(plan, rows)
    operand = require_rows("x", x, torch.bfloat16, rows, packed.shape.k, alignment=4)
    _each(tape, packed, plan, x, operand, out, rows, distinct, name, blocking, gather=True)


def moe_down(
    tape: Tape,
    packed: PackedExperts,
    plan: MoePlan,
    *,
    x: Tensor,
    out: Tensor,
    rows: int,
    distinct: Tensor | None = None,
    name: str = "moe_down",
    blocking: Blocking = DEFAULT,
) -> None:
    """Record out[place] = round(W x[place]) with the weight of the place's expert.

    Args:
        x: bf16 [>= rows * k, K], what `moe_gate_up` left, on 4 bytes, even row stride.
        out: bf16 [>= rows * k, outputs of an expert], such as `plan.buffer(H)`.
        distinct: as for `moe_gate_up`.

    Raises:
        ValueError: an operand or a count does not fit.
    """
    _check_rows(plan, rows)
    places = rows * plan.top_k
    operand = require_rows("x", x, torch.bfloat16, places, packed.shape.k, alignment=4)
    _each(tape, packed, plan, x, operand, out, rows, distinct, name, blocking, gather=False)


def moe_combine(
    tape: Tape,
    plan: MoePlan,
    *,
    y: Tensor,
    out: Tensor,
    rows: int,
    shared: Tensor | None = None,
    shared_gate: Tensor | None = None,
    name: str = "moe_combine",
) -> None:
    """Record out[row] = the weighted sum of its experts' outputs, ascending experts, plus the shared expert's.

    Every step rounds to bf16: weight * y, each sum from zero on, sigmoid(shared_gate), its product with the
    shared expert's output, and the last sum.

    Args:
        y: bf16 [>= rows * k, H] by place, what `moe_down` left.
        shared: bf16 [>= rows, H], the shared expert's output; None for a layer without one.
        shared_gate: bf16 [>= rows, 1] before its sigmoid; None takes the shared expert as it is.
        out: bf16 [>= rows, H]; may be `shared`.

    Raises:
        ValueError: an operand or a count does not fit, or there is a gate without a shared expert.
    """
    _check_rows(plan, rows)
    width = out.shape[1]
    if shared is None and shared_gate is not None:
        raise ValueError("shared_gate needs the output of the shared expert")
    y_at, y_stride = require_rows("y", y, torch.bfloat16, rows * plan.top_k, width)
    out_at, out_stride = require_rows("out", out, torch.bfloat16, rows, width)
    args = _CombineArgs(
        y=y_at,
        place=plan.place.data_ptr(),
        place_weight=plan.place_weight.data_ptr(),
        out=out_at,
        y_stride=y_stride,
        out_stride=out_stride,
        rows=rows,
        width=width,
        top_k=plan.top_k,
    )
    if shared is not None:
        args.shared, args.shared_stride = require_rows(
            "shared", shared, torch.bfloat16, rows, width
        )
    if shared_gate is not None:
        args.shared_gate, args.gate_stride = require_rows(
            "shared_gate", shared_gate, torch.bfloat16, rows, 1
        )
    tape.append(
        StepModel(
            name,
            bytes_read=2 * rows * width * (plan.top_k + (shared is not None)),
            flops=2 * rows * width * (plan.top_k + (shared is not None)),
        ),
        "rondo_moe_combine",
        args,
        (plan, y, shared, shared_gate, out),
    )


def _each(
    tape: Tape,
    packed: PackedExperts,
    plan: MoePlan,
    x: Tensor,
    operand: tuple[int, int],
    out: Tensor,
    rows: int,
    distinct: Tensor | None,
    name: str,
    blocking: Blocking,
    *,
    gather: bool,
) -> None:
    """The products of all distinct experts; with `gather` the rows of x are those of the pass, else places."""
    shape, pool = packed.shape, tape.pool
    if packed.experts != plan.experts:
        raise ValueError(
            f"the plan is for {plan.experts} experts, the weights have {packed.experts}"
        )
    places = rows * plan.top_k
    if (rows if gather else places) > 1 and operand[1] % 2:
        raise ValueError(f"x must have an even row stride, got {operand[1]}")
    target = require_rows("out", out, torch.bfloat16, places, packed.outputs)
    row_bytes = shape.k_padded * activation_bytes(pool)
    base = linear_args(
        shape, x=operand, out=target, rows=0, columns=packed.outputs, out_fp32=False, blocking=blocking
    )  # fmt: skip
    args = _EachArgs(
        linear=base,
        call=pool.library.operation(shape.entry)[0],
        distinct=plan.distinct.data_ptr(),
        listed=plan.listed.data_ptr(),
        first=plan.first.data_ptr(),
        weight_step=packed.weight.stride(0),
        scale_step=0 if packed.scale is None else packed.scale[0].nbytes,
        row_scale_step=0 if packed.row_scale is None else packed.row_scale.stride(0),
        packed_step=row_bytes,
    )
    keep = (packed, plan, x, out)
    if rows <= PRIVATE_ROWS:
        # A row goes to an expert once at most.
        args.gather_bytes = -(-rows * shape.k * 2 // 64) * 64 if gather else 0
        args.row_of = plan.row_of.data_ptr() if gather else None
        scratch = pool.scratch(args.gather_bytes + rows * row_bytes)
        args.linear.scratch, args.linear.scratch_stride = scratch
    else:
        # Both parts outlast the step after the one that wrote them: nothing else comes between.
        gathered = -(-places * shape.k * 2 // 64) * 64 if gather else 0
        memory = pool.shared(gathered + places * row_bytes)
        args.linear.packed = memory + gathered
        if gather:
            _gather(tape, plan, x, operand, memory, shape.k, places, name)
            args.linear.x, args.linear.x_stride = memory, shape.k
        packing = _EachArgs.from_buffer_copy(args)
        packing.repacks = 1
        packing.call = pool.library.operation(pack_step(shape, pool))[0]
        tape.append(
            StepModel(f"{name}.pack", bytes_read=2 * places * shape.k),
            "rondo_moe_each",
            packing,
            keep,
        )
    if distinct is not None:
        require("distinct", distinct, torch.int32, (1,))
    mean = 0 if distinct is not None else expected_distinct(rows, plan.experts, plan.top_k)
    tape.append(
        StepModel(
            name,
            bytes_read=int(mean * packed.expert_bytes) + 2 * places * shape.k,
            flops=2 * places * shape.k * packed.outputs * (1 + shape.interleaved),
            counter=distinct,
            counter_bytes=0 if distinct is None else packed.expert_bytes,
        ),
        "rondo_moe_each",
        args,
        keep,
    )


def _gather(
    tape: Tape,
    plan: MoePlan,
    x: Tensor,
    operand: tuple[int, int],
    memory: int,
    width: int,
    places: int,
    name: str,
) -> None:
    """Copy the row of every place to `memory`."""
    args = _GatherArgs(operand[0], memory, plan.row_of.data_ptr(), operand[1], places, width)
    tape.append(
        StepModel(f"{name}.gather", bytes_read=2 * places * width),
        "rondo_moe_gather",
        args,
        (plan, x),
    )


def _check_rows(plan: MoePlan, rows: int) -> None:
    if not 1 <= rows <= plan.rows:
        raise ValueError(f"rows must lie in 1..{plan.rows}, got {rows}")
