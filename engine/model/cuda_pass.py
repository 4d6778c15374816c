# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the operations of a GPU pass have to know of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from engine.model.cuda_arena import DeltaLayer, DeltaRecord, TreePaths


@dataclass(frozen=True, slots=True)
class Pass:
    """Where the rows of a pass stand.

    start: int32 [1] on the device, positions before them; positions: int64 of each row, 32 at least; places: 0,
    1, 2, ... up to the longest context that a recording of this pass serves; tree, is_tree: what is above each
    row. first: `start` on the host, of a prompt chunk alone. parity: the record set that a verify pass owns.
    """

    rows: int
    start: Tensor
    positions: Tensor
    slots: Tensor
    places: Tensor
    tree: TreePaths
    is_tree: bool = False
    first: int | None = None
    parity: int = 0

    @property
    def kind(self) -> str:
        """What the recurrence walks: a tree, one row or a chain."""
        return "tree" if self.is_tree else "one-row" if self.rows == 1 else "chain"

    @property
    def above(self) -> TreePaths | None:
        """The tree, None for a chain."""
        return self.tree if self.is_tree else None

    def records(self, layer: DeltaLayer) -> tuple[DeltaRecord, DeltaRecord]:
        """The record that this pass owns, and that of the pass before."""
        return layer.records[self.parity], layer.records[1 - self.parity]
