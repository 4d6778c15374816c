# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native elementwise steps, a row kept for later, and activation statistics."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.buffers import require, require_rows
from kernels.tape import StepModel, Tape


class _BinaryArgs(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("y_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("width", ctypes.c_int32),
    ]


class _StatisticsArgs(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("width", ctypes.c_int32),
    ]


class _KeepRowArgs(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_void_p),
        ("kept", ctypes.c_void_p),
        ("slot", ctypes.c_void_p),
        ("slots", ctypes.c_int32),
        ("width", ctypes.c_int32),
    ]


def silu_mul(tape: Tape, *, gate: Tensor, up: Tensor, out: Tensor, rows: int) -> None:
    """out = round(round(silu(gate)) * up); all bf16 [>= rows, F] with unit column stride.

    Raises:
        ValueError: an operand differs from the above.
    """
    _binary(tape, "silu_mul", gate, up, out, rows)


def output_gate(tape: Tape, *, x: Tensor, gate: Tensor, out: Tensor, rows: int) -> None:
    """out = round(x * round(sigmoid(gate))); all bf16 [>= rows, F] with unit column stride.

    Raises:
        ValueError: an operand differs from the above.
    """
    _binary(tape, "output_gate", x, gate, out, rows)


def add(tape: Tape, *, x: Tensor, y: Tensor, out: Tensor, rows: int) -> None:
    """out = round(x + y); all bf16 [>= rows, F] with unit column stride; out may be x or y.

    Raises:
        ValueError: an operand differs from the above.
    """
    _binary(tape, "add", x, y, out, rows)


def keep_row(tape: Tape, *, x: Tensor, kept: Tensor, slot: Tensor) -> None:
    """kept[slot] = x[0], where there is such a slot.

    Args:
        x: bf16 [>= 1, N], unit column stride.
        kept: bf16 [slots, N], contiguous.
        slot: int32 [1], read when the step runs.

    Raises:
        ValueError: an operand differs from the above.
    """
    width = x.shape[1]
    x_at, _ = require_rows("x", x, torch.bfloat16, 1, width)
    args = _KeepRowArgs(
        x_at,
        require("kept", kept, torch.bfloat16, (None, width)),
        require("slot", slot, torch.int32, (1,)),
        kept.shape[0],
        width,
    )
    tape.append(
        StepModel("rows kept", bytes_read=2 * width),
        "rondo_keep_row",
        args,
        (x, kept, slot),
        serial=True,
    )


def statistics(tape: Tape, *, x: Tensor, out: Tensor, rows: int) -> None:
    """Per row: largest finite magnitude, mean square of the finite values, non-finite count.

    Args:
        x: bf16 [>= rows, N], unit column stride.
        out: float32 [>= rows, 3]; the mean is NaN when no value is finite.

    Raises:
        ValueError: an operand differs from the above.
    """
    width = x.shape[1]
    x_at, x_stride = require_rows("x", x, torch.bfloat16, rows, width)
    if out.shape[0] < rows:
        raise ValueError(f"out must hold at least {rows} rows, got {out.shape[0]}")
    args = _StatisticsArgs(
        x_at, require("out", out, torch.float32, (None, 3)), x_stride, rows, width
    )
    tape.append(
        StepModel("statistics", bytes_read=2 * rows * width, flops=4 * rows * width),
        "rondo_statistics",
        args,
        (x, out),
    )


def _binary(tape: Tape, name: str, x: Tensor, y: Tensor, out: Tensor, rows: int) -> None:
    width = x.shape[1]
    x_at, x_stride = require_rows("first operand", x, torch.bfloat16, rows, width)
    y_at, y_stride = require_rows("second operand", y, torch.bfloat16, rows, width)
    out_at, out_stride = require_rows("out", out, torch.bfloat16, rows, width)
    args = _BinaryArgs(x_at, y_at, out_at, x_stride, y_stride, out_stride, rows, width)
    tape.append(
        StepModel(name, bytes_read=4 * rows * width, flops=rows * width),
        f"rondo_{name}",
        args,
        (x, y, out),
    )
