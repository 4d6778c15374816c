# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable mixture of experts of the Qwen3.5 family.

Source: Qwen3_5MoeTopKRouter, Qwen3_5MoeExperts and Qwen3_5MoeSparseMoeBlock of transformers 5.23. The experts'
outputs are accumulated in bf16, expert after expert.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def route(logits: Tensor, top_k: int, dtype: torch.dtype = torch.bfloat16) -> tuple[Tensor, Tensor]:
    """(experts int32 [R, k] best first, weights [R, k] in `dtype`) of router logits [R, E].

    Softmax over all experts in float32; the k largest logits, of equals the lower expert (logits that differ
    may have equal shares); their shares divided by the sum of these, then rounded. A row whose softmax is no
    number gets the experts 0..k-1 and NaN.
    """
    wide = logits.float()
    shares = torch.softmax(wide, -1)
    order = wide.argsort(stable=True, descending=True)[:, :top_k]
    broken = shares.isnan().any(-1, keepdim=True)
    order = torch.where(broken, torch.arange(top_k), order)
    chosen = shares.gather(-1, order)
    weights = chosen / chosen.sum(-1, keepdim=True)
    return order.int(), weights.masked_fill(broken, torch.nan).to(dtype)


def experts(x: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """[R, k, H], the unweighted output of every chosen expert, in x's dtype.

    Args:
        x: [R, H]; chosen: int [R, k].
        gate_up: float32 [E, 2 * I, H], the rows of gate first; down: float32 [E, H, I].
    """
    out = torch.empty(*chosen.shape, down.shape[1], dtype=x.dtype)
    for expert in chosen.unique().tolist():
        rows, slots = (chosen == expert).nonzero(as_tuple=True)
        both = functional.linear(x[rows].float(), gate_up[expert]).to(x.dtype)
        gate, up = both.chunk(2, -1)
        hidden = functional.silu(gate) * up
        out[rows, slots] = functional.linear(hidden.float(), down[expert]).to(x.dtype)
    return out


def combine(
    y: Tensor,
    chosen: Tensor,
    weights: Tensor,
    shared: Tensor | None = None,
    shared_gate: Tensor | None = None,
) -> Tensor:
    """[R, H]: sum of weights * y in ascending expert order, plus sigmoid(shared_gate) * shared.

    Every product and every sum is rounded to y's dtype, the sums one after the other from zero.

    Args:
        y: [R, k, H]; chosen: int [R, k]; weights: [R, k], in y's dtype.
        shared: [R, H], None without a shared expert; shared_gate: [R, 1] before its sigmoid, None for factor 1.
    """
    order = chosen.argsort(-1)
    weighted = y * weights.unsqueeze(-1)
    out = torch.zeros_like(y[:, 0])
    rows = torch.arange(len(y))
    for place in range(order.shape[1]):
        out = out + weighted[rows, order[:, place]]
    if shared is not None:
        out = out + (shared if shared_gate is None else torch.sigmoid(shared_gate) * shared)
    return out
