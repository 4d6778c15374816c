# SPDX-License-Identifier: MIT OR Apache-2.0
"""Chunked form of the gated delta rule on a GPU: prompt chunks, and the WY form of a verify pass.

Rows are solved together, 32 at a time: `solve` inverts I + A for every value head and chunk, where A[i, j] =
beta_i (k_i . k_j) exp(gc_i - gc_j) for the ancestors j of i; `prefill` and `walk_solved` then need the state
once a chunk:

    d = (I + A)^-1 diag(beta) (v - exp(gc) K S);  o = exp(gc) Q S + [(q_i . k_j) exp(gc_i - gc_j)] d

The inverse comes by forward substitution, a row at a time, which stays exact where keys are alike; series do
not. In a chain the ancestors are all rows before, in a tree the row's path: the system is unit lower
triangular in both. Products are of float32 in three TF32 parts. Twin: reference.py (`gated_delta_chunked`).
Bits depend on the chunking: this is not the arithmetic of one token at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.gated_delta.triton import WALK_TYPES, committed
from kernels.gated_delta.triton_pass import DeltaFactors, DeltaPass, require_tree
from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import to_bf16
from kernels.triton_operands import require, require_device, require_rows

CHUNK = 32
KEYS_AT_ONCE = 32
_BLOCKS = (32, 16)
_WARPS = 4


@triton.jit
def _product(a, b):
    return tl.dot(a, b, input_precision="tf32x3")


@triton.jit(do_not_specialize=["rows"])
def _solve(
    q, k, g, beta, gc, inverse, inside, paths, depths, rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, KC: tl.constexpr, C: tl.constexpr,
    TREE: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    chunk = tl.program_id(1)
    key_head = head // (HV // HK)
    r = tl.arange(0, C)
    row = chunk * C + r
    real = row < rows
    alike = tl.zeros((C, C), tl.float32)
    tied = tl.zeros((C, C), tl.float32)
    for first in range(0, DK, KC):
        at = (row * HK + key_head)[:, None] * DK + (first + tl.arange(0, KC))[None, :]
        keys = tl.load(k + at, mask=real[:, None], other=0.0)
        across = tl.trans(keys)
        alike += _product(keys, across)
        tied += _product(tl.load(q + at, mask=real[:, None], other=0.0), across)
    log_decay = tl.load(g + row * HV + head, mask=real, other=0.0)
    strength = tl.load(beta + row * HV + head, mask=real, other=0.0)
    if TREE:
        depth = tl.load(depths + r, mask=real, other=0)
        both = real[:, None] & real[None, :]
        node = tl.load(paths + r[:, None] * C + depth[None, :], mask=both, other=-1)
        within = both & (depth[None, :] <= depth[:, None]) & (node == r[None, :])
    else:
        within = r[None, :] <= r[:, None]
    total = tl.sum(tl.where(within, log_decay[None, :], 0.0), 1)
    # Where j is no ancestor of i the difference has no bound: it is left out before exp.
    between = tl.where(within, tl.exp(tl.where(within, total[:, None] - total[None, :], 0.0)), 0.0)
    strict = within & (r[None, :] != r[:, None])
    system = tl.where(strict, alike * between * strength[:, None], 0.0)
    solved = tl.where(r[:, None] == r[None, :], 1.0, 0.0)
    for n in range(1, C):
        own = tl.sum(tl.where((r == n)[:, None], system, 0.0), 0)
        line = tl.where(r == n, 1.0, 0.0) - tl.sum(own[:, None] * solved, 0)
        solved = tl.where((r == n)[:, None], line[None, :], solved)
    square = ((chunk * HV + head) * C + r)[:, None] * C + r[None, :]
    tl.store(inverse + square, solved * strength[None, :])
    tl.store(inside + square, tied * between)
    tl.store(gc + row * HV + head, total, mask=real)


@triton.jit
def _step(
    tile, q, k, v, gc, inverse, inside, out, v_stride, out_stride, rows, chunk, head, key_head, column,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
    KC: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    # Corrections of a chunk's rows after the state at `tile`; their answers are stored. The state is taken in
    # slices of KC keys, which stay in the cache: as a whole it would not fit the registers beside the operands.
    r = tl.arange(0, C)
    row = chunk * C + r
    real = row < rows
    recalled = tl.zeros((C, BV), tl.float32)
    answer = tl.zeros((C, BV), tl.float32)
    for first in range(0, DK, KC):
        i = first + tl.arange(0, KC)
        at = (row * HK + key_head)[:, None] * DK + i[None, :]
        s = tl.load(tile + i[:, None] * DV + column[None, :])
        recalled += _product(tl.load(k + at, mask=real[:, None], other=0.0), s)
        answer += _product(tl.load(q + at, mask=real[:, None], other=0.0), s)
    total = tl.load(gc + row * HV + head, mask=real, other=0.0)
    faded = tl.exp(total)[:, None]
    place = row[:, None] * v_stride + head * DV + column[None, :]
    value = tl.load(v + place, mask=real[:, None], other=0.0).to(tl.float32)
    square = ((chunk * HV + head) * C + r)[:, None] * C + r[None, :]
    d = _product(tl.load(inverse + square), value - faded * recalled)
    answer = faded * answer + _product(tl.load(inside + square), d)
    place = row[:, None] * out_stride + head * DV + column[None, :]
    tl.store(out + place, to_bf16(answer), mask=real[:, None])
    return d, total


@triton.jit(do_not_specialize=["rows"])
def _prefill(
    state, q, k, v, gc, inverse, inside, out, v_stride, out_stride, rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
    KC: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    key_head = head // (HV // HK)
    r = tl.arange(0, C)
    column = tl.program_id(1) * BV + tl.arange(0, BV)
    tile = state + head * DK * DV
    for chunk in range(0, (rows + C - 1) // C):
        d, total = _step(
            tile, q, k, v, gc, inverse, inside, out, v_stride, out_stride, rows, chunk, head, key_head,
            column, HK, HV, DK, DV, BV, KC, C,
        )  # fmt: skip
        row = chunk * C + r
        real = row < rows
        last = tl.sum(tl.where(r == tl.minimum(rows - chunk * C, C) - 1, total, 0.0), 0)
        left = tl.where(real, tl.exp(tl.where(real, last - total, 0.0)), 0.0)
        # Every read of this chunk comes before a write, every write before a read of the next.
        tl.debug_barrier()
        for first in range(0, DK, KC):
            i = first + tl.arange(0, KC)
            at = (row * HK + key_head)[:, None] * DK + i[None, :]
            keys = tl.load(k + at, mask=real[:, None], other=0.0) * left[:, None]
            place = tile + i[:, None] * DV + column[None, :]
            tl.store(place, tl.load(place) * tl.exp(last) + _product(tl.trans(keys), d))
        tl.debug_barrier()


@triton.jit(do_not_specialize=["rows"])
def _walk_solved(
    state, q, k, v, g, gc, inverse, inside, u, out,
    old_count, old_rows, old_k, old_u, old_g, old_gc, v_stride, out_stride, rows,
    HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
    KC: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    key_head = head // (HV // HK)
    r = tl.arange(0, C)
    column = tl.program_id(1) * BV + tl.arange(0, BV)
    tile = state + head * DK * DV
    count = tl.load(old_count)
    if count > 0:
        for first in range(0, DK, KC):
            i = first + tl.arange(0, KC)
            place = tile + i[:, None] * DV + column[None, :]
            s = committed(
                tl.load(place), count, old_rows, old_k, old_u, old_g, old_gc, key_head, head, i, column,
                HK, HV, DK, DV, False,
            )  # fmt: skip
            tl.store(place, s)
        tl.debug_barrier()
    d, _ = _step(
        tile, q, k, v, gc, inverse, inside, out, v_stride, out_stride, rows, 0, head, key_head, column,
        HK, HV, DK, DV, BV, KC, C,
    )  # fmt: skip
    tl.store(u + (r * HV + head)[:, None] * DV + column[None, :], d, mask=(r < rows)[:, None])


_SOLVED = {name: "*fp32" for name in ("inverse", "inside")}
_HEADS = {"HK": 16, "HV": 48, "DK": 128, "KC": KEYS_AT_ONCE, "C": CHUNK}
_SOLVE_TYPES = WALK_TYPES | _SOLVED
GATE = Compiled(
    "gated_delta/triton_chunks.py",
    *(
        Variant(
            f"delta_solve_{'tree' if tree else 'chain'}_48_128",
            _solve,
            _SOLVE_TYPES,
            _HEADS | {"TREE": tree},
            warps=_WARPS,
        )
        for tree in (False, True)
    ),
    Variant(
        "delta_prefill_48_128",
        _prefill,
        _SOLVE_TYPES,
        _HEADS | {"DV": 128, "BV": _BLOCKS[0]},
        warps=_WARPS,
    ),
    Variant(
        "delta_walk_solved_48_128",
        _walk_solved,
        _SOLVE_TYPES,
        _HEADS | {"DV": 128, "BV": _BLOCKS[0]},
        warps=_WARPS,
        fusion=False,
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


@dataclass(frozen=True)
class Solved:
    """What `solve` leaves of a pass; one set serves all layers.

    inverse: float32 [chunks, Hv, 32, 32], (I + A)^-1 diag(beta); inside: the same shape, the masked products
    of queries and keys.
    """

    inverse: Tensor
    inside: Tensor

    @classmethod
    def empty(cls, *, rows: int, value_heads: int, device: torch.device | str) -> Solved:
        """Buffers for up to `rows` rows."""
        shape = (triton.cdiv(rows, CHUNK), value_heads, CHUNK, CHUNK)
        one, other = (torch.empty(shape, dtype=torch.float32, device=device) for _ in range(2))
        return cls(one, other)


def solve(
    q: Tensor,
    factors: DeltaFactors,
    beta: Tensor,
    solved: Solved,
    *,
    rows: int,
    paths: Tensor | None = None,
    depths: Tensor | None = None,
) -> None:
    """The system of every value head and chunk of 32 rows; factors.gc is written, per chunk or along each path.

    Args:
        q, factors.k: float32 [>= rows, Hk, dk] of `delta_operands`; factors.g, beta: float32 [>= rows, Hv].
        solved: of `Solved.empty` for at least these rows.
        paths, depths: of `paths_of`, for a tree of up to 32 rows; None for a chain of any length.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    _, key_heads, key_dim = require("q", q, torch.float32, (None, None, None)).shape
    _, value_heads = require("beta", beta, torch.float32, (None, None)).shape
    require("factors.k", factors.k, torch.float32, (None, key_heads, key_dim))
    for name, tensor in (("g", factors.g), ("gc", factors.gc)):
        require(f"factors.{name}", tensor, torch.float32, (None, value_heads))
    if key_dim < 16 or key_dim & (key_dim - 1) or value_heads % key_heads:
        raise ValueError(f"{value_heads} value heads and keys of {key_dim} do not fit the solve")
    if not 1 <= rows <= min(len(t) for t in (q, beta, factors.k, factors.g, factors.gc)):
        raise ValueError(f"the buffers do not hold {rows} rows")
    chunks = _require_solved(solved, rows, value_heads)
    require_tree(paths, depths, rows)
    require_device(q=q, k=factors.k, g=factors.g, beta=beta, solved=solved.inverse, paths=paths)
    unused = factors.gc
    _solve[(value_heads, chunks)](
        q, factors.k, factors.g, beta, factors.gc, solved.inverse, solved.inside,
        unused if paths is None else paths, unused if depths is None else depths, rows,
        key_heads, value_heads, key_dim, min(key_dim, KEYS_AT_ONCE), CHUNK, paths is not None,
        **launch_options(_WARPS),
    )  # fmt: skip


