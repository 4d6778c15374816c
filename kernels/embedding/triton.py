# SPDX-License-Identifier: MIT OR Apache-2.0
"""Token embedding on a GPU: `embed(table, ids, out, rows)`; twin `reference.embed`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_operands import require, require_device, require_rows

_BLOCK = 1024


@triton.jit
def _embed(table, ids, out, out_stride, V: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    token = tl.load(ids + row).to(tl.int64)
    limit = tl.where((token >= 0) & (token < V), N, 0)
    value = tl.load(table + token * N + column, mask=column < limit, other=float("nan"))
    tl.store(out + row * out_stride + column, value, mask=inside)


GATE = Compiled(
    "embedding/triton.py",
    Variant(
        "embed_5120",
        _embed,
        {"table": "*bf16", "ids": "*i32", "out": "*bf16", "out_stride": "i32:16"},
        {"V": 248320, "N": 5120, "BLOCK": _BLOCK},
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def embed(table: Tensor, ids: Tensor, out: Tensor, *, rows: int) -> None:
    """out[r] = table[ids[r]]; an id outside the table gives a row of NaN, which the argmax reports.

    Args:
        table: bf16 [V, N], contiguous; ids: int32 [>= rows]; out: bf16 [>= rows, N], unit column stride.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    tokens, width = require("table", table, torch.bfloat16, (None, None)).shape
    if require("ids", ids, torch.int32, (None,)).shape[0] < rows:
        raise ValueError(f"ids must hold at least {rows} ids, got {ids.shape[0]}")
    stride = require_rows("out", out, torch.bfloat16, rows, width)
    require_device(table=table, ids=ids, out=out)
    grid = (rows, triton.cdiv(width, _BLOCK))
    _embed[grid](table, ids, out, stride, tokens, width, _BLOCK, **launch_options(4))
