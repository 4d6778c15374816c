# SPDX-License-Identifier: MIT OR Apache-2.0
"""Walk of the gated delta rule on a GPU: decode, chain and tree by one kernel, and the commit of accepted rows.

- `delta_operands(conv, q, k, rows)`: unit queries (times dk^-0.5) and unit keys, float32.
- `walk(one, ...)`: the rows of a pass in order, in registers. A tree node whose parent is not the row before it
  walks its own path again from the state at entry (updates alone, from what the factors kept), so it has the
  bits of plain decoding: every row count, chain and tree run the same compiled kernel.
- `commit(states, factors, accepted, exact)`: accepted rows into the states of many layers at once, in path
  order (the bits of decoding them) or as one low-rank update: S exp(gc_L) + sum over r of exp(gc_L - gc_r) k_r
  (x) u_r.

A walk commits the accepted rows of the pass before, as it loads each state tile, and writes the tile back: the
state is read and written once a round. Rows and count are read on the device; two passes use factors in turn.

States are float32 [Hv, dk, dv]. Twin: reference.py (`gated_delta_step`, `gated_delta_chain`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gated_delta.triton_pass import (
    MAX_KEY_DIM,
    VALUE_BLOCK,
    Accepted,
    DeltaFactors,
    DeltaPass,
    Sizes,
    require_accepted,
    require_power,
    require_sizes,
    require_tree,
)
from kernels.tree_paths.reference import MAX_NODES
from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import to_bf16
from kernels.triton_operands import require, require_device, require_rows

COMMIT_BLOCK = 32


@triton.jit
def with_outer(s, key, u):
    """s + key (x) u; s [dk, dv].

    Product and sum are one operation, said outright: several kernels have to leave the same bits, and the
    compiler of CUDA 12.9 for sm_121a, which Triton 3.6 brings, makes one of the two though told not to.
    """
    key, u = tl.broadcast_to(key[:, None], s.shape), tl.broadcast_to(u[None, :], s.shape)
    return tl.fma(key, u, s)


@triton.jit
def absorb(s, decay, key, u):
    """The state after a token: s * decay + key (x) u; s [dk, dv]."""
    return with_outer(s * decay, key, u)


@triton.jit
def committed(
    s, count, rows, k, u, g, gc, key_head, head, i, column,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """The tile s [dk, columns] with `count` recorded rows in it, in path order."""
    if EXACT:
        for j in range(count):
            row = tl.load(rows + j)
            decay = tl.exp(tl.load(g + row * HV + head))
            key = tl.load(k + (row * HK + key_head) * DK + i)
            s = absorb(s, decay, key, tl.load(u + (row * HV + head) * DV + column))
    else:
        last = tl.load(rows + tl.maximum(count - 1, 0))
        total = tl.load(gc + last * HV + head)
        s = s * tl.where(count > 0, tl.exp(total), 1.0)
        for j in range(count):
            row = tl.load(rows + j)
            correction = tl.load(u + (row * HV + head) * DV + column)
            weight = tl.exp(total - tl.load(gc + row * HV + head))
            key = tl.load(k + (row * HK + key_head) * DK + i)
            s = with_outer(s, weight * key, correction)
    return s


@triton.jit
def _delta_operands(conv, q, k, stride, eps, HK: tl.constexpr, DK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    i = tl.arange(0, DK)
    at = conv + row * stride + head * DK + i
    query = tl.load(at).to(tl.float32)
    key = tl.load(at + HK * DK).to(tl.float32)
    query = query * tl.rsqrt(tl.sum(query * query, 0) + eps) / tl.sqrt(DK * 1.0)
    key = key * tl.rsqrt(tl.sum(key * key, 0) + eps)
    tl.store(q + (row * HK + head) * DK + i, query)
    tl.store(k + (row * HK + head) * DK + i, key)


@triton.jit(do_not_specialize=["rows", "is_tree", "advance"])
def _walk(
    state, q, k, v, g, beta, u, gc, out, paths, depths,
    old_count, old_rows, old_k, old_u, old_g, old_gc,
    v_stride, out_stride, rows, is_tree, advance,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
    NODES: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    key_head = head // (HV // HK)
    i = tl.arange(0, DK)
    column = tl.program_id(1) * BV + tl.arange(0, BV)
    tile = state + (head * DK + i)[:, None] * DV + column[None, :]
    s = tl.load(tile)
    count = tl.load(old_count)
    s = committed(
        s, count, old_rows, old_k, old_u, old_g, old_gc, key_head, head, i, column,
        HK, HV, DK, DV, True,
    )  # fmt: skip
    if count > 0:
        tl.store(tile, s)
    total = 0.0
    for row in range(rows):
        depth = row
        parent = row - 1
        if is_tree != 0:
            depth = tl.load(depths + row)
            parent = tl.load(paths + row * NODES + tl.maximum(depth - 1, 0))
            parent = tl.where(depth > 0, parent, -1)
        if parent != row - 1:
            # What this program stored is read by other threads of it.
            tl.debug_barrier()
            s = tl.load(tile)
            total = 0.0
            for level in range(depth):
                node = tl.load(paths + row * NODES + level)
                log_decay = tl.load(g + node * HV + head)
                key = tl.load(k + (node * HK + key_head) * DK + i)
                s = absorb(s, tl.exp(log_decay), key, tl.load(u + (node * HV + head) * DV + column))
                total += log_decay
        log_decay = tl.load(g + row * HV + head)
        decay = tl.exp(log_decay)
        total += log_decay
        key = tl.load(k + (row * HK + key_head) * DK + i)
        query = tl.load(q + (row * HK + key_head) * DK + i)
        value = tl.load(v + row * v_stride + head * DV + column).to(tl.float32)
        recalled = tl.sum(key[:, None] * (s * decay), 0)
        correction = (value - recalled) * tl.load(beta + row * HV + head)
        s = absorb(s, decay, key, correction)
        answer = tl.sum(query[:, None] * s, 0)
        tl.store(u + (row * HV + head) * DV + column, correction)
        tl.store(out + row * out_stride + head * DV + column, to_bf16(answer))
        if tl.program_id(1) == 0:
            tl.store(gc + row * HV + head, total)
    if advance != 0:
        tl.debug_barrier()
        tl.store(tile, s)


@triton.jit
def _commit(
    states, count, rows, k, u, g, gc, LAYER_ROWS,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    layer = (tl.program_id(0) // HV).to(tl.int64)
    head = tl.program_id(0) % HV
    first = layer * LAYER_ROWS
    number = tl.load(count)
    i = tl.arange(0, DK)
    column = tl.program_id(1) * BV + tl.arange(0, BV)
    tile = states + ((layer * HV + head) * DK + i)[:, None] * DV + column[None, :]
    if number > 0:
        s = committed(
            tl.load(tile), number, rows, k + first * HK * DK, u + first * HV * DV, g + first * HV,
            gc + first * HV, head // (HV // HK), head, i, column, HK, HV, DK, DV, EXACT,
        )  # fmt: skip
        tl.store(tile, s)


_HEADS = {"HK": 16, "HV": 48, "DK": 128, "DV": 128}
_FLOATS = {name: "*fp32" for name in ("state", "q", "k", "g", "beta", "u", "gc")}
_OLD = {"old_count": "*i32", "old_rows": "*i32"} | {
    name: "*fp32" for name in ("old_k", "old_u", "old_g", "old_gc")
}
_TABLES = {"paths": "*i32", "depths": "*i32"}
_COMMIT = {"states": "*fp32", "count": "*i32", "rows": "*i32", "LAYER_ROWS": "i32:16"} | {
    name: "*fp32" for name in ("k", "u", "g", "gc")
}
WALK_TYPES = _FLOATS | _OLD | _TABLES | {"v": "*bf16", "out": "*bf16"}
WALK_TYPES |= {"v_stride": "i32:16", "out_stride": "i32:16", "rows": "i32"}
GATE = Compiled(
    "gated_delta/triton.py",
    Variant(
        "delta_operands_16_128",
        _delta_operands,
        {"conv": "*bf16", "q": "*fp32", "k": "*fp32", "stride": "i32:16", "eps": "fp32"},
        {"HK": 16, "DK": 128},
        warps=1,
    ),
    Variant(
        "delta_walk_48_128",
        _walk,
        WALK_TYPES | {"is_tree": "i32", "advance": "i32"},
        _HEADS | {"BV": VALUE_BLOCK, "NODES": MAX_NODES},
        warps=1,
        fusion=False,
    ),
    Variant(
        "delta_commit_exact_48_128",
        _commit,
        _COMMIT,
        _HEADS | {"BV": COMMIT_BLOCK, "EXACT": True},
        fusion=False,
    ),
    Variant(
        "delta_commit_low_rank_48_128",
        _commit,
        _COMMIT,
        _HEADS | {"BV": COMMIT_BLOCK, "EXACT": False},
        fusion=False,
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def delta_operands(conv: Tensor, q: Tensor, k: Tensor, *, rows: int, eps: float = 1e-6) -> None:
    """q = unit query * dk^-0.5 and k = unit key of every row and key head, from the convolution's output.

    Args:
        conv: bf16 [>= rows, channels] laid out q | k | v, unit column stride.
        q, k: float32 [>= rows, Hk, dk], contiguous; k usually the pass's record.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    _, heads, dim = require("q", q, torch.float32, (None, None, None)).shape
    require("k", k, torch.float32, (None, heads, dim))
    require_power("the key dimension", dim, MAX_KEY_DIM)
    if min(len(q), len(k)) < rows or rows < 1 or conv.shape[-1] < 2 * heads * dim:
        raise ValueError(
            f"conv {list(conv.shape)}, q {list(q.shape)} and k {list(k.shape)} do not hold {rows} rows"
        )
    stride = require_rows("conv", conv, torch.bfloat16, rows, conv.shape[-1])
    require_device(conv=conv, q=q, k=k)
    _delta_operands[(rows, heads)](conv, q, k, stride, eps, heads, dim, **launch_options(1))


