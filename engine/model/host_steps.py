# SPDX-License-Identifier: MIT OR Apache-2.0
"""The slower second way of norms, products and attention: PyTorch operations between native steps.

Every function returns the work of one step as a callable over static buffers. Results differ from the kernels'
in the order and the rounding of sums alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from kernels.cpu.expand import expand
from kernels.cpu.product import TILE_ROWS, PackedLinear
from kernels.gated_delta.buffers import Pending
from kernels.kv_cache.native import KvCache
from kernels.rms_norm import reference as norms
from kernels.rope.reference import apply_rope

_EXPANDED_TILES = 128  # at a time, so that an expanded weight stays small

HostCall = Callable[[], None]


def host_norm(x: Tensor, scale: Tensor, out: Tensor, eps: float, rows: int) -> HostCall:
    """out[:rows] = the RMS norm of x[:rows] times `scale`; shapes as in `kernels.rms_norm.native`."""

    @torch.inference_mode()
    def call() -> None:
        out[:rows] = norms.rms_norm(x[:rows], scale, eps, zero_centred=False)

    return call


def host_product(packed: PackedLinear, x: Tensor, out: Tensor, rows: int, columns: int) -> HostCall:
    """out[:rows, :columns] = x[:rows] times the expanded weight; shapes as in `kernels.cpu.product.linear`."""

    @torch.inference_mode()
    def call() -> None:
        wide = x[:rows, : packed.k].float()
        done = 0
        for first in range(0, packed.tiles, _EXPANDED_TILES):
            end = min(first + _EXPANDED_TILES, packed.tiles)
            sums = wide @ expand(packed, first, end).t()
            if packed.interleaved:
                gate, up = sums.view(rows, -1, 2, TILE_ROWS).to(torch.bfloat16).unbind(2)
                gate, up = gate.reshape(rows, -1), up.reshape(rows, -1)
                sums = functional.silu(gate.float()).to(torch.bfloat16) * up
            taken = min(sums.shape[1], columns - done)
            out[:rows, done : done + taken] = sums[:, :taken]
            done += taken
            if done == columns:
                return

    return call


def host_attention(
    *,
    q: Tensor,
    cache: KvCache,
    start: Tensor,
    out: Tensor,
    scale: float,
    rows: int,
    gated: Tensor | None = None,
    parents: Tensor | None = None,
) -> HostCall:
    """Causal attention through the library's scaled dot product; shapes as in `kernels.attention.native`."""
    heads, dim = q.shape[1], cache.dim

    @torch.inference_mode()
    def call() -> None:
        first = int(start)
        keys, values = cache.read(first + rows)
        seen = torch.ones(rows, first + rows, dtype=torch.bool)
        seen[:, first:] = _own_past(rows, parents)
        result = functional.scaled_dot_product_attention(
            q[:rows].float().transpose(0, 1)[None],
            keys.float().transpose(0, 1)[None],
            values.float().transpose(0, 1)[None],
            attn_mask=seen,
            scale=scale,
            enable_gqa=True,
        )[0].transpose(0, 1)
        result = result.to(torch.bfloat16)
        if gated is not None:
            gate = gated[:rows, : 2 * heads * dim].reshape(rows, heads, 2 * dim)[..., dim:]
            result = result * gate.float().sigmoid().to(torch.bfloat16)
        out[:rows, : heads * dim] = result.reshape(rows, -1)

    return call


def host_attention_prepare(
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_scale: Tensor,
    k_scale: Tensor,
    table: Tensor,
    cache: KvCache,
    start: Tensor,
    q_out: Tensor,
    eps: float,
    rows: int,
    pending: Pending | None = None,
    parents: Tensor | None = None,
) -> HostCall:
    """Head norms, rotary embedding and KV append; operands as in `kernels.rope.native.attention_prepare`."""
    heads, dim = q_out.shape[1], cache.dim
    half = table.shape[1] // 2

    @torch.inference_mode()
    def call() -> None:
        first = int(start)
        _move_pending(cache, first, pending)
        if not rows:
            return
        query = q[:rows, : 2 * heads * dim].reshape(rows, heads, 2 * dim)[..., :dim]
        key = k[:rows, : cache.heads * dim].reshape(rows, cache.heads, dim)
        depths = torch.arange(rows) if parents is None else _own_past(rows, parents).sum(1) - 1
        angles = table[first + depths]
        cos, sin = (torch.cat((part, part), -1) for part in (angles[:, :half], angles[:, half:]))
        query = norms.rms_norm(query, q_scale, eps, zero_centred=False)
        key = norms.rms_norm(key, k_scale, eps, zero_centred=False)
        q_out[:rows] = apply_rope(query, cos, sin)
        value = v[:rows, : cache.heads * dim].reshape(rows, cache.heads, dim)
        cache.write(first, apply_rope(key, cos, sin), value)

    return call


def own_past(parents: list[int]) -> Tensor:
    """Which rows of a tree each row descends from, itself included: bool [rows, rows]."""
    seen = torch.eye(len(parents), dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent >= 0:
            seen[row] |= seen[parent]
    return seen


def _own_past(rows: int, parents: Tensor | None) -> Tensor:
    if parents is None:
        return torch.ones(rows, rows, dtype=torch.bool).tril()
    return own_past(parents[:rows].tolist())


def _move_pending(cache: KvCache, first: int, pending: Pending | None) -> None:
    """Accepted rows of the previous pass to the end of the committed positions."""
    count = 0 if pending is None else int(pending.count)
    if not count:
        return
    assert pending is not None
    base = first - count
    cache.move(base, pending.rows[:count].long() + base)
