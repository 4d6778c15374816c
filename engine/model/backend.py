# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the decode loop needs of a forward pass, whichever kernels compute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from engine.knobs import KnobSet
from engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Verified:
    """Result of one verify pass: the best token of every row, and the logits float32 [rows, tokens].

    Padded vocabulary rows, behind the tokens that exist, are left out. `logits` is a view that the
    next pass overwrites. A best token of -1 marks a row with NaN.
    """

    best: list[int]
    logits: np.ndarray


@dataclass(frozen=True, slots=True)
class OperationTime:
    """What one operation took, moved and computed over all its calls."""

    name: str
    calls: int
    total_ms: float
    bytes_read: int
    flops: int


class Backend(Protocol):
    """One model with one live sequence.

    The sequence has `length` committed positions. A verify pass computes further rows that count only once
    `commit` keeps them; rows that are not kept leave no trace.
    """

    name: str
    config: ModelConfig
    capacity: int
    length: int

    def apply_knobs(self, knobs: KnobSet) -> None:
        """Take over the values of the switches that flip between rounds; UsageError leaves the old ones."""

    def engaged(self) -> dict[str, int]:
        """How often each path was taken since the load, by name (`Knob.engaged`)."""

    def reset(self, *, speculate: bool) -> None:
        """Start an empty sequence; `speculate` also keeps the MTP head's cache in step."""

    def prefill(self, ids: Sequence[int]) -> Verified:
        """Commit a chunk of tokens (1 or more) and return the last row's result."""

    def all_logits(self, ids: Sequence[int]) -> Tensor:
        """Commit a chunk of tokens and return every row's logits, float32 [T, vocabulary]."""

    def draft(self, anchor: int, depth: int) -> list[int]:
        """Propose `depth` tokens to follow `anchor`, the token after the committed ones."""

    def verify(self, ids: Sequence[int]) -> Verified:
        """Compute rows for ids (the anchor, then drafted tokens) without committing them."""

    def commit(self, keep: int) -> None:
        """Keep the first `keep` (1 or more) rows of the last verify pass."""

    def round_bytes(self, rows: int, drafted: int) -> int:
        """Bytes one round has to read: weights, recurrent state and KV, the drafter's included."""

    def suspect_layer(self) -> str:
        """The first place where the last pass held a NaN or an infinity, in words."""

    def operation_times(self) -> list[OperationTime] | str:
        """Times by operation of the passes of rounds since the last reset, or why there are none."""

    def reset_operation_times(self) -> None:
        """Start the times anew."""

    def close(self) -> None:
        """Free threads and memory."""
