# SPDX-License-Identifier: MIT OR Apache-2.0
"""Walk of the gated delta rule on a GPU: decode, chain and tree by one kernel, and the commit of accepted rows.

- `delta_operands(conv, q, k, rows)`: unit queries (times dk^-0.5) and unit keys, float32.
- `walk(state, q, record, v, beta, out, ...)`: the rows of a pass in order, in registers. A tree node whose
parent is not
  the row before it walks its own path again from the state at entry (updates alone, from what the record
  kept), so it has
  the bits of plain decoding: every row count, chain and tree run the same compiled kernel.
- `commit(states, record, pending, exact)`: accepted rows into the states of many layers at once, in path order
(the bits
  of decoding them) or as one low-rank update: S exp(gc_L) + sum over r of exp(gc_L - gc_r) k_r (x) u_r.

With `pending`, a walk commits the rows of the pass before, as it loads each state tile, and writes the tile
back: the state is read and written once a round. Rows and count are read on the device; the two passes use
records in turn.

States are float32 [Hv, dk, dv]. Twin: reference.py (`gated_delta_step`, `gated_delta_chain`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tree_paths.reference import MAX_NODES
from kernels.triton_build import Compiled, Variant
from kernels.triton_math import to_bf16
from kernels.triton_operands import require, require_device, require_rows

MAX_KEY_DIM = 256
VALUE_BLOCK = 16
COMMIT_BLOCK = 32
_MOST_ELEMENTS = 1 << 31


@triton.jit
def absorb(s, decay, key, u):
    """The state after a token: s * decay + key (x) u; s [dk, dv]."""
    return s * decay + key[:, None] * u[None, :]


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
            weight = tl.exp(total - tl.load(gc + row * HV + head))
            key = tl.load(k + (row * HK + key_head) * DK + i)
            s += (weight * key)[:, None] * tl.load(u + (row * HV + head) * DV + column)[None, :]
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


@dataclass(frozen=True)
class DeltaFactors:
    """What passes keep of their rows, so that accepted ones can be committed later; of one layer or of many.

    k: float32 [rows, Hk, dk], unit keys; u: float32 [rows, Hv, dv], corrections (v - k^T S) beta;
    g, gc: float32 [rows, Hv], the decay's logarithm and its sum along the row's path. Of many layers: [L,
    rows, ...].
    """

    k: Tensor
    u: Tensor
    g: Tensor
    gc: Tensor

    @classmethod
    def empty(
        cls,
        *,
        rows: int,
        key_heads: int,
        value_heads: int,
        key_dim: int,
        value_dim: int,
        device: torch.device | str,
        layers: int | None = None,
    ) -> DeltaFactors:
        """Buffers for `rows` rows of one layer, or of `layers`."""

        def buffer(*shape: int) -> Tensor:
            shape = shape if layers is None else (layers, *shape)
            return torch.empty(shape, dtype=torch.float32, device=device)

        return cls(
            buffer(rows, key_heads, key_dim),
            buffer(rows, value_heads, value_dim),
            buffer(rows, value_heads),
            buffer(rows, value_heads),
        )

    def layer(self, index: int) -> DeltaFactors:
        """One layer's part, as a view."""
        return DeltaFactors(self.k[index], self.u[index], self.g[index], self.gc[index])


@dataclass(frozen=True)
class Accepted:
    """Rows of the pass before that are to be committed, read on the device.

    count: int32 [1]; rows: int32 [32], the accepted path from its root.
    """

    count: Tensor
    rows: Tensor


@dataclass(frozen=True)
class _Sizes:
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int


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
    _require_power("the key dimension", dim, MAX_KEY_DIM)
    if min(len(q), len(k)) < rows or rows < 1 or conv.shape[-1] < 2 * heads * dim:
        raise ValueError(
            f"conv {list(conv.shape)}, q {list(q.shape)} and k {list(k.shape)} do not hold {rows} rows"
        )
    stride = require_rows("conv", conv, torch.bfloat16, rows, conv.shape[-1])
    require_device(conv=conv, q=q, k=k)
    _delta_operands[(rows, heads)](conv, q, k, stride, eps, heads, dim, num_warps=1)


