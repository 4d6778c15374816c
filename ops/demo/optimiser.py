# SPDX-License-Identifier: MIT OR Apache-2.0
"""Muon for the matrices inside the layers, AdamW for everything else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def orthogonalised(update: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Nearest semi-orthogonal matrices of a stack [S, M, N] by five Newton-Schulz steps in dtype.

    Source: the Muon optimiser (Jordan et al., 2024).
    """
    a, b, c = NEWTON_SCHULZ
    x = update.to(dtype)
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Optimiser:
    """Holds the moments of all tensors; the learning rates come with every step.

    `dtype` is that of Muon's matrix products: bf16 pays only where the processor has it.
    """

    def __init__(
        self,
        tensors: dict[str, Tensor],
        *,
        weight_decay: float = 0.1,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.weight_decay, self.dtype = weight_decay, dtype
        inner = {
            name
            for name, value in tensors.items()
            if value.ndim == 2 and "embed" not in name and min(value.shape) >= 64
        }
        self.groups: dict[tuple[int, ...], list[str]] = {}
        for name in sorted(inner):
            self.groups.setdefault(tuple(tensors[name].shape), []).append(name)
        self.adam = sorted(set(tensors) - inner)
        self.tensors = tensors
        self.first = {name: torch.zeros_like(value) for name, value in tensors.items()}
        self.second = {name: torch.zeros_like(tensors[name]) for name in self.adam}
        self.steps = 0

    @torch.no_grad()
    def step(self, adam_rate: float, muon_rate: float, clip: float = 1.0) -> float:
        """Applies the gradients and clears them; returns their norm before clipping.

        Tensors without a gradient, such as the draft head's in a step without drafts, stay.
        """
        self.steps += 1
        gradients = [v.grad for v in self.tensors.values() if v.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        torch._foreach_mul_(gradients, min(1.0, clip / (float(norm) + 1e-6)))
        for shape, members in self.groups.items():
            names = [name for name in members if self.tensors[name].grad is not None]
            if not names:
                continue
            gradient = [self.tensors[name].grad for name in names]
            momentum = [self.first[name] for name in names]
            torch._foreach_lerp_(momentum, gradient, 0.05)
            ahead = torch.stack(torch._foreach_lerp(gradient, momentum, 0.95))
            update = orthogonalised(ahead, self.dtype) * max(1.0, shape[0] / shape[1]) ** 0.5
            values = [self.tensors[name] for name in names]
            torch._foreach_mul_(values, 1 - muon_rate * self.weight_decay)
            torch._foreach_add_(values, list(update.unbind()), alpha=-muon_rate)
        for name in self.adam:
            value = self.tensors[name]
            gradient = value.grad
            if gradient is None:
                continue
            first, second = self.first[name], self.second[name]
            first.lerp_(gradient, 0.1)
            second.lerp_(gradient.square(), 0.05)
            unbiased = second / (1 - 0.95**self.steps)
            if value.ndim == 2:
                value.mul_(1 - adam_rate * self.weight_decay)
            value.addcdiv_(
                first / (1 - 0.9**self.steps), unbiased.sqrt_().add_(1e-8), value=-adam_rate
            )
        for value in self.tensors.values():
            value.grad = None
        return float(norm)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"first": self.first, "second": self.second, "steps": self.steps}

    def load(self, state: dict[str, Any]) -> None:
        """Takes up a checkpoint's moments."""
        self.first, self.second, self.steps = state["first"], state["second"], state["steps"]
