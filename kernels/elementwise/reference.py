# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable elementwise steps between the matrix products."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    """The MLP's activation: round(round(silu(gate)) * up), both [..., F] of one dtype."""
    return functional.silu(gate) * up


def output_gate(attn: Tensor, gate: Tensor) -> Tensor:
    """Gate the attention output: round(attn * round(sigmoid(gate))), both of one shape."""
    return attn * torch.sigmoid(gate)


def keep_row(x: Tensor, kept: Tensor, slot: int) -> Tensor:
    """`kept` [slots, N] with x[0] in the place of one row; as it is where there is no such slot."""
    if 0 <= slot < kept.shape[0]:
        kept = kept.clone()
        kept[slot] = x[0]
    return kept


def beta(b: Tensor) -> Tensor:
    """Write strength of the delta rule: sigmoid(b), rounded to b's dtype."""
    return torch.sigmoid(b)
