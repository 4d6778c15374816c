# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention on a GPU: one decode and verify kernel over the cache.

`attend(q, keys, values, out, start, paths, depths, work, ...)` for 1 to 32 rows, chain or tree; prefill.py has
longer chunks. Twin `reference.attention`.

The order of a row's sum depends on its position alone. Positions are cut into chunks whose ends are fixed for
good (`chunk_bounds`: 512 positions each up to 16,384, then 16 chunks for every doubling), never by the length,
the batch or the device. A chunk is taken in blocks of 32 positions and leaves (maximum, sum, weighted values);
a second launch joins the chunks in order. Rows of this pass are read at the place they have on each row's own
path, so a tree node has the bits of plain decoding. Lengths are read on the device: a captured launch serves
every length up to its class.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.tree_paths.reference import MAX_NODES
from kernels.triton_build import Compiled, Variant, launch_options
from kernels.triton_math import dot_bf16, sigmoid, to_bf16
from kernels.triton_operands import power_of_two, require, require_device, require_rows

FIRST_CHUNK = 512
EVEN_CHUNKS = 32
DOUBLING_CHUNKS = 16
_FIRST = tl.constexpr(FIRST_CHUNK)
_EVEN = tl.constexpr(EVEN_CHUNKS)
_DOUBLING = tl.constexpr(DOUBLING_CHUNKS)
_ROWS_AT_ONCE = 32
_POSITIONS_AT_ONCE = 32
_LOWEST = tl.constexpr(-1.0e30)
_LOG2_E = 1.4426950408889634
_WARPS = 4


