# SPDX-License-Identifier: MIT OR Apache-2.0
"""Choice of tokens from logits on a GPU: `argmax(logits, ids, values, work, rows)`; twin `argmax_lowest`.

The vocabulary is cut into parts, so that one row fills the device; a second launch takes the best of the
parts. The largest value does not depend on the order, and the lowest index among equals decides, so nothing
else does either.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_operands import power_of_two, require, require_device, require_rows

PART = 4096
_NONE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _best(value, index, AXIS: tl.constexpr):
    # Index of the largest value, the lowest among equals; -1 when one of them is NaN. Padding has _NONE.
    nan = tl.max((value != value).to(tl.int32), AXIS)
    clean = tl.where(value != value, float("-inf"), value)
    largest = tl.max(clean, AXIS)
    chosen = tl.min(tl.where(clean == largest, index, _NONE), AXIS)
    return largest, tl.where(nan > 0, -1, chosen)


@triton.jit
def _argmax_parts(
    logits, part_values, part_ids, stride, V: tl.constexpr, PARTS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    i = part * BLOCK + tl.arange(0, BLOCK)
    inside = i < V
    value = tl.load(logits + row * stride + i, mask=inside, other=float("-inf")).to(tl.float32)
    largest, chosen = _best(value, tl.where(inside, i, _NONE), 0)
    tl.store(part_values + row * PARTS + part, largest)
    tl.store(part_ids + row * PARTS + part, chosen)


@triton.jit
def _argmax_merge(part_values, part_ids, ids, values, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < PARTS
    value = tl.load(part_values + row * PARTS + i, mask=inside, other=float("-inf"))
    index = tl.load(part_ids + row * PARTS + i, mask=inside, other=_NONE)
    value = tl.where(index < 0, float("nan"), value)
    largest, chosen = _best(value, index, 0)
    tl.store(ids + row, chosen)
    tl.store(values + row, tl.where(chosen < 0, float("nan"), largest))


_PARTS_27B = triton.cdiv(248320, PART)
GATE = Compiled(
    "head/triton.py",
    Variant(
        "argmax_parts_248320",
        _argmax_parts,
        {"logits": "*fp32", "part_values": "*fp32", "part_ids": "*i32", "stride": "i32:16"},
        {"V": 248320, "PARTS": _PARTS_27B, "BLOCK": PART},
        warps=8,
    ),
    Variant(
        "argmax_merge_248320",
        _argmax_merge,
        {"part_values": "*fp32", "part_ids": "*i32", "ids": "*i32", "values": "*fp32"},
        {"PARTS": _PARTS_27B, "BLOCK": power_of_two(_PARTS_27B)},
        warps=1,
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def argmax_work(rows: int, vocabulary: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Buffers that `argmax` needs for up to `rows` rows: (float32, int32), each [rows, parts]."""
    parts = triton.cdiv(vocabulary, PART)
    return (
        torch.empty(rows, parts, dtype=torch.float32, device=device),
        torch.empty(rows, parts, dtype=torch.int32, device=device),
    )


def argmax(
    logits: Tensor, ids: Tensor, values: Tensor, work: tuple[Tensor, Tensor], *, rows: int
) -> None:
    """ids[r] = index of the largest logit of row r, the lowest among equals; values[r] = that logit.

    A row that holds a NaN gives -1 and NaN.

    Args:
        logits: float32 or bf16 [>= rows, V], unit column stride; every column counts.
        ids: int32 [>= rows]; values: float32 [>= rows].
        work: of `argmax_work` for at least as many rows and the same V.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    vocabulary = logits.shape[-1]
    dtype = torch.bfloat16 if logits.dtype == torch.bfloat16 else torch.float32
    stride = require_rows("logits", logits, dtype, rows, vocabulary)
    parts = triton.cdiv(vocabulary, PART)
    require("work[0]", work[0], torch.float32, (None, parts))
    require("work[1]", work[1], torch.int32, (None, parts))
    require("ids", ids, torch.int32, (None,))
    require("values", values, torch.float32, (None,))
    if min(len(ids), len(values), len(work[0]), len(work[1])) < rows:
        raise ValueError(f"ids, values and work must hold at least {rows} rows")
    require_device(logits=logits, ids=ids, values=values, work=work[0])
    _argmax_parts[(rows, parts)](
        logits, *work, stride, vocabulary, parts, PART, **launch_options(8)
    )
    _argmax_merge[(rows,)](*work, ids, values, parts, power_of_two(parts), **launch_options(1))
