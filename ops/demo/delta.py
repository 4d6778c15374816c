# SPDX-License-Identifier: MIT OR Apache-2.0
"""Batched, differentiable chunked gated delta rule for training from an empty state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class UnitLowerInverse(torch.autograd.Function):
    """Inverse of I + L for strictly lower L [..., C, C] by forward substitution."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor) -> Tensor:
        identity = torch.eye(lower.shape[-1], dtype=lower.dtype).expand_as(lower)
        inverse = torch.linalg.solve_triangular(lower, identity, upper=False, unitriangular=True)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (inverse,) = ctx.saved_tensors
        turned = inverse.mT
        return -(turned @ grad @ turned).tril(-1)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int) -> Tensor:
    """Outputs of the gated delta rule from a zero state, one key head shared by all value heads.

    The same mathematics as `kernels.gated_delta.reference.gated_delta_chunked`; the products of
    keys are formed once and shared by the value heads.

    Args:
        q, k: float32 [B, T, dk], already normalised, q scaled; T a multiple of chunk.
        v: float32 [B, T, H, dv]; g, beta: float32 [B, T, H].

    Returns:
        float32 [B, T, H, dv].
    """
    batch, tokens, heads, value_dim = v.shape
    count, key_dim = tokens // chunk, q.shape[-1]
    q, k = (x.view(batch, count, 1, chunk, key_dim) for x in (q, k))
    v = v.view(batch, count, chunk, heads, value_dim).transpose(2, 3)
    g, beta = (x.view(batch, count, chunk, heads).transpose(2, 3) for x in (g, beta))
    total = g.cumsum(-1)
    mask = torch.ones(chunk, chunk, dtype=torch.bool).triu(1)
    between = (total[..., :, None] - total[..., None, :]).masked_fill(mask, -1e9).exp()
    lower = (k @ k.mT * between * beta[..., :, None]).tril(-1)
    inverse = UnitLowerInverse.apply(lower) * beta[..., None, :]
    inside = q @ k.mT * between
    fresh = inverse @ v
    if count == 1:
        return (inside @ fresh).transpose(2, 3).reshape(batch, tokens, heads, value_dim)
    grown = total.exp()[..., None]
    recall = inverse @ (k * grown)
    asking = q * grown
    left = (k * (total[..., -1:] - total).exp()[..., None]).mT
    carried = total[..., -1].exp()[..., None, None]
    state = left[:, 0] @ fresh[:, 0]
    outputs = [inside[:, 0] @ fresh[:, 0]]
    for i in range(1, count):
        correction = fresh[:, i] - recall[:, i] @ state
        outputs.append(asking[:, i] @ state + inside[:, i] @ correction)
        if i + 1 < count:
            state = state * carried[:, i] + left[:, i] @ correction
    return torch.stack(outputs, 1).transpose(2, 3).reshape(batch, tokens, heads, value_dim)
