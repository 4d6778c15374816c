# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tree walk of the gated delta rule on a GPU with a stack of factors: `walk_stack(...)`.

A tree comes in depth-first order, so the last node seen at each smaller depth is an ancestor of the present
one: one set of factors (k, u, cumulative gate) per depth is the node's own path. Its parent's state is never
built. What a token needs of it, S_parent^T k and S_parent^T q, comes from the state at entry and the stack:

    S_P^T x = exp(gc_P) S_0^T x + sum over ancestors t of exp(gc_P - gc_t) (k_t . x) u_t

The time of a node does not depend on its depth. Its bits are near those of plain decoding, not equal to them;
where they have to be equal, `triton.walk` walks the path again. Twin: reference.py (`gated_delta_chain` over
each path).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gated_delta.triton import WALK_TYPES, committed
from kernels.gated_delta.triton_pass import VALUE_BLOCK, DeltaPass
from kernels.tree_paths.reference import MAX_NODES
from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import to_bf16
from kernels.triton_operands import require


@triton.jit(do_not_specialize=["rows"])
def _walk_stack(
    state, q, k, v, g, beta, u, gc, out, depths,
    old_count, old_rows, old_k, old_u, old_g, old_gc,
    v_stride, out_stride, rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
    NODES: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    key_head = head // (HV // HK)
    i = tl.arange(0, DK)
    slot = tl.arange(0, NODES)
    column = tl.program_id(1) * BV + tl.arange(0, BV)
    tile = state + (head * DK + i)[:, None] * DV + column[None, :]
    s = tl.load(tile)
    count = tl.load(old_count)
    s = committed(
        s, count, old_rows, old_k, old_u, old_g, old_gc, key_head, head, i, column,
        HK, HV, DK, DV, False,
    )  # fmt: skip
    if count > 0:
        tl.store(tile, s)
    keys = tl.zeros((NODES, DK), tl.float32)
    corrections = tl.zeros((NODES, BV), tl.float32)
    totals = tl.zeros((NODES,), tl.float32)
    for row in range(rows):
        depth = tl.load(depths + row)
        above = slot < depth
        total = tl.sum(tl.where(slot == depth - 1, totals, 0.0), 0) + tl.load(g + row * HV + head)
        key = tl.load(k + (row * HK + key_head) * DK + i)
        query = tl.load(q + (row * HK + key_head) * DK + i)
        value = tl.load(v + row * v_stride + head * DV + column).to(tl.float32)
        # Only ancestors have a difference that is not positive.
        weight = tl.where(above, tl.exp(tl.where(above, total - totals, 0.0)), 0.0)
        key_weight = weight * tl.sum(keys * key[None, :], 1)
        query_weight = weight * tl.sum(keys * query[None, :], 1)
        faded = tl.exp(total)
        recalled = faded * tl.sum(key[:, None] * s, 0) + tl.sum(
            key_weight[:, None] * corrections, 0
        )
        correction = (value - recalled) * tl.load(beta + row * HV + head)
        answer = faded * tl.sum(query[:, None] * s, 0) + tl.sum(
            query_weight[:, None] * corrections, 0
        )
        answer += tl.sum(query * key, 0) * correction
        own = slot == depth
        keys = tl.where(own[:, None], key[None, :], keys)
        corrections = tl.where(own[:, None], correction[None, :], corrections)
        totals = tl.where(own, total, totals)
        tl.store(u + (row * HV + head) * DV + column, correction)
        tl.store(out + row * out_stride + head * DV + column, to_bf16(answer))
        if tl.program_id(1) == 0:
            tl.store(gc + row * HV + head, total)


_WARPS = 4
GATE = Compiled(
    "gated_delta/triton_tree.py",
    Variant(
        "delta_walk_stack_48_128",
        _walk_stack,
        WALK_TYPES,
        {"HK": 16, "HV": 48, "DK": 128, "DV": 128, "BV": VALUE_BLOCK, "NODES": MAX_NODES},
        warps=_WARPS,
        fusion=False,
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def walk_stack(one: DeltaPass, *, depths: Tensor) -> None:
    """The recurrence's answers for the nodes of a tree, or a chain, each after its own path.

    Accepted rows of the pass before are first committed as one low-rank update and the state written back; it
    is not advanced by this pass.

    Args:
        depths: int32 [32] of `paths_of`.

    Raises:
        ValueError: an operand differs from that or from `DeltaPass`; nothing was launched.
    """
    sizes, strides = one.checked()
    require("depths", depths, torch.int32, (MAX_NODES,))
    if one.rows > MAX_NODES:
        raise ValueError(f"a tree has 1 to {MAX_NODES} rows, got {one.rows}")
    _walk_stack[(sizes.value_heads, sizes.value_dim // VALUE_BLOCK)](
        *one.own, depths, *one.pending, *strides, one.rows, *sizes, VALUE_BLOCK, MAX_NODES,
        **launch_options(_WARPS, fusion=False),
    )  # fmt: skip
