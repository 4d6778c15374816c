# SPDX-License-Identifier: MIT OR Apache-2.0
"""The MLP of a layer on readable PyTorch operations, with routed experts where the model has them.

Rounding points of the routed part, all to the dtype of `x`: the router's logits, a chosen weight after it was
renormalised in float32, SiLU, its product with up, down, the weighted output, and the sum after every expert.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from engine.load.weights import ExpertWeights, LayerWeights
from kernels.bf16_linear.reference import linear
from kernels.elementwise.reference import silu_mul
from kernels.moe.reference import route


def mlp(layer: LayerWeights, x: Tensor, per_token: int, chosen: set[int] | None = None) -> Tensor:
    """The MLP rows [T, hidden] of x [T, hidden]; of a mixture-of-experts layer its experts' and the shared one.

    Args:
        per_token: experts that a row runs.
        chosen: takes the numbers of the experts that ran.

    A mixture-of-experts row is computed by itself, so that it has the same bits in any pass.
    """
    if layer.moe is None:
        return _gated(layer, x)
    router, gate = layer.moe.router.weight, layer.moe.shared_gate.weight
    logits = _by_row(lambda row: linear(row, router), x)
    experts, weights = route(logits, per_token, x.dtype)
    out = torch.zeros_like(x)
    hit = sorted(set(experts.flatten().tolist()))
    for expert in hit:  # ascending: the order of every row's sum
        for row, slot in (experts == expert).nonzero().tolist():
            y = _gated(layer.moe.experts[expert], x[row : row + 1])[0]
            out[row] += weights[row, slot] * y
    if chosen is not None:
        chosen.update(hit)
    return out + _by_row(lambda row: linear(row, gate).sigmoid() * _gated(layer, row), x)


def _gated(weights: LayerWeights | ExpertWeights, x: Tensor) -> Tensor:
    gate, up = linear(x, weights.gate.weight), linear(x, weights.up.weight)
    return linear(silu_mul(gate, up), weights.down.weight)


def _by_row(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A product's rows one at a time: a library rounds differently with the number of rows."""
    return torch.cat([function(row) for row in x.split(1)])
