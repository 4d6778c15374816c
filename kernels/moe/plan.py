# SPDX-License-Identifier: MIT OR Apache-2.0
"""The buffers in which a pass keeps which experts it needs and where their rows lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_zeros
from kernels.cpu.product import MAX_ROWS

MOST_EXPERTS, MOST_CHOSEN = 1024, 64  # kMost* of cpu.cpp


@dataclass(frozen=True)
class MoePlan:
    """What `moe_route` decides and the other steps read; one serves all layers of a tape in turn.

    Attributes:
        rows, experts, top_k: most rows of a pass, E and k.
        chosen: int32 [rows, k], a row's experts, best first; weights: bf16 [rows, k] beside them.
        distinct: int32 [1], how many distinct experts the latest pass has; listed: int32, these experts
            ascending; first: int32, the first place of each and the end of the last.
        row_of: int32 [rows * k], the row of each place.
        place: int32 [rows, k], a row's places ascending; place_weight: bf16 [rows, k] beside them.
    """

    rows: int
    experts: int
    top_k: int
    chosen: Tensor
    weights: Tensor
    distinct: Tensor
    listed: Tensor
    first: Tensor
    row_of: Tensor
    place: Tensor
    place_weight: Tensor

    @classmethod
    def empty(cls, *, rows: int, experts: int, top_k: int) -> MoePlan:
        """Room for passes of up to `rows` rows.

        Raises:
            ValueError: rows outside 1..65536, experts outside 1..1024, top_k outside 1..min(experts, 64).
        """
        limits = (
            ("rows", rows, MAX_ROWS),
            ("experts", experts, MOST_EXPERTS),
            ("top_k", top_k, min(experts, MOST_CHOSEN)),
        )
        for name, value, most in limits:
            if not 1 <= value <= most:
                raise ValueError(f"{name} must lie in 1..{most}, got {value}")
        most = min(experts, rows * top_k)

        def numbers(*shape: int) -> Tensor:
            return aligned_zeros(shape, torch.int32)

        return cls(
            rows,
            experts,
            top_k,
            chosen=numbers(rows, top_k),
            weights=aligned_zeros((rows, top_k), torch.bfloat16),
            distinct=numbers(1),
            listed=numbers(most),
            first=numbers(most + 1),
            row_of=numbers(rows * top_k),
            place=numbers(rows, top_k),
            place_weight=aligned_zeros((rows, top_k), torch.bfloat16),
        )

    def buffer(self, width: int) -> Tensor:
        """bf16 [rows * k, width] for values by place, zeros at first; each row lies on 4 bytes."""
        return aligned_zeros((self.rows * self.top_k, width + width % 2), torch.bfloat16)[:, :width]


def expected_distinct(rows: int, experts: int, top_k: int) -> float:
    """Mean number of distinct experts when every row draws `top_k` of `experts` at random."""
    return experts * (1 - (1 - top_k / experts) ** rows)
