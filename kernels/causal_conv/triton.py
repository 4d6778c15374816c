# SPDX-License-Identifier: MIT OR Apache-2.0
"""Causal convolution of width 4 with SiLU on a GPU, for a chain or a tree, and the tail that it leaves.

`causal_conv(x, weight, tail, out, rows, paths, depths)` and `shift_tail(tail, x, count, rows)`; twin
`reference.causal_conv`. The four-term sum and SiLU stay in float32, with one rounding, as in the native
kernels.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tree_paths.reference import MAX_NODES
from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import silu, to_bf16
from kernels.triton_operands import require, require_device, require_rows

TAIL = 3
_BLOCK = 256


@triton.jit(do_not_specialize=["is_tree"])
def _conv(
    x, weight, tail, out, paths, depths, x_stride, out_stride, is_tree,
    C: tl.constexpr, BLOCK: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < C
    depth = row
    if is_tree != 0:
        depth = tl.load(depths + row)
    total = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(4):
        level = depth - (3 - tap)
        node = level
        if is_tree != 0:
            node = tl.load(paths + row * NODES + tl.maximum(level, 0))
        inner = tl.load(
            x + node.to(tl.int64) * x_stride + column,
            mask=column < tl.where(level >= 0, C, 0),
            other=0.0,
        )
        outer = tl.load(
            tail + (3 + level) * C + column, mask=column < tl.where(level < 0, C, 0), other=0.0
        )
        value = tl.where(level < 0, outer, inner).to(tl.float32)
        total += value * tl.load(weight + column * 4 + tap, mask=inside, other=0.0).to(tl.float32)
    y = to_bf16(silu(total))
    tl.store(out + row.to(tl.int64) * out_stride + column, y, mask=inside)


@triton.jit
def _shift_tail(
    tail, x, count, rows, x_layer, x_stride,
    C: tl.constexpr, BLOCK: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    layer = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.arange(0, 4)
    inside = (slot < 3)[:, None] & (column < C)[None, :]
    level = tl.load(count) - 3 + slot
    node = level
    if not ALL:
        node = tl.load(rows + tl.maximum(level, 0), mask=slot < 3, other=0)
    new = (level >= 0)[:, None] & inside
    at = x + layer * x_layer + node.to(tl.int64)[:, None] * x_stride + column[None, :]
    old = tail + (layer * 3 + 3 + level)[:, None] * C + column[None, :]
    value = tl.where((level >= 0)[:, None], tl.load(at, mask=new, other=0.0),
                     tl.load(old, mask=(level < 0)[:, None] & inside, other=0.0))  # fmt: skip
    # The tail is read where it is written.
    tl.debug_barrier()
    tl.store(tail + (layer * 3 + slot)[:, None] * C + column[None, :], value, mask=inside)


GATE = Compiled(
    "causal_conv/triton.py",
    Variant(
        "causal_conv_10240",
        _conv,
        {"x": "*bf16", "weight": "*bf16", "tail": "*bf16", "out": "*bf16", "paths": "*i32"}
        | {"depths": "*i32", "x_stride": "i32:16", "out_stride": "i32:16", "is_tree": "i32"},
        {"C": 10240, "BLOCK": _BLOCK, "NODES": MAX_NODES},
        warps=4,
    ),
    Variant(
        "shift_tail_10240",
        _shift_tail,
        {"tail": "*bf16", "x": "*bf16", "count": "*i32", "rows": "*i32"}
        | {"x_layer": "i32:16", "x_stride": "i32:16"},
        {"C": 10240, "BLOCK": _BLOCK, "ALL": False},
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def causal_conv(
    x: Tensor,
    weight: Tensor,
    tail: Tensor,
    out: Tensor,
    *,
    rows: int,
    paths: Tensor | None = None,
    depths: Tensor | None = None,
) -> None:
    """out = round(silu(sum over taps)), every row after its own three ancestors.

    The tail is only read: `shift_tail` moves it once every row of the pass is known to stand.

    Args:
        x, out: bf16 [>= rows, C], raw projections and result, unit column strides, not the same memory.
        weight: bf16 [C, 4], tap 3 for the row itself; tail: bf16 [3, C], the raw rows before the pass.
        paths, depths: of `paths_of`, for a tree of up to 32 rows; None for a chain of any length.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    channels = x.shape[-1]
    strides = (
        require_rows("x", x, torch.bfloat16, rows, channels),
        require_rows("out", out, torch.bfloat16, rows, channels),
    )
    require("weight", weight, torch.bfloat16, (channels, 4))
    require("tail", tail, torch.bfloat16, (TAIL, channels))
    require_device(x=x, weight=weight, tail=tail, out=out, paths=paths, depths=depths)
    is_tree = require_tree(rows, paths, depths)
    unused = tail.view(torch.int32)
    grid = (rows, triton.cdiv(channels, _BLOCK))
    _conv[grid](
        x,
        weight,
        tail,
        out,
        unused if paths is None else paths,
        unused if depths is None else depths,
        *strides,
        is_tree,
        channels,
        _BLOCK,
        MAX_NODES,
        **launch_options(4),
    )


def shift_tail(tail: Tensor, x: Tensor, count: Tensor, rows: Tensor | None = None) -> None:
    """The tail after `count` rows of x: the last three of [tail | x at rows], for every layer.

    Args:
        tail: bf16 [L, 3, C], contiguous.
        x: bf16 [L, T, C], raw rows, contiguous in the last axis.
        count: int32 [1], read on the device.
        rows: int32 [32], the accepted path; None for the rows as they stand.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    layers, _, channels = require("tail", tail, torch.bfloat16, (None, TAIL, None)).shape
    if x.dim() != 3 or x.shape[0] != layers:
        raise ValueError(f"x must be [{layers}, T, {channels}], got {list(x.shape)}")
    stride = require_rows("x", x[0], torch.bfloat16, 1, channels)
    require("count", count, torch.int32, (1,))
    if rows is not None:
        require("rows", rows, torch.int32, (MAX_NODES,))
    require_device(tail=tail, x=x, count=count, rows=rows)
    grid = (layers, triton.cdiv(channels, _BLOCK))
    listed = count if rows is None else rows
    _shift_tail[grid](
        tail,
        x,
        count,
        listed,
        x.stride(0),
        stride,
        channels,
        _BLOCK,
        rows is None,
        **launch_options(4),
    )


def require_tree(rows: int, paths: Tensor | None, depths: Tensor | None) -> int:
    """1 for a tree, 0 for a chain; ValueError for half a tree, or one of more than 32 rows."""
    if (paths is None) != (depths is None):
        raise ValueError("paths and depths come together")
    if rows < 1:
        raise ValueError(f"a pass has at least one row, got {rows}")
    if paths is None or depths is None:
        return 0
    require("paths", paths, torch.int32, (MAX_NODES, MAX_NODES))
    require("depths", depths, torch.int32, (MAX_NODES,))
    if rows > MAX_NODES:
        raise ValueError(f"a tree has 1 to {MAX_NODES} rows, got {rows}")
    return 1
