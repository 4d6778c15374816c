# SPDX-License-Identifier: MIT OR Apache-2.0
"""The skinny product in PyTorch, in the order that kernels/cuda/skinny.cuh states."""

from __future__ import annotations

import torch
from torch import Tensor


def instruction_inputs(inputs: int, step: int, first: int) -> list[list[int]]:
    """The K indices of the instructions of the step that starts at `first`: 16 slots each, in slot order."""
    own = step // 4  # inputs a lane of a quad holds
    found = []
    for place in range(0, own, 4):  # four inputs a lane and instruction
        bases = [first + t * own + place for t in range(4)]
        found.append([b + i for half in (0, 2) for b in bases for i in (half, half + 1)])
    return found


def ordered_product(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    *,
    unit: float,
    step: int,
    warps: int,
    interleave: bool,
) -> Tensor:
    """float32 [R, N] = (scale / unit) * the sum over K of x * (weight * unit), in the kernel's order.

    Args:
        x: bfloat16 [R, K]; weight: float32 [N, K]; scale: float32 [N].
    """
    inputs = x.shape[1]
    activations, operands = x.double(), (weight * unit).double()
    steps = inputs // step
    each = -(-steps // warps)
    total = None
    for warp in range(warps):
        taken = range(warp, steps, warps) if interleave else range(steps)[warp * each :][:each]
        sums = torch.zeros(x.shape[0], weight.shape[0])
        for index in taken:
            for slots in instruction_inputs(inputs, step, index * step):
                chain = sums.double()
                for k in slots:
                    chain = chain + activations[:, k, None] * operands[None, :, k]
                sums = chain.float()
        total = sums if total is None else total + sums
    assert total is not None
    return total * (scale * (1 / unit))
