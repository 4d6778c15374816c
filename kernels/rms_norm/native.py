# SPDX-License-Identifier: MIT OR Apache-2.0
"""Native RMS norm with the residual sum in front."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_copy, require, require_rows
from kernels.tape import StepModel, Tape

_LANES = 16


class _Args(ctypes.Structure):
    _fields_ = [
        ("x", ctypes.c_void_p),
        ("residual", ctypes.c_void_p),
        ("total", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("x_stride", ctypes.c_int64),
        ("residual_stride", ctypes.c_int64),
        ("total_stride", ctypes.c_int64),
        ("out_stride", ctypes.c_int64),
        ("eps", ctypes.c_float),
        ("rows", ctypes.c_int32),
        ("width", ctypes.c_int32),
    ]


def norm_scale(weight: Tensor, *, zero_centred: bool = True) -> Tensor:
    """The factor on a normalised value, float32 [N]: 1 + w, or w when not zero-centred."""
    wide = weight.detach().float()
    return aligned_copy(wide + 1.0 if zero_centred else wide)


def rms_norm(
    tape: Tape,
    *,
    x: Tensor,
    scale: Tensor,
    out: Tensor,
    eps: float,
    rows: int,
    residual: Tensor | None = None,
    total: Tensor | None = None,
    name: str = "rms_norm",
) -> None:
    """out = round(s * rsqrt(mean(s^2) + eps) * scale) with s = x, or round(residual + x).

    Args:
        x, out, residual, total: bf16 [>= rows, N], unit column stride, N a multiple of 16.
        scale: float32 [N] from `norm_scale`.
        residual: the stream x is added to; None takes the norm of x itself.
        total: receives the rounded sum, may be `residual`; required with it.

    Raises:
        ValueError: an operand differs from the above.
    """
    width = x.shape[1]
    if width % _LANES:
        raise ValueError(f"the width must be a multiple of {_LANES}, got {width}")
    if (residual is None) != (total is None):
        raise ValueError("residual and total come together")
    x_at, x_stride = require_rows("x", x, torch.bfloat16, rows, width)
    out_at, out_stride = require_rows("out", out, torch.bfloat16, rows, width)
    residual_at = total_at = residual_stride = total_stride = 0
    if residual is not None and total is not None:
        residual_at, residual_stride = require_rows(
            "residual", residual, torch.bfloat16, rows, width
        )
        total_at, total_stride = require_rows("total", total, torch.bfloat16, rows, width)
    args = _Args(
        x_at,
        residual_at,
        total_at,
        require("scale", scale, torch.float32, (width,)),
        out_at,
        x_stride,
        residual_stride,
        total_stride,
        out_stride,
        eps,
        rows,
        width,
    )
    streams = 1 if residual is None else 2
    tape.append(
        StepModel(
            name,
            bytes_read=2 * streams * rows * width + 4 * width,
            flops=(3 + streams) * rows * width,
        ),
        "rondo_rms_norm",
        args,
        (x, scale, out, residual, total),
    )
