# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable attention of a draft block: to everything in the window and to every row of the block itself."""

from __future__ import annotations

import torch
from torch import Tensor


def block_attention(q: Tensor, k: Tensor, v: Tensor, *, window: int, scale: float) -> Tensor:
    """Attend from the R rows of a block, the last R of L stored positions, without a causal mask.

    The row at position p sees position i when p - i < window. Scores, softmax and the weighted sum run in
    float32 with one rounding at the end. Query head h reads key head h // (Hq / Hkv).

    Args:
        q: [R, Hq, D].
        k, v: [L, Hkv, D] with L >= R; a context of L - R positions, then the block.
        window: positions a row looks back, itself included; at least 1.
        scale: factor on the scores.

    Returns:
        [R, Hq, D] in q's dtype.

    Raises:
        ValueError: the head counts do not divide, or there are more rows than positions.
    """
    rows, query_heads, _ = q.shape
    length, key_heads, _ = k.shape
    if query_heads % key_heads:
        raise ValueError(f"{query_heads} query heads do not divide into {key_heads} key heads")
    if not 1 <= rows <= length or window < 1:
        raise ValueError(f"{rows} rows, a window of {window} and {length} positions do not fit")
    group = query_heads // key_heads
    keys = k.float().repeat_interleave(group, dim=1)
    values = v.float().repeat_interleave(group, dim=1)
    scores = torch.einsum("rhd,lhd->hrl", q.float(), keys) * scale
    back = torch.arange(length - rows, length)[:, None] - torch.arange(length)
    weights = scores.masked_fill(back >= window, float("-inf")).softmax(-1)
    return torch.einsum("hrl,lhd->rhd", weights, values).to(q.dtype)