def prefill(
    state: Tensor,
    q: Tensor,
    factors: DeltaFactors,
    v: Tensor,
    solved: Solved,
    out: Tensor,
    *,
    rows: int,
) -> None:
    """out = the recurrence's answers for a prompt chunk after `solve` of the same rows; the state is advanced.

    Args:
        state: float32 [Hv, dk, dv], updated in place; nothing may be pending.
        q, factors.k: float32 [>= rows, Hk, dk]; factors.gc: float32 [>= rows, Hv].
        v, out: bf16 [>= rows, Hv * dv], unit column strides.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    value_heads, key_dim, value_dim = require(
        "state", state, torch.float32, (None, None, None)
    ).shape
    _, key_heads, _ = require("q", q, torch.float32, (None, None, key_dim)).shape
    require("factors.k", factors.k, torch.float32, (None, key_heads, key_dim))
    require("factors.gc", factors.gc, torch.float32, (None, value_heads))
    if not 1 <= rows <= min(len(t) for t in (q, factors.k, factors.gc)):
        raise ValueError(f"the buffers do not hold {rows} rows")
    _require_solved(solved, rows, value_heads)
    strides = [
        require_rows(name, t, torch.bfloat16, rows, value_heads * value_dim)
        for name, t in (("v", v), ("out", out))
    ]
    if rows * max(strides) >= 1 << 31:
        raise ValueError(
            f"{rows} rows span {rows * max(strides)} elements, the kernel counts to 2^31"
        )
    require_device(state=state, q=q, k=factors.k, v=v, solved=solved.inverse, out=out)
    block = _value_block(value_dim)
    _prefill[(value_heads, value_dim // block)](
        state, q, factors.k, v, factors.gc, solved.inverse, solved.inside, out, *strides, rows,
        key_heads, value_heads, key_dim, value_dim, block, min(key_dim, KEYS_AT_ONCE), CHUNK,
        **launch_options(_WARPS),
    )  # fmt: skip


def walk_solved(one: DeltaPass, solved: Solved) -> None:
    """The recurrence's answers for a verify pass of up to 32 rows after `solve` of them, chain or tree.

    Accepted rows of the pass before are first committed as one low-rank update and the state written back; it
    is not advanced by this pass. The time does not grow with the rows.

    Raises:
        ValueError: an operand differs from that or from `DeltaPass`; nothing was launched.
    """
    sizes, strides = one.checked()
    if one.rows > CHUNK:
        raise ValueError(f"a verify pass has 1 to {CHUNK} rows, got {one.rows}")
    _require_solved(solved, one.rows, sizes.value_heads)
    block, own = _value_block(sizes.value_dim), one.factors
    _walk_solved[(sizes.value_heads, sizes.value_dim // block)](
        one.state, one.q, own.k, one.v, own.g, own.gc, solved.inverse, solved.inside, own.u, one.out,
        *one.pending, *strides, one.rows, *sizes, block, min(sizes.key_dim, KEYS_AT_ONCE), CHUNK,
        **launch_options(_WARPS, fusion=False),
    )  # fmt: skip


def _value_block(value_dim: int) -> int:
    for block in _BLOCKS:
        if value_dim % block == 0:
            return block
    raise ValueError(f"the value dimension must be a multiple of {_BLOCKS[-1]}, got {value_dim}")


def _require_solved(solved: Solved, rows: int, value_heads: int) -> int:
    chunks = triton.cdiv(rows, CHUNK)
    for name, tensor in (("inverse", solved.inverse), ("inside", solved.inside)):
        require(f"solved.{name}", tensor, torch.float32, (None, value_heads, CHUNK, CHUNK))
        if len(tensor) < chunks:
            raise ValueError(f"solved.{name} must hold {chunks} chunks, got {len(tensor)}")
    return chunks
