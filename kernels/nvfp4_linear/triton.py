# SPDX-License-Identifier: MIT OR Apache-2.0
"""The NVFP4 product on a GPU for prompt chunks, 33 to about 1,024 rows: `linear_chunk(weight, x, out, ...)`.

A tile of weights is decoded in registers, code times group scale, which BF16 holds exactly, and goes through
the tensor cores; scale_2 multiplies the finished sum. A step is 128 inputs wide. The weights are read in their
stored form, as the skinny kernel reads them; twin `reference.linear`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.nvfp4_linear.cuda import DeviceNvfp4
from kernels.nvfp4_linear.tiles import STEP
from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import dot_bf16, e2m1_value, e4m3_value, to_bf16
from kernels.triton_operands import require_device, require_rows

MAX_ROWS = 65536


@triton.jit(do_not_specialize=["rows"])
def _nvfp4_linear(
    x, codes, scales, scale_2, out, x_stride, out_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    output = tl.program_id(0) * BN + tl.arange(0, BN)
    half: tl.constexpr = BK // 2
    groups: tl.constexpr = BK // 16
    i = tl.arange(0, BK)
    at_x = x + row[:, None].to(tl.int64) * x_stride + i[None, :]
    at_code = codes + output[:, None].to(tl.int64) * (K // 2) + tl.arange(0, half)[None, :]
    at_scale = scales + output[:, None].to(tl.int64) * (K // 16) + tl.arange(0, groups)[None, :]
    there = (output < N)[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, K // BK):
        left = tl.load(at_x + step * BK, mask=(row < rows)[:, None], other=0.0)
        pair = tl.load(at_code + step * half, mask=there, other=0).to(tl.int32)
        group = tl.load(at_scale + step * groups, mask=there, other=0).to(tl.int32)
        value = tl.join(e2m1_value(pair & 15), e2m1_value(pair >> 4))
        value = tl.reshape(value, (BN, groups, 16)) * e4m3_value(group & 127)[:, :, None]
        right = tl.trans(to_bf16(tl.reshape(value, (BN, BK))))
        total += dot_bf16(left, right)
    total = total * tl.load(scale_2 + output, mask=output < N, other=0.0)[None, :]
    place = out + row[:, None].to(tl.int64) * out_stride + output[None, :]
    tl.store(place, to_bf16(total), mask=(row < rows)[:, None] & (output < N)[None, :])


def _shape_of(rows: int) -> tuple[int, int, int, int]:
    """Rows and outputs of a program, warps and stages."""
    if rows <= 32:
        return (16 if rows <= 16 else 32), 64, 4, 2
    return (64, 64, 4, 2) if rows <= 64 else (128, 32, 8, 2)


def _variant(rows: int) -> Variant:
    block, outputs, warps, stages = _shape_of(rows)
    return Variant(
        f"nvfp4_chunk_17408x5120_r{block}",
        _nvfp4_linear,
        {"x": "*bf16", "codes": "*u8", "scales": "*u8", "scale_2": "*fp32", "out": "*bf16"}
        | {"x_stride": "i32:16", "out_stride": "i32:16", "rows": "i32"},
        {"N": 17408, "K": 5120, "BM": block, "BN": outputs, "BK": STEP},
        warps,
        stages,
    )


GATE = Compiled("nvfp4_linear/triton.py", _variant(64), _variant(128))
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def linear_chunk(weight: DeviceNvfp4, x: Tensor, out: Tensor, *, rows: int) -> None:
    """out[r, n] = bf16(scale_2[n] * sum over k of x[r, k] w[n, k]).

    Meant for 33 rows and more, where the skinny kernel would read the weights several times; takes any number.

    Args:
        weight: of `place_nvfp4`, K a multiple of 128.
        x: bf16 [>= rows, K]; out: bf16 [>= rows, N]; unit column strides.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"the NVFP4 product takes 1 to {MAX_ROWS} rows, got {rows}")
    outputs, inputs = weight.outputs, weight.inputs
    if inputs % STEP:
        raise ValueError(f"the NVFP4 product needs inputs in multiples of {STEP}, got {inputs}")
    strides = (
        require_rows("x", x, torch.bfloat16, rows, inputs),
        require_rows("out", out, torch.bfloat16, rows, outputs),
    )
    require_device(x=x, out=out, weight=weight.codes)
    block, columns, warps, stages = _shape_of(rows)
    grid = (triton.cdiv(outputs, columns), triton.cdiv(rows, block))
    _nvfp4_linear[grid](
        x, weight.codes, weight.scales.view(torch.uint8), weight.scale_2, out, *strides, rows,
        outputs, inputs, block, columns, STEP, **launch_options(warps, stages),
    )  # fmt: skip