def walk(
    state: Tensor,
    q: Tensor,
    factors: DeltaFactors,
    v: Tensor,
    beta: Tensor,
    out: Tensor,
    *,
    rows: int,
    advance: bool,
    accepted: Accepted,
    accepted_factors: DeltaFactors,
    paths: Tensor | None = None,
    depths: Tensor | None = None,
) -> None:
    """out = the recurrence's answers for this pass's rows, each after its own path; the state as asked.

    Rows named by `accepted` are first committed from `accepted_factors`, with the bits that decoding them
    would have left. Then, with `advance`, the state ends behind the last row; without, it stays behind the
    committed ones.

    Args:
        state: float32 [Hv, dk, dv], updated in place.
        q: float32 [>= rows, Hk, dk] of `delta_operands`; beta: float32 [>= rows, Hv].
        factors: of this pass; k and g are read, u and gc are written.
        v: bf16 [>= rows, Hv * dv], unit column stride (a part of the convolution's output).
        out: bf16 [>= rows, Hv * dv], unit column stride.
        accepted: rows of the pass before; a count of 0 commits nothing. accepted_factors: of that pass, other
            memory than `factors`.
        paths, depths: of `paths_of`, for a tree of up to 32 rows, not to be advanced; None for a chain of any
            length.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    sizes, strides = require_walk(state, q, factors, v, beta, out, rows, accepted, accepted_factors)
    if (paths is None) != (depths is None):
        raise ValueError("paths and depths come together")
    if paths is not None and depths is not None:
        require("paths", paths, torch.int32, (MAX_NODES, MAX_NODES))
        require("depths", depths, torch.int32, (MAX_NODES,))
        if advance or rows > MAX_NODES:
            raise ValueError(f"a tree has 1 to {MAX_NODES} rows and is never advanced, got {rows}")
    unused = accepted.rows
    _walk[(sizes.value_heads, sizes.value_dim // VALUE_BLOCK)](
        state, q, factors.k, v, factors.g, beta, factors.u, factors.gc, out,
        unused if paths is None else paths, unused if depths is None else depths,
        accepted.count, accepted.rows,
        accepted_factors.k, accepted_factors.u, accepted_factors.g, accepted_factors.gc,
        *strides, rows, int(paths is not None), int(advance),
        sizes.key_heads, sizes.value_heads, sizes.key_dim, sizes.value_dim, VALUE_BLOCK, MAX_NODES,
        num_warps=1, enable_fp_fusion=False,
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
    _require_sizes(_Sizes(key_heads, value_heads, key_dim, value_dim))
    _require_accepted(accepted)
    require_device(states=states, k=factors.k, u=factors.u, g=factors.g, count=accepted.count)
    block = COMMIT_BLOCK if value_dim % COMMIT_BLOCK == 0 else VALUE_BLOCK
    _commit[(layers * value_heads, value_dim // block)](
        states, accepted.count, accepted.rows, factors.k, factors.u, factors.g, factors.gc, held,
        key_heads, value_heads, key_dim, value_dim, block, exact,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def require_walk(
    state: Tensor,
    q: Tensor,
    factors: DeltaFactors,
    v: Tensor,
    beta: Tensor,
    out: Tensor,
    rows: int,
    accepted: Accepted,
    accepted_factors: DeltaFactors,
) -> tuple[_Sizes, tuple[int, int]]:
    """Heads and dimensions of a pass, and the row strides of v and out.

    Raises:
        ValueError: an operand does not fit the others.
    """
    wanted = (None, None, None)
    value_heads, key_dim, value_dim = require("state", state, torch.float32, wanted).shape
    key_heads = q.shape[1] if q.dim() == 3 else 0
    sizes = _Sizes(key_heads, value_heads, key_dim, value_dim)
    _require_sizes(sizes)
    for prefix, kept in (("factors", factors), ("accepted_factors", accepted_factors)):
        require(f"{prefix}.k", kept.k, torch.float32, (None, key_heads, key_dim))
        require(f"{prefix}.u", kept.u, torch.float32, (None, value_heads, value_dim))
        require(f"{prefix}.g", kept.g, torch.float32, (None, value_heads))
        require(f"{prefix}.gc", kept.gc, torch.float32, (None, value_heads))
    require("q", q, torch.float32, (None, key_heads, key_dim))
    require("beta", beta, torch.float32, (None, value_heads))
    least = min(len(t) for t in (q, beta, factors.k, factors.u, factors.g, factors.gc))
    if not 1 <= rows <= least:
        raise ValueError(f"rows must lie in 1..{least}, what the buffers hold, got {rows}")
    if factors.u.data_ptr() == accepted_factors.u.data_ptr():
        raise ValueError("the accepted rows must lie in the other pass's factors")
    _require_accepted(accepted)
    width = value_heads * value_dim
    strides = (
        require_rows("v", v, torch.bfloat16, rows, width),
        require_rows("out", out, torch.bfloat16, rows, width),
    )
    if rows * max(strides) >= _MOST_ELEMENTS:
        raise ValueError(
            f"{rows} rows span {rows * max(strides)} elements, the kernel counts to 2^31"
        )
    require_device(state=state, q=q, k=factors.k, v=v, beta=beta, out=out, count=accepted.count)
    return sizes, strides


def _require_accepted(accepted: Accepted) -> None:
    require("accepted.count", accepted.count, torch.int32, (1,))
    require("accepted.rows", accepted.rows, torch.int32, (MAX_NODES,))


def _require_sizes(sizes: _Sizes) -> None:
    if sizes.key_heads < 1 or sizes.value_heads % sizes.key_heads:
        raise ValueError(
            f"{sizes.value_heads} value heads do not divide into {sizes.key_heads} key heads"
        )
    _require_power("the key dimension", sizes.key_dim, MAX_KEY_DIM)
    if sizes.value_dim % VALUE_BLOCK:
        raise ValueError(
            f"the value dimension must be a multiple of {VALUE_BLOCK}, got {sizes.value_dim}"
        )


def _require_power(name: str, value: int, most: int) -> None:
    if value < 16 or value > most or value & (value - 1):
        raise ValueError(f"{name} must be a power of two in 16..{most}, got {value}")
