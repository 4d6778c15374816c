# SPDX-License-Identifier: MIT OR Apache-2.0
"""Attention of a prompt chunk by PyTorch's fused kernels; twin `reference.attention`."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

# Not cuDNN's, which PyTorch may prefer: it makes a plan for each length, and every chunk has another.
_WAYS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


@functools.cache
def causal_bias() -> Callable:
    """PyTorch's `causal_lower_right`. Its module imports the compiler, a second that only a GPU has use for."""
    from torch.nn.attention.bias import causal_lower_right

    return causal_lower_right


def attend_prefill(
    q: Tensor, keys: Tensor, values: Tensor, *, first: int, scale: float | None = None
) -> Tensor:
    """[T, Hq, D] in q's dtype: row t attends to the positions 0 .. first + t.

    Its order of sums is the library's, so a chunk's bits may depend on its length.

    Args:
        q: [T, Hq, D]; keys, values: [Hkv, capacity, D] of its dtype, the chunk's rows at first and behind.
        first: positions before the chunk, known on the host.
        scale: of the scores; None takes 1 / sqrt(D).

    Raises:
        ValueError: the chunk lies beyond the cache, or the heads do not divide.
    """
    rows, query_heads, _ = q.shape
    heads, capacity, _ = keys.shape
    length = first + rows
    if first < 0 or length > capacity or query_heads % heads:
        raise ValueError(
            f"{rows} rows of {query_heads} heads at {first} do not fit {capacity} positions of"
            f" {heads} heads"
        )
    # Told its size behind its making, which would allocate 8 bytes on the host for every score.
    seen = causal_bias()(1, 1)
    seen.seq_len_q, seen.seq_len_kv = rows, length
    with sdpa_kernel(_WAYS):
        attended = scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[None, :, :length],
            values[None, :, :length],
            attn_mask=seen,
            scale=scale,
            enable_gqa=True,
        )
    return attended[0].transpose(0, 1)