@triton.jit
def _chunk_begin(chunk):
    octave = tl.maximum(chunk - _EVEN, 0) // _DOUBLING
    base = (_FIRST * _EVEN) << octave
    size = (_FIRST * _EVEN // _DOUBLING) << octave
    later = base + (chunk - _EVEN - octave * _DOUBLING) * size
    return tl.where(chunk < _EVEN, chunk * _FIRST, later)


@triton.jit
def _block(q, k, v, seen, m, total, acc, scale):
    # One block of positions into the running softmax; `seen` is [rows, positions]. Nothing seen changes
    # nothing. Both loops leave the same bits: where a product and a sum could be one operation, they are.
    scores = tl.where(seen, dot_bf16(q, k) * scale, _LOWEST)
    new_m = tl.maximum(m, tl.max(scores, 1))
    p = tl.where(seen, tl.exp2(scores - new_m[:, None]), 0.0)
    fade = tl.exp2(m - new_m)
    total = tl.fma(total, fade, tl.sum(p, 1))
    acc = acc * fade[:, None] + dot_bf16(to_bf16(p), v)
    return new_m, total, acc


@triton.jit(do_not_specialize=["rows"])
def _attend(
    q, keys, values, start, paths, depths, part_m, part_total, part_acc, scale, rows, capacity,
    HQ: tl.constexpr, HKV: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, NODES: tl.constexpr,
):  # fmt: skip
    first = tl.load(start)
    chunk = tl.program_id(2)
    begin = _chunk_begin(chunk)
    if begin >= first + rows:
        return
    end = tl.minimum(_chunk_begin(chunk + 1), capacity)
    group: tl.constexpr = HQ // HKV
    key_head = tl.program_id(1)
    flat = tl.program_id(0) * BM + tl.arange(0, BM)
    row = flat // group
    head = key_head * group + flat % group
    real = row < rows
    i = tl.arange(0, BD)
    column = tl.arange(0, BN)
    inside = i < D
    at = (row * HQ + head)[:, None] * D + i[None, :]
    queries = tl.load(q + at, mask=real[:, None] & inside[None, :], other=0.0)
    keys += key_head.to(tl.int64) * capacity * D
    values += key_head.to(tl.int64) * capacity * D

    m = tl.full((BM,), _LOWEST, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)

    shared_end = tl.maximum(begin, tl.minimum(end, first // BN * BN))
    for position in range(begin, shared_end, BN):
        slot = position + column
        k = tl.load(keys + slot[None, :] * D + i[:, None], mask=inside[:, None], other=0.0)
        v = tl.load(values + slot[:, None] * D + i[None, :], mask=inside[None, :], other=0.0)
        seen = (row >= 0)[:, None] & (column >= 0)[None, :]
        m, total, acc = _block(queries, k, v, seen, m, total, acc, scale)

    # From here on a row has its own past: the block is read once for every row of the group.
    own_end = tl.minimum(end, first + rows)
    first_row = tl.program_id(0) * BM // group
    end_row = tl.minimum((tl.program_id(0) * BM + BM - 1) // group + 1, rows)
    for position in range(shared_end, own_end, BN):
        for node in range(first_row, end_row):
            level = position + column - first
            depth = tl.load(depths + node)
            past = level <= depth
            on_path = tl.load(paths + node * NODES + level, mask=past & (level >= 0), other=0)
            slot = tl.where(level < 0, position + column, first + on_path)
            past = past & (slot < capacity)
            k = tl.load(
                keys + slot[None, :] * D + i[:, None],
                mask=past[None, :] & inside[:, None],
                other=0.0,
            )
            v = tl.load(
                values + slot[:, None] * D + i[None, :],
                mask=past[:, None] & inside[None, :],
                other=0.0,
            )
            seen = (row == node)[:, None] & past[None, :]
            m, total, acc = _block(queries, k, v, seen, m, total, acc, scale)

    part = (chunk * rows + row).to(tl.int64) * HQ + head
    tl.store(part_m + part, m, mask=real)
    tl.store(part_total + part, total, mask=real)
    tl.store(part_acc + part[:, None] * D + i[None, :], acc, mask=real[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["rows"])
def _join(
    part_m, part_total, part_acc, gated, out, start, depths, gated_stride, out_stride, rows, capacity,
    HQ: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    head = tl.program_id(1)
    i = tl.arange(0, BD)
    inside = i < D
    first = tl.load(start)
    # Of a row past the cache there are fewer chunks than its position would have.
    last = tl.minimum(first + tl.load(depths + row), capacity - 1)
    m = tl.full((1,), _LOWEST, tl.float32)
    total = tl.zeros((1,), tl.float32)
    acc = tl.zeros((BD,), tl.float32)
    chunk = 0
    while _chunk_begin(chunk) <= last:
        part = (chunk * rows + row).to(tl.int64) * HQ + head
        part_max = tl.load(part_m + part)
        new_m = tl.maximum(m, part_max)
        old, new = tl.exp2(m - new_m), tl.exp2(part_max - new_m)
        total = total * old + tl.load(part_total + part) * new
        acc = acc * old + tl.load(part_acc + part * D + i, mask=inside, other=0.0) * new
        m = new_m
        chunk += 1
    # A row past the cache has lost part of its own past: it must not look like an answer.
    y = to_bf16(tl.where(first + row < capacity, acc / total, float("nan")))
    if GATED:
        at = gated + row * gated_stride + head * 2 * D + D + i
        gate = to_bf16(sigmoid(tl.load(at, mask=inside, other=0.0).to(tl.float32)))
        y = to_bf16(y.to(tl.float32) * gate.to(tl.float32))
    tl.store(out + row * out_stride + head * D + i, y, mask=inside)


_PARTS = {
    "part_m": "*fp32",
    "part_total": "*fp32",
    "part_acc": "*fp32",
    "start": "*i32",
    "depths": "*i32",
}
GATE = Compiled(
    "attention/triton.py",
    Variant(
        "attend_24_4_256",
        _attend,
        _PARTS
        | {"q": "*bf16", "keys": "*bf16", "values": "*bf16", "paths": "*i32", "scale": "fp32"}
        | {"rows": "i32", "capacity": "i32:16"},
        {"HQ": 24, "HKV": 4, "D": 256, "BM": _ROWS_AT_ONCE, "BN": _POSITIONS_AT_ONCE, "BD": 256}
        | {"NODES": MAX_NODES},
        warps=_WARPS,
        stages=2,
    ),
    Variant(
        "attend_join_24_256",
        _join,
        _PARTS
        | {"gated": "*bf16", "out": "*bf16", "gated_stride": "i32:16", "out_stride": "i32:16"}
        | {"rows": "i32", "capacity": "i32:16"},
        {"HQ": 24, "D": 256, "BD": 256, "GATED": True},
        warps=1,
    ),
)
entries, cubins, shared_bytes = GATE.entries, GATE.cubins, GATE.shared_bytes


def chunk_bounds(length: int) -> list[tuple[int, int]]:
    """The chunks that hold positions 0 .. length - 1; their ends do not depend on the length."""
    bounds: list[tuple[int, int]] = []
    begin = 0
    while begin < length:
        octave = max(len(bounds) - EVEN_CHUNKS, 0) // DOUBLING_CHUNKS
        even = len(bounds) < EVEN_CHUNKS
        size = FIRST_CHUNK if even else (FIRST_CHUNK * EVEN_CHUNKS // DOUBLING_CHUNKS) << octave
        bounds.append((begin, begin + size))
        begin += size
    return bounds


@dataclass(frozen=True)
class AttentionWork:
    """What the chunks leave for the launch that joins them; one set serves all layers.

    m, total: float32 [chunks * rows * Hq]; acc: float32 [chunks * rows * Hq * D].
    """

    m: Tensor
    total: Tensor
    acc: Tensor

    @classmethod
    def empty(
        cls, *, rows: int, heads: int, dim: int, longest: int, device: torch.device | str
    ) -> AttentionWork:
        """Buffers for up to `rows` rows whose last position lies below `longest`."""
        parts = len(chunk_bounds(longest)) * rows * heads
        m, total = (torch.empty(parts, dtype=torch.float32, device=device) for _ in range(2))
        return cls(m, total, torch.empty(parts * dim, dtype=torch.float32, device=device))


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    start: Tensor,
    paths: Tensor,
    depths: Tensor,
    work: AttentionWork,
    *,
    scale: float,
    rows: int,
    longest: int,
    gated: Tensor | None = None,
) -> None:
    """out = softmax(scale q k^T) v over each row's past, then round(out) * round(sigmoid(gate)).

    Row t sees positions 0 .. start - 1 and the rows on its path. A row at a position past `longest` or the
    cache gives an answer that is not defined, or NaN; the caller picks the class and `rope.triton` reports the
    cache.

    Args:
        q: bf16 [>= rows, Hq, D], contiguous, of `attention_prepare`.
        keys, values: bf16 [Hkv, capacity, D], contiguous, with this pass's rows at start + row.
        out: bf16 [>= rows, Hq * D], unit column stride.
        start: int32 [1], committed positions; paths, depths: of `paths_of`, a chain's as well. Read on the
            device.
        work: of `AttentionWork.empty` for these rows and `longest`.
        rows: 1 to 32; longest: positions that a captured launch has to serve; never part of the arithmetic.
        gated: the query projection, bf16 [>= rows, Hq * 2D] with the gate in each head's second half, or None.

    Raises:
        ValueError: an operand differs from the above; nothing was launched.
    """
    held, query_heads, dim = require("q", q, torch.bfloat16, (None, None, None)).shape
    heads, capacity, _ = require("keys", keys, torch.bfloat16, (None, None, dim)).shape
    require("values", values, torch.bfloat16, (heads, capacity, dim))
    if not 1 <= rows <= min(MAX_NODES, held):
        raise ValueError(f"rows must lie in 1..{min(MAX_NODES, held)}, got {rows}")
    if query_heads % heads:
        raise ValueError(f"{query_heads} query heads do not divide into {heads} key heads")
    if dim < 16 or dim > 256:
        raise ValueError(f"the head dimension must lie in 16..256, got {dim}")
    if not rows <= longest <= capacity:
        raise ValueError(f"longest must lie in {rows}..{capacity}, got {longest}")
    out_stride = require_rows("out", out, torch.bfloat16, rows, query_heads * dim)
    gated_stride = 0
    if gated is not None:
        gated_stride = require_rows("gated", gated, torch.bfloat16, rows, query_heads * 2 * dim)
    require("start", start, torch.int32, (1,))
    require("paths", paths, torch.int32, (MAX_NODES, MAX_NODES))
    require("depths", depths, torch.int32, (MAX_NODES,))
    chunks = len(chunk_bounds(longest))
    for name, tensor, size in (("m", work.m, 1), ("total", work.total, 1), ("acc", work.acc, dim)):
        require(f"work.{name}", tensor, torch.float32, (None,))
        if tensor.numel() < chunks * rows * query_heads * size:
            raise ValueError(f"work.{name} is too small for {rows} rows and {longest} positions")
    require_device(q=q, keys=keys, values=values, out=out, start=start, paths=paths, work=work.m)
    block = power_of_two(dim)
    groups = triton.cdiv(rows * (query_heads // heads), _ROWS_AT_ONCE)
    _attend[(groups, heads, chunks)](
        q, keys, values, start, paths, depths, work.m, work.total, work.acc, scale * _LOG2_E, rows,
        capacity, query_heads, heads, dim, _ROWS_AT_ONCE, _POSITIONS_AT_ONCE, block, MAX_NODES,
        **launch_options(_WARPS, 2),
    )  # fmt: skip
    _join[(rows, query_heads)](
        work.m, work.total, work.acc, out if gated is None else gated, out, start, depths,
        gated_stride, out_stride, rows, capacity, query_heads, dim, block, gated is not None,
        **launch_options(1),
    )  # fmt: skip
