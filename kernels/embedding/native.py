# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native token embedding."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.buffers import require, require_rows
from kernels.tape import StepModel, Tape


class _Args(ctypes.Structure):
    _fields_ = [
        ("table", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("out_stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("vocabulary", ctypes.c_int32),
        ("width", ctypes.c_int32),
    ]


def embed(tape: Tape, *, table: Tensor, ids: Tensor, out: Tensor, rows: int) -> None:
    """out[r] = table[ids[r]], with the ids read when the tape runs.

    An id outside the table gives a row of NaN, which the argmax of the round reports.

    Args:
        table: bf16 [V, N].
        ids: int32 [>= rows].
        out: bf16 [>= rows, N], unit column stride.

    Raises:
        ValueError: an operand differs from the above.
    """
    vocabulary, width = table.shape
    out_at, out_stride = require_rows("out", out, torch.bfloat16, rows, width)
    if ids.numel() < rows:
        raise ValueError(f"ids must hold at least {rows} values, got {ids.numel()}")
    args = _Args(
        require("table", table, torch.bfloat16, (None, None)),
        require("ids", ids, torch.int32, (None,)),
        out_at,
        out_stride,
        rows,
        vocabulary,
        width,
    )
    tape.append(
        StepModel("embedding", bytes_read=2 * rows * width),
        "rondo_embedding",
        args,
        (table, ids, out),
    )
