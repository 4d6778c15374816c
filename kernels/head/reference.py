# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable language-model head: logits, deterministic argmax and ordered top k."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def head_logits(x: Tensor, weight: Tensor) -> Tensor:
    """Logits of every vocabulary row in float32: x [..., K], weight [V, K] -> [..., V]."""
    return functional.linear(x.float(), weight.float())


def argmax_lowest(logits: Tensor) -> Tensor:
    """Index of the largest logit along the last axis; ties go to the lowest index.

    Args:
        logits: [..., V].

    Returns:
        int64 [...].

    Raises:
        ValueError: a logit is NaN, so no order exists.
    """
    _refuse_nan(logits)
    vocabulary = logits.shape[-1]
    index = torch.arange(vocabulary, device=logits.device)
    best = logits == logits.amax(-1, keepdim=True)
    return torch.where(best, index, vocabulary).amin(-1)


def top_k(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest logits in order of value descending, then index ascending.

    Args:
        logits: [..., V]; k in 1..V.

    Returns:
        (values [..., k] in the logits' dtype, indices int64 [..., k]).

    Raises:
        ValueError: k is out of range, or a logit is NaN.
    """
    if not 1 <= k <= logits.shape[-1]:
        raise ValueError(f"k must lie in 1..{logits.shape[-1]}, got {k}")
    _refuse_nan(logits)
    values, indices = torch.sort(logits, dim=-1, descending=True, stable=True)
    return values[..., :k], indices[..., :k]


def _refuse_nan(logits: Tensor) -> None:
    if torch.isnan(logits).any():
        raise ValueError("logits contain NaN; the forward pass produced no valid order")
