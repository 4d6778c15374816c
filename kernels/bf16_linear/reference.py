# SPDX-License-Identifier: MIT OR Apache-2.0
"""Readable matrix product with a weight in its plain dtype."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x @ weight^T without bias: x [..., K], weight [N, K] of one dtype -> [..., N] in it.

    Sums over K run in float32 inside the library and are rounded once.
    """
    return functional.linear(x, weight)
