# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable causal attention with grouped key and value heads."""

from __future__ import annotations

import torch
from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor, first_position: int, scale: float) -> Tensor:
    """Attend from T new rows to L stored positions.

    Row t sees positions 0 .. first_position + t. Scores, softmax and the weighted sum run in
    float32 with one rounding at the end. Query head h reads key head h // (Hq / Hkv).

    Args:
        q: [T, Hq, D].
        k, v: [L, Hkv, D] with L >= first_position + T.
        first_position: position of q's first row.
        scale: factor on the scores, D^-0.5 in this family.

    Returns:
        [T, Hq, D] in q's dtype.

    Raises:
        ValueError: the head counts do not divide, or rows lie beyond the stored positions.
    """
    rows, query_heads, _ = q.shape
    length, key_heads, _ = k.shape
    if query_heads % key_heads:
        raise ValueError(f"{query_heads} query heads do not divide into {key_heads} key heads")
    if first_position < 0 or first_position + rows > length:
        raise ValueError(f"rows {first_position}+{rows} lie beyond {length} stored positions")
    group = query_heads // key_heads
    keys = k.float().repeat_interleave(group, dim=1)
    values = v.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("thd,lhd->htl", q.float(), keys) * scale
    last_seen = first_position + torch.arange(rows, device=q.device)
    hidden = torch.arange(length, device=q.device)[None, :] > last_seen[:, None]
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("htl,lhd->thd", weights, values).to(q.dtype)
