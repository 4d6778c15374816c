# SPDX-License-Identifier: MIT OR Apache-2.0
"""The BF16 product on a GPU in one fixed order: `linear(x, weight, out, rows)`; twin `reference.linear`.

For 1 to 32 rows, where the library picks an algorithm by the number of rows: here a row's sum runs over K in
steps of 128, whatever stands beside it. Above that `torch.nn.functional.linear` is the better kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import dot_bf16, to_bf16
from kernels.triton_operands import require, require_device, require_rows

STEP = 128
MAX_ROWS = 32
_WARPS, _STAGES = 4, 3


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x, weight, out, x_stride, out_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    FLOAT: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BM)
    output = tl.program_id(0) * BN + tl.arange(0, BN)
    i = tl.arange(0, BK)
    at_x = x + row[:, None] * x_stride + i[None, :]
    at_w = weight + output[None, :].to(tl.int64) * K + i[:, None]
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        inside = k + i < K
        left = tl.load(at_x + k, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        right = tl.load(at_w + k, mask=(output < N)[None, :] & inside[:, None], other=0.0)
        total += dot_bf16(left, right)
    place = out + row[:, None] * out_stride + output[None, :]
    kept = (row < rows)[:, None] & (output < N)[None, :]
    if FLOAT:
        tl.store(place, total, mask=kept)
    else:
        tl.store(place, to_bf16(total), mask=kept)


def _outputs_at_once(outputs: int) -> int:
    return 64 if outputs >= 4096 else 32 if outputs >= 1024 else 16


def _variant(entry: str, outputs: int, inputs: int, block: int, floats: bool) -> Variant:
    return Variant(
        entry,
        _linear,
        {"x": "*bf16", "weight": "*bf16", "out": "*fp32" if floats else "*bf16"}
        | {"x_stride": "i32:16", "out_stride": "i32:16", "rows": "i32"},
        {"N": outputs, "K": inputs, "BM": block, "BN": _outputs_at_once(outputs), "BK": STEP}
        | {"FLOAT": floats},
        _WARPS,
        _STAGES,
    )


GATE = Compiled(
    "bf16_linear/triton.py",
    _variant("bf16_linear_96x5120_r16", 96, 5120, 16, False),
    _variant("bf16_linear_96x5120_r32", 96, 5120, 32, False),
    _variant("bf16_head_248320x5120_r32", 248320, 5120, 32, True),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def linear(x: Tensor, weight: Tensor, out: Tensor, *, rows: int) -> None:
    """out[r, n] = sum over k of x[r, k] weight[n, k], float32 sums, rounded once (not at all into float32).

    A row's bits depend on its own inputs and the weight alone.

    Args:
        x: bf16 [>= rows, K], K a multiple of 16; out: bf16 or float32 [>= rows, N]; unit column strides.
        weight: bf16 [N, K], contiguous.
        rows: 1 to 32.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    outputs, inputs = require("weight", weight, torch.bfloat16, (None, None)).shape
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"the fixed-order product takes 1 to {MAX_ROWS} rows, got {rows}")
    if inputs % 16:
        raise ValueError(f"the product needs inputs in multiples of 16, got {inputs}")
    floats = out.dtype == torch.float32
    strides = (
        require_rows("x", x, torch.bfloat16, rows, inputs),
        require_rows("out", out, torch.float32 if floats else torch.bfloat16, rows, outputs),
    )
    require_device(x=x, weight=weight, out=out)
    block = _outputs_at_once(outputs)
    _linear[(triton.cdiv(outputs, block),)](
        x, weight, out, *strides, rows, outputs, inputs, 16 if rows <= 16 else 32, block, STEP, floats,
        **launch_options(_WARPS, _STAGES),
    )  # fmt: skip
