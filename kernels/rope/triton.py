# SPDX-License-Identifier: MIT OR Apache-2.0
"""Preparation of an attention layer on a GPU: head norms, partial rotary embedding, KV append, in one launch.

`attention_prepare(q, k, v, ...)`; twins rms_norm/reference.py and reference.py. Rounding points are those of
the three steps: the norm is rounded, both products of the rotation are, and their sum is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tree_paths.reference import MAX_NODES
from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import to_bf16
from kernels.triton_operands import power_of_two, require, require_device, require_rows


@triton.jit
def _normed(at, weight, i, inside, inverse):
    value = tl.load(at + i, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32) + 1.0
    return to_bf16(value * inverse * scale)


@triton.jit
def _rotated(at, weight, table, position, i, inside, eps, D: tl.constexpr, ROTARY: tl.constexpr):
    # The norm of a head, then dimension i < ROTARY / 2 turned with i + ROTARY / 2.
    half: tl.constexpr = ROTARY // 2
    wide = tl.load(at + i, mask=inside, other=0.0).to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / D + eps)
    own = _normed(at, weight, i, inside, inverse)
    turned = i < ROTARY
    partner = _normed(at, weight, tl.where(i < half, i + half, i - half), turned, inverse)
    angle = table + position.to(tl.int64) * ROTARY + tl.where(i < half, i, i - half)
    cos = tl.load(angle, mask=turned, other=0.0).to(tl.float32)
    sin = tl.load(angle + half, mask=turned, other=0.0).to(tl.float32)
    across = tl.where(i < half, -partner.to(tl.float32), partner.to(tl.float32))
    along = to_bf16(own.to(tl.float32) * cos)
    across = to_bf16(across * sin)
    y = to_bf16(along.to(tl.float32) + across.to(tl.float32))
    return tl.where(turned, y, own)


@triton.jit(do_not_specialize=["is_tree"])
def _prepare(
    q, k, v, q_weight, k_weight, table, start, depths, q_out, keys, values,
    q_stride, q_head, k_stride, v_stride, capacity, positions, eps, is_tree,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROTARY: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < D
    first = tl.load(start)
    depth = row
    if is_tree != 0:
        depth = tl.load(depths + row)
    position = first + depth
    slot = first + row
    fits = (slot < capacity) & (position < positions)
    safe = tl.minimum(position, positions - 1)
    wide_row = row.to(tl.int64)
    if head < HQ:
        y = _rotated(
            q + wide_row * q_stride + head * q_head,
            q_weight,
            table,
            safe,
            i,
            inside,
            eps,
            D,
            ROTARY,
        )
        y = to_bf16(tl.where(fits, y.to(tl.float32), float("nan")))
        tl.store(q_out + (wide_row * HQ + head) * D + i, y, mask=inside)
    elif head < HQ + HKV:
        group = head - HQ
        y = _rotated(
            k + wide_row * k_stride + group * D, k_weight, table, safe, i, inside, eps, D, ROTARY
        )
        at = keys + (group.to(tl.int64) * capacity + slot) * D + i
        tl.store(at, y, mask=i < tl.where(fits, D, 0))
    else:
        group = head - HQ - HKV
        y = tl.load(v + wide_row * v_stride + group * D + i, mask=inside)
        at = values + (group.to(tl.int64) * capacity + slot) * D + i
        tl.store(at, y, mask=i < tl.where(fits, D, 0))


_POINTERS = "q k v q_weight k_weight table q_out keys values"
GATE = Compiled(
    "rope/triton.py",
    Variant(
        "attention_prepare_24_4_256",
        _prepare,
        {name: "*bf16" for name in _POINTERS.split()}
        | {
            "start": "*i32",
            "depths": "*i32",
            "eps": "fp32",
            "is_tree": "i32",
            "positions": "i32:16",
        }
        | {"q_stride": "i32:16", "q_head": "i32:16", "k_stride": "i32:16", "v_stride": "i32:16"}
        | {"capacity": "i32:16"},
        {"HQ": 24, "HKV": 4, "D": 256, "BLOCK": 256, "ROTARY": 64},
        warps=1,
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def attention_prepare(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    table: Tensor,
    start: Tensor,
    q_out: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    eps: float,
    rows: int,
    gated: bool = True,
    depths: Tensor | None = None,
) -> None:
    """q_out = rotated norm of the queries; rotated norm of the keys, and the values, appended at start + row.

    The rotary position is start + row in a chain and start + depth in a tree. A row past the cache or the table
    gives NaN queries, which the argmax of the round reports, and writes nothing else.

    Args:
        q: bf16 [>= rows, Hq * 2D], per head D query values then D gate values; [>= rows, Hq * D] when not
            `gated`.
        k, v: bf16 [>= rows, Hkv * D].
        q_weight, k_weight: bf16 or float32 [D], zero-centred.
        table: bf16 [positions, rotary_dim], cosines then sines, of `rope.native.rope_table`.
        start: int32 [1], committed positions, read on the device.
        q_out: bf16 [>= rows, Hq, D]; keys, values: bf16 [Hkv, capacity, D]; contiguous.
        depths: int32 [32] of `paths_of`, for a tree of up to 32 rows; None for a chain of any length.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    heads, capacity, dim = require("keys", keys, torch.bfloat16, (None, None, None)).shape
    require("values", values, torch.bfloat16, (heads, capacity, dim))
    held, query_heads, _ = require("q_out", q_out, torch.bfloat16, (None, None, dim)).shape
    positions, rotary = require("table", table, torch.bfloat16, (None, None)).shape
    if rotary % 2 or not 0 < rotary <= dim:
        raise ValueError(f"rotary_dim must be even and at most {dim}, got {rotary}")
    if query_heads % heads or held < rows:
        raise ValueError(
            f"q_out must hold {rows} rows of a multiple of {heads} heads, got {list(q_out.shape)}"
        )
    for name, weight in (("q_weight", q_weight), ("k_weight", k_weight)):
        dtype = torch.float32 if weight.dtype == torch.float32 else torch.bfloat16
        require(name, weight, dtype, (dim,))
    require("start", start, torch.int32, (1,))
    head = 2 * dim if gated else dim
    q_stride = require_rows("q", q, torch.bfloat16, rows, query_heads * head)
    k_stride = require_rows("k", k, torch.bfloat16, rows, heads * dim)
    v_stride = require_rows("v", v, torch.bfloat16, rows, heads * dim)
    require_device(q=q, k=k, v=v, table=table, start=start, q_out=q_out, keys=keys, depths=depths)
    if rows < 1 or (depths is not None and rows > MAX_NODES):
        raise ValueError(f"a pass has at least one row and a tree at most {MAX_NODES}, got {rows}")
    if depths is not None:
        require("depths", depths, torch.int32, (MAX_NODES,))
    _prepare[(rows, query_heads + 2 * heads)](
        q,
        k,
        v,
        q_weight,
        k_weight,
        table,
        start,
        start if depths is None else depths,
        q_out,
        keys,
        values,
        q_stride,
        head,
        k_stride,
        v_stride,
        capacity,
        positions,
        eps,
        int(depths is not None),
        query_heads,
        heads,
        dim,
        power_of_two(dim),
        rotary,
        **launch_options(1),
    )
