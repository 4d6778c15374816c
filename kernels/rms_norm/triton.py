# SPDX-License-Identifier: MIT OR Apache-2.0
"""RMS norms on a GPU, one program a row, with the rounding points of the twin.

`rms_norm(x, weight, out, ...)`, `add_rms_norm(residual, x, weight, out, ...)` (the residual stream is updated
in place) and `gated_rms_norm(o, z, weight, out, ...)`; twins of the same names in reference.py. A row's bits
depend on the row and the weight alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import silu, to_bf16
from kernels.triton_operands import power_of_two, require, require_device, require_rows

MAX_WIDTH = 16384


@triton.jit
def _scaled(wide, inside, weight, column, eps, N: tl.constexpr, PLUS_ONE: tl.constexpr):
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / N + eps)
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if PLUS_ONE:
        scale = scale + 1.0
    return wide * inverse * scale


@triton.jit
def _rms_norm(
    x, weight, out, x_stride, out_stride, eps,
    N: tl.constexpr, BLOCK: tl.constexpr, PLUS_ONE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < N
    wide = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    y = _scaled(wide, inside, weight, column, eps, N, PLUS_ONE)
    tl.store(out + row * out_stride + column, to_bf16(y), mask=inside)


@triton.jit
def _add_rms_norm(
    residual, x, weight, out, residual_stride, x_stride, out_stride, eps,
    N: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < N
    at = residual + row * residual_stride + column
    left = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(x + row * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    total = to_bf16(left + right)
    tl.store(at, total, mask=inside)
    y = _scaled(total.to(tl.float32), inside, weight, column, eps, N, True)
    tl.store(out + row * out_stride + column, to_bf16(y), mask=inside)


@triton.jit
def _gated_rms_norm(
    o, z, weight, out, o_stride, z_stride, out_stride, eps, N: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < N
    at = tl.program_id(1) * N + column
    wide = tl.load(o + row * o_stride + at, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(z + row * z_stride + at, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    factor = to_bf16(factor).to(tl.float32)
    normed = to_bf16(wide * tl.rsqrt(tl.sum(wide * wide, 0) / N + eps))
    weighted = to_bf16(factor * normed.to(tl.float32))
    y = weighted.to(tl.float32) * silu(gate)
    tl.store(out + row * out_stride + at, to_bf16(y), mask=inside)


def _warps(width: int) -> int:
    return 8 if width >= 4096 else 4 if width >= 512 else 1


_ROWS = {"x": "*bf16", "weight": "*bf16", "out": "*bf16", "eps": "fp32"}
_STRIDES = {"x_stride": "i32:16", "out_stride": "i32:16"}
GATE = Compiled(
    "rms_norm/triton.py",
    Variant(
        "rms_norm_5120",
        _rms_norm,
        _ROWS | _STRIDES,
        {"N": 5120, "BLOCK": 8192, "PLUS_ONE": True},
        warps=_warps(5120),
    ),
    Variant(
        "add_rms_norm_5120",
        _add_rms_norm,
        _ROWS | _STRIDES | {"residual": "*bf16", "residual_stride": "i32:16"},
        {"N": 5120, "BLOCK": 8192},
        warps=_warps(5120),
    ),
    Variant(
        "gated_rms_norm_128",
        _gated_rms_norm,
        {"o": "*bf16", "z": "*bf16", "weight": "*bf16", "out": "*bf16", "eps": "fp32"}
        | {"o_stride": "i32:16", "z_stride": "i32:16", "out_stride": "i32:16"},
        {"N": 128, "BLOCK": 128},
        warps=_warps(128),
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def rms_norm(
    x: Tensor, weight: Tensor, out: Tensor, *, eps: float, rows: int, zero_centred: bool = True
) -> None:
    """out = round(x * rsqrt(mean(x^2) + eps) * (1 + weight)), one rounding.

    Args:
        x, out: bf16 [>= rows, N], unit column strides, rows a multiple of 16 elements apart.
        weight: bf16 or float32 [N]; multiplies as it is when not `zero_centred`.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    width = _require_weight(weight)
    strides = [require_rows(n, t, torch.bfloat16, rows, width) for n, t in (("x", x), ("out", out))]
    require_device(x=x, weight=weight, out=out)
    block = power_of_two(width)
    _rms_norm[(rows,)](
        x, weight, out, *strides, eps, width, block, zero_centred, **launch_options(_warps(width))
    )  # fmt: skip


def add_rms_norm(
    residual: Tensor, x: Tensor, weight: Tensor, out: Tensor, *, eps: float, rows: int
) -> None:
    """residual = round(residual + x); out = the zero-centred norm of the rounded sum.

    Args:
        residual, x, out: bf16 [>= rows, N], unit column strides, rows a multiple of 16 elements apart.
        weight: bf16 or float32 [N].

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    width = _require_weight(weight)
    wanted = (("residual", residual), ("x", x), ("out", out))
    strides = [require_rows(name, t, torch.bfloat16, rows, width) for name, t in wanted]
    require_device(residual=residual, x=x, weight=weight, out=out)
    block = power_of_two(width)
    _add_rms_norm[(rows,)](
        residual, x, weight, out, *strides, eps, width, block, **launch_options(_warps(width))
    )


def gated_rms_norm(
    o: Tensor, z: Tensor, weight: Tensor, out: Tensor, *, eps: float, rows: int
) -> None:
    """out = round(round(w * round(o * rsqrt(mean(o^2) + eps))) * silu(z)), a norm per head of N.

    Args:
        o, z, out: bf16 [>= rows, heads * N], unit column strides; `out` may be `o`.
        weight: bf16 or float32 [N], rounded to bf16 first, not zero-centred.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    dim = _require_weight(weight)
    width = o.shape[-1]
    if width % dim:
        raise ValueError(f"o has {width} columns, which is no multiple of the norm's {dim}")
    wanted = (("o", o), ("z", z), ("out", out))
    strides = [require_rows(name, t, torch.bfloat16, rows, width) for name, t in wanted]
    require_device(o=o, z=z, weight=weight, out=out)
    grid = (rows, width // dim)
    _gated_rms_norm[grid](
        o, z, weight, out, *strides, eps, dim, power_of_two(dim), **launch_options(_warps(dim))
    )


def _require_weight(weight: Tensor) -> int:
    dtype = torch.float32 if weight.dtype == torch.float32 else torch.bfloat16
    (width,) = require("weight", weight, dtype, (None,)).shape
    if not 1 <= width <= MAX_WIDTH:
        raise ValueError(f"a norm takes 1 to {MAX_WIDTH} columns, got {width}")
    return width
