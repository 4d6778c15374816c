# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a training run keeps from step to step, and the file that it goes on from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ops.demo.optimiser import Optimiser


@dataclass(slots=True)
class Progress:
    """Where a run stands: optimiser steps, the next pool of samples, seconds trained."""

    step: int = 0
    pool: int = 0
    seconds: float = 0.0


class TrainingState:
    """Trained tensors by name, their running average, the optimiser's moments and the progress."""

    def __init__(self, tensors: dict[str, Tensor], *, dtype: torch.dtype = torch.bfloat16) -> None:
        """Trains `tensors`; `dtype` is that of the optimiser's matrix products."""
        self.tensors = {name: value.requires_grad_() for name, value in tensors.items()}
        self.average = {name: value.detach().clone() for name, value in self.tensors.items()}
        self.optimiser = Optimiser(self.tensors, dtype=dtype)
        self.progress = Progress()

    @torch.no_grad()
    def step_done(self, longest: float) -> None:
        """Count a step and take it into the average, whose horizon grows to the share `longest`."""
        horizon = min(longest, 1 - 1 / (self.progress.step + 1))
        now = [value.detach() for value in self.tensors.values()]
        torch._foreach_lerp_(list(self.average.values()), now, 1 - horizon)
        self.progress.step += 1

    def save(self, path: Path, **more: object) -> None:
        """Write the checkpoint, with `more` values, beside the old one; then it takes its place."""
        fresh = path.with_name(path.name + ".new")
        progress = self.progress
        state = {
            "tensors": {name: value.detach() for name, value in self.tensors.items()},
            "average": self.average,
            "optimiser": self.optimiser.state(),
            "progress": (progress.step, progress.pool, progress.seconds),
        }
        torch.save({**state, **more}, fresh)
        fresh.replace(path)

    def resume(self, path: Path) -> bool:
        """Go on from the checkpoint at `path`; False where there is none."""
        if not path.exists():
            return False
        state = torch.load(path, weights_only=True)
        with torch.no_grad():
            for name, value in self.tensors.items():
                value.copy_(state["tensors"][name])
        self.average = state["average"]
        self.optimiser.load(state["optimiser"])
        self.progress = Progress(*state["progress"])
        print(f"continuing at step {self.progress.step}", flush=True)
        return True


def rates(share: float, adam_peak: float, muon_peak: float) -> tuple[float, float]:
    """(AdamW, Muon) learning rates at a share 0..1 of the budget: warm-up, plateau, to zero."""
    factor = min(1.0, share / 0.02 + 0.02, max(0.0, (1.0 - share) / 0.6))
    return adam_peak * factor, muon_peak * factor
