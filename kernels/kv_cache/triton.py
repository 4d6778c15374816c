# SPDX-License-Identifier: MIT OR Apache-2.0
"""Rows of an accepted path moved to the end of what is committed, on a GPU: `move_rows(...)`.

Keys and values are [H, capacity, D], H over heads or over layers and heads, and the twin is an indexed copy:
cache[:, start - count + j] = cache[:, start - count + rows[j]].
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tree_paths.reference import MAX_NODES
from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_operands import power_of_two, require, require_device


@triton.jit
def _move_rows(
    keys, values, rows, count, start, capacity,
    D: tl.constexpr, BLOCK: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, NODES)
    column = tl.arange(0, BLOCK)
    moved = tl.load(count)
    first = tl.load(start) - moved
    source = first + tl.load(rows + j, mask=j < moved, other=0)
    inside = ((j < moved) & (source < capacity))[:, None] & (column < D)[None, :]
    base = values if tl.program_id(1) == 1 else keys
    base += head * capacity * D + column[None, :]
    kept = tl.load(base + source[:, None] * D, mask=inside)
    # A row may be another one's destination: all are read before one is written.
    tl.debug_barrier()
    tl.store(base + (first + j)[:, None] * D, kept, mask=inside)


GATE = Compiled(
    "kv_cache/triton.py",
    Variant(
        "move_rows_256",
        _move_rows,
        {"keys": "*bf16", "values": "*bf16", "rows": "*i32", "count": "*i32", "start": "*i32"}
        | {"capacity": "i32"},
        {"D": 256, "BLOCK": 256, "NODES": MAX_NODES},
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def move_rows(keys: Tensor, values: Tensor, rows: Tensor, count: Tensor, start: Tensor) -> None:
    """Row rows[j] of the pass that began at start - count goes to position start - count + j, for j < count.

    Args:
        keys, values: bf16 [H, capacity, D], contiguous.
        rows: int32 [32], ascending, each at least its index; count, start: int32 [1], start being the committed
            positions with these rows. All are read on the device.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    heads, capacity, dim = require("keys", keys, torch.bfloat16, (None, None, None)).shape
    require("values", values, torch.bfloat16, (heads, capacity, dim))
    require("rows", rows, torch.int32, (MAX_NODES,))
    require("count", count, torch.int32, (1,))
    require("start", start, torch.int32, (1,))
    require_device(keys=keys, values=values, rows=rows, count=count, start=start)
    block = power_of_two(dim)
    _move_rows[(heads, 2)](
        keys, values, rows, count, start, capacity, dim, block, MAX_NODES, **launch_options(4)
    )
