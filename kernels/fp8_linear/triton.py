# SPDX-License-Identifier: MIT OR Apache-2.0
"""The FP8 product on a GPU: `linear_blocks(x, weight, out, ...)` and `linear_rows(...)`; twins in reference.py.

A step is 128 inputs wide. With scales per 128 x 128 block it covers one scale, which multiplies the step's
float32 sum; a scale per output multiplies the finished sum. The weights enter the matrix instruction as they
are, in BF16, which holds every e4m3 value. Rows 1 to 32 share one order of the sum; above, tiles are larger.
GPUs before sm_89 convert no e4m3: there the bits of a float are made from the byte, with the same values.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.fp8_linear.tiles import DEFAULT, Fp8Tile
from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import dot_bf16, to_bf16
from kernels.triton_operands import require, require_device, require_rows

STEP = 128
MAX_ROWS = 65536
_CONVERTS = (8, 9)  # the first compute capability whose hardware converts e4m3
_TWO_TO_120 = tl.constexpr(2.0**120)


@triton.jit
def _bf16_of_e4m3(codes, BYTES: tl.constexpr):
    # Exact: bf16 has more bits of both kinds. A byte laid over the low exponent bits of a float is 2^-120 times
    # its value, subnormals included.
    if BYTES:
        byte = codes.to(tl.int32)
        laid = ((byte & 127) << 20) | ((byte >> 7) << 31)
        value = laid.to(tl.float32, bitcast=True) * _TWO_TO_120
        value = tl.where((byte & 127) == 127, float("nan"), value)
    else:
        value = codes.to(tl.float32)
    return to_bf16(value)


@triton.jit(do_not_specialize=["rows"])
def _fp8_linear(
    x, codes, scale, out, x_stride, out_stride, rows,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    BLOCKS: tl.constexpr, FLOAT: tl.constexpr, BYTES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    output = tl.program_id(0) * BN + tl.arange(0, BN)
    i = tl.arange(0, BK)
    at_x = x + row[:, None].to(tl.int64) * x_stride + i[None, :]
    at_w = codes + output[None, :].to(tl.int64) * K + i[:, None]
    steps: tl.constexpr = (K + BK - 1) // BK
    total = tl.zeros((BM, BN), tl.float32)
    for step in range(0, steps):
        inside = step * BK + i < K
        left = tl.load(at_x + step * BK, mask=(row < rows)[:, None] & inside[None, :], other=0.0)
        right = tl.load(at_w + step * BK, mask=(output < N)[None, :] & inside[:, None], other=0.0)
        part = dot_bf16(left, _bf16_of_e4m3(right, BYTES))
        if BLOCKS:
            # BN divides 128: all outputs of a program share a block.
            factor = tl.load(scale + (tl.program_id(0) * BN // BK) * steps + step).to(tl.float32)
            # Said outright, so that tiles of 16 and of 32 rows leave the same bits.
            total = tl.fma(part, tl.broadcast_to(factor, part.shape), total)
        else:
            total += part
    if not BLOCKS:
        total = total * tl.load(scale + output, mask=output < N, other=0.0)[None, :]
    place = out + row[:, None].to(tl.int64) * out_stride + output[None, :]
    kept = (row < rows)[:, None] & (output < N)[None, :]
    if FLOAT:
        tl.store(place, total, mask=kept)
    else:
        tl.store(place, to_bf16(total), mask=kept)


def _rows_at_once(rows: int) -> int:
    return 16 if rows <= 16 else 32 if rows <= 32 else 64 if rows <= 64 else 128


def _variant(entry: str, block: int, *, blocks: bool, floats: bool = False) -> Variant:
    tile = DEFAULT if block <= 32 else _LARGE
    return Variant(
        entry,
        _fp8_linear,
        {"x": "*bf16", "codes": "*fp8e4nv", "scale": "*bf16" if blocks else "*fp32"}
        | {"out": "*fp32" if floats else "*bf16", "rows": "i32"}
        | {"x_stride": "i32:16", "out_stride": "i32:16"},
        {"N": 248320 if floats else 17408, "K": 5120, "BM": block, "BN": tile.bn, "BK": STEP}
        | {"BLOCKS": blocks, "FLOAT": floats, "BYTES": False},
        tile.warps,
        tile.stages,
    )


_LARGE = Fp8Tile(bn=64, warps=8, stages=2)
GATE = Compiled(
    "fp8_linear/triton.py",
    _variant("fp8_blocks_17408x5120_r16", 16, blocks=True),
    _variant("fp8_blocks_17408x5120_r32", 32, blocks=True),
    _variant("fp8_blocks_17408x5120_r128", 128, blocks=True),
    _variant("fp8_rows_248320x5120_r32", 32, blocks=False, floats=True),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def linear_blocks(
    x: Tensor, codes: Tensor, scale_inv: Tensor, out: Tensor, *, rows: int, tile: Fp8Tile = DEFAULT
) -> None:
    """out = round(sum over blocks of scale_inv[n / 128, k / 128] * (the block's part of x @ codes^T)).

    A row's bits do not depend on the other rows, up to 32 of them; above, on the size class of the rows.

    Args:
        x: bf16 [>= rows, K]; out: bf16 or float32 [>= rows, N]; unit column strides.
        codes: float8_e4m3fn [N, K], contiguous, K a multiple of 16; scale_inv: bf16 or float32 [N/128, K/128],
            the last blocks may be ragged.
        tile: of the shape's table, for up to 32 rows.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    outputs, inputs = codes.shape
    dtype = torch.float32 if scale_inv.dtype == torch.float32 else torch.bfloat16
    blocks = (triton.cdiv(outputs, STEP), triton.cdiv(inputs, STEP))
    require("scale_inv", scale_inv, dtype, blocks)
    _launch(x, codes, scale_inv, out, rows, tile, blocks=True)


def linear_rows(
    x: Tensor, codes: Tensor, scale: Tensor, out: Tensor, *, rows: int, tile: Fp8Tile = DEFAULT
) -> None:
    """out = round(scale[n] * (x @ codes^T)), the scale on the finished float32 sum.

    Args:
        scale: float32 [N]. The rest is as in `linear_blocks`.

    Raises:
        ValueError: an operand differs from that; nothing was launched.
    """
    require("scale", scale, torch.float32, (codes.shape[0],))
    _launch(x, codes, scale, out, rows, tile, blocks=False)


def _launch(
    x: Tensor, codes: Tensor, scale: Tensor, out: Tensor, rows: int, tile: Fp8Tile, *, blocks: bool
) -> None:
    outputs, inputs = require("codes", codes, torch.float8_e4m3fn, (None, None)).shape
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"the FP8 product takes 1 to {MAX_ROWS} rows, got {rows}")
    if inputs % 16:
        raise ValueError(f"the FP8 product needs inputs in multiples of 16, got {inputs}")
    if STEP % tile.bn:
        raise ValueError(f"the outputs of a program must divide {STEP}, got {tile.bn}")
    floats = out.dtype == torch.float32
    strides = (
        require_rows("x", x, torch.bfloat16, rows, inputs),
        require_rows("out", out, torch.float32 if floats else torch.bfloat16, rows, outputs),
    )
    require_device(x=x, codes=codes, scale=scale, out=out)
    tile = tile if rows <= 32 else _LARGE
    block = _rows_at_once(rows)
    as_bytes = _takes_bytes(codes.device)
    grid = (triton.cdiv(outputs, tile.bn), triton.cdiv(rows, block))
    _fp8_linear[grid](
        x, codes.view(torch.uint8) if as_bytes else codes, scale, out, *strides, rows,
        outputs, inputs, block, tile.bn, STEP, blocks, floats, as_bytes,
        **launch_options(tile.warps, tile.stages),
    )  # fmt: skip


@cache
def _takes_bytes(device: torch.device) -> bool:
    """Whether the kernel has to read codes as bytes: before sm_89 Triton refuses e4m3 numbers."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) < _CONVERTS
