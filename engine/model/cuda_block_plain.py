# SPDX-License-Identifier: MIT OR Apache-2.0
"""Operations that a block drafter alone has, in PyTorch over static buffers: a graph can hold them.

Nothing is read on the host. Rows behind those asked for are garbage that no row before them reads. Twins:
kernels/block_attention/reference.py and kernels/block_conv/reference.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.model.cuda_arena import KvPair
from kernels.rms_norm.reference import rms_norm
from kernels.rope.reference import apply_rope


def rotated(x: Tensor, norm: Tensor, rope: Tensor, positions: Tensor, eps: float) -> Tensor:
    """Head norms and the rotary embedding of x [R, H, D]; positions: int64 [R]."""
    halves = rope.index_select(0, positions).chunk(2, -1)
    cos, sin = (half.repeat(1, 2) for half in halves)
    return apply_rope(rms_norm(x, norm, eps), cos, sin)


def append(cache: KvPair, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Rows [R, Hkv, D] into the cache at `slots`, int64 [R]."""
    cache.keys.index_copy_(1, slots, keys.transpose(0, 1))
    cache.values.index_copy_(1, slots, values.transpose(0, 1))


def attend(
    query: Tensor, cache: KvPair, *, start: Tensor, first: Tensor, rows: int, window: int
) -> Tensor:
    """[R, Hq * D]: every row of a block over what it sees: its window, and all rows of the block.

    query: bf16 [R, Hq, D], R at least `rows`; start, first: int32 [1], where the block and the kept context
    begin. Only the positions that some window can reach are read, wherever the block stands.
    """
    kv_heads, held, dim = cache.keys.shape
    count = len(query)
    span = min(window + rows, held)
    back = torch.arange(span, device=query.device)
    place = start + rows - span + back
    live = (place >= first) & (place >= 0)
    at = place.clamp(0, held - 1).long()
    keys = cache.keys.index_select(1, at).float()
    # What is not live may be no number: 0 times it would not be 0.
    values = cache.values.index_select(1, at).float().masked_fill(~live[:, None], 0.0)
    own = start + torch.arange(count, device=query.device)
    seen = live & (own[:, None] - place < window)
    wide = query.float().view(count, kv_heads, -1, dim)
    scores = torch.einsum("rhgd,hld->hgrl", wide, keys) * dim**-0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    mixed = torch.einsum("hgrl,hld->rhgd", weights, values)
    return mixed.reshape(count, -1).to(query.dtype)


def convolve(x: Tensor, base: Tensor, dynamic: Tensor, out: Tensor) -> None:
    """out [R, C] = sum over taps of (base [taps, C] + dynamic [R, taps, groups]) times the rows before of x."""
    channels, groups = x.shape[1], dynamic.shape[2]
    factor = base + dynamic.float().repeat_interleave(channels // groups, -1)
    wide = x.float()
    total = factor[:, 0] * wide
    for tap in range(1, len(base)):
        total[tap:] += factor[tap:, tap] * wide[:-tap]
    out.copy_(total)


def candidates(logits: Tensor, ids: Tensor, values: Tensor) -> None:
    """ids int32 [R, K], values float32 [R, K] = the likeliest tokens of logits [R, V]; -1 and NaN for a NaN."""
    broken = logits.isnan().any(-1, keepdim=True)
    found, tokens = logits.masked_fill(broken, 0.0).topk(ids.shape[1], -1)
    ids.copy_(tokens.masked_fill(broken, -1))
    values.copy_(found.masked_fill(broken, torch.nan))
