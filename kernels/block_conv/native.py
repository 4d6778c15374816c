# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native grouped dynamic convolution of a draft block."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.buffers import require, require_rows
from kernels.tape import StepModel, Tape

TAPS = 2
_LANES = 16


class _Args(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_void_p),
        ("dynamic", ctypes.c_void_p),
        ("base", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("dynamic_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("width", ctypes.c_int32),
        ("group", ctypes.c_int32),
    ]


def block_conv(
    tape: Tape, *, x: Tensor, base: Tensor, dynamic: Tensor, out: Tensor, rows: int
) -> None:
    """out[t, c] = round(sum over two taps o of (base[o, c] + dynamic[t, o, group of c]) * x[t - o, c]).

    Args:
        x, out: bf16 [>= rows, C], unit column stride, C a multiple of 16; different memory.
        base: float32 [2, C].
        dynamic: bf16 [>= rows, 2 * groups], unit column stride, tap 0 first; groups divide C.

    Raises:
        ValueError: an operand differs from the above.
    """
    width, columns = x.shape[1], dynamic.shape[1]
    groups = columns // TAPS
    if width % _LANES or columns % TAPS or not groups or width % groups:
        raise ValueError(f"{width} channels and {columns} dynamic columns do not fit")
    x_at, x_stride = require_rows("x", x, torch.bfloat16, rows, width)
    dynamic_at, dynamic_stride = require_rows("dynamic", dynamic, torch.bfloat16, rows, columns)
    out_at, out_stride = require_rows("out", out, torch.bfloat16, rows, width)
    if out_at == x_at:
        raise ValueError("out must be another buffer than x")
    tape.append(
        StepModel(
            "block_conv",
            bytes_read=2 * rows * (width + columns) + 8 * width,
            flops=6 * rows * width,
        ),
        "rondo_block_conv",
        _Args(
            x_at,
            dynamic_at,
            require("base", base, torch.float32, (TAPS, width)),
            out_at,
            x_stride,
            dynamic_stride,
            out_stride,
            rows,
            width,
            width // groups,
        ),
        (x, base, dynamic, out),
    )