def walk(
    one: DeltaPass, *, advance: bool, paths: Tensor | None = None, depths: Tensor | None = None
) -> None:
    """The recurrence's answers for a pass's rows, each after its own path; the state as asked.

    Accepted rows of the pass before are first committed with the bits that decoding them would have left. Then,
    with `advance`, the state ends behind the last row; without, it stays behind the committed ones.

    Args:
        paths, depths: of `paths_of`, for a tree of up to 32 rows, not to be advanced; None for a chain of any
            length.

    Raises:
        ValueError: an operand differs from that or from `DeltaPass`; nothing was launched.
    """
    sizes, strides = one.checked()
    require_tree(paths, depths, one.rows)
    if paths is not None and advance:
        raise ValueError("a tree is never advanced")
    unused = one.accepted.rows
    _walk[(sizes.value_heads, sizes.value_dim // VALUE_BLOCK)](
        *one.own, unused if paths is None else paths, unused if depths is None else depths,
        *one.pending, *strides, one.rows, int(paths is not None), int(advance),
        *sizes, VALUE_BLOCK, MAX_NODES, **launch_options(1, fusion=False),
    )  # fmt: skip


def commit(states: Tensor, factors: DeltaFactors, accepted: Accepted, *, exact: bool) -> None:
    """The accepted rows into the states of all layers, in one launch.

    `exact` replays their updates in path order, with the bits of decoding them and of a commit inside `walk`;
    otherwise they are one low-rank update, with the bits of a commit inside `walk_stack` and `walk_solved`.

    Args:
        states: float32 [L, Hv, dk, dv], updated in place.
        factors: of L layers, [L, rows, ...].

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    layers, value_heads, key_dim, value_dim = require(
        "states", states, torch.float32, (None, None, None, None)
    ).shape
    _, held, key_heads, _ = require(
        "factors.k", factors.k, torch.float32, (layers, None, None, key_dim)
    ).shape
    require("factors.u", factors.u, torch.float32, (layers, held, value_heads, value_dim))
    require("factors.g", factors.g, torch.float32, (layers, held, value_heads))
    require("factors.gc", factors.gc, torch.float32, (layers, held, value_heads))
    require_sizes(Sizes(key_heads, value_heads, key_dim, value_dim))
    require_accepted(accepted)
    require_device(states=states, k=factors.k, u=factors.u, g=factors.g, count=accepted.count)
    block = COMMIT_BLOCK if value_dim % COMMIT_BLOCK == 0 else VALUE_BLOCK
    _commit[(layers * value_heads, value_dim // block)](
        states, accepted.count, accepted.rows, factors.k, factors.u, factors.g, factors.gc, held,
        key_heads, value_heads, key_dim, value_dim, block, exact,
        **launch_options(4, fusion=False),
    )  # fmt: skip
