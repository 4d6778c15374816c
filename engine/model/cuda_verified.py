# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a GPU pass found, read back: the best tokens at once, the logits only when somebody asks."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.model.backend import Verified


class Readback:
    """Page-locked twins of a backend's best tokens [32] and logits [32, tokens]."""

    def __init__(self, best: Tensor, logits: Tensor) -> None:
        self._best, self._logits = best, logits
        pinned = best.device.type == "cuda"
        self._host_best = torch.empty_like(best, device="cpu", pin_memory=pinned)
        self._host_logits = torch.empty(logits.shape, pin_memory=pinned)

    def best(self, first: int, end: int) -> list[int]:
        """The best tokens of some rows, when the device has reached them."""
        self._host_best[first:end].copy_(self._best[first:end])
        return self._host_best[first:end].tolist()

    def logits(self, first: int, end: int) -> np.ndarray:
        """float32 [rows, tokens], a view that the next call overwrites."""
        self._host_logits[first:end].copy_(self._logits[first:end])
        return self._host_logits[first:end].numpy()


class DeviceVerified(Verified):
    """A `Verified` whose logits stay on the device until they are read, before the next pass."""

    __slots__ = ("_end", "_first", "_read", "_readback")

    def __init__(self, readback: Readback, first: int, end: int) -> None:
        """The rows `first` to `end` - 1 of the latest pass; waits for it."""
        object.__setattr__(self, "best", readback.best(first, end))
        for name, value in (("_readback", readback), ("_first", first), ("_end", end)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_read", None)

    @property
    def logits(self) -> np.ndarray:  # type: ignore[override]
        if self._read is None:
            object.__setattr__(self, "_read", self._readback.logits(self._first, self._end))
        return self._read
