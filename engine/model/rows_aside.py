# SPDX-License-Identifier: MIT OR Apache-2.0
"""What drafters may need of plain rounds, put aside by the pass itself."""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.cpu.buffers import aligned_zeros
from kernels.elementwise.native import keep_row
from kernels.tape import Tape

_ROUNDS = 64


class RowsAside:
    """Rows of plain rounds in a native backend, until somebody drafts or many wait.

    A pass of one row overwrites what the one before left. Moving that from Python in every round took a
    fiftieth of a short one, though nobody may ever draft behind it; so the pass copies it, and Python writes
    down the token alone.
    """

    def __init__(self, *sources: Tensor) -> None:
        """`sources`: each bf16 [>= 64, N], where a pass leaves rows; the first of them is kept."""
        self.active = False
        self._ids: list[int] = []
        self._slot = aligned_zeros(1, torch.int32)
        self._slot_number = self._slot.numpy()
        self._kept = [
            (rows, aligned_zeros((_ROUNDS + 1, rows.shape[1]), torch.bfloat16)) for rows in sources
        ]

    def reset(self, *, active: bool) -> None:
        """Nothing waits; `active`: somebody may draft in this sequence."""
        self.active = active and bool(self._kept)
        self._ids = []

    def record(self, tape: Tape) -> None:
        """The end of a pass of one row."""
        for rows, kept in self._kept:
            keep_row(tape, x=rows, kept=kept, slot=self._slot)

    def begin(self) -> None:
        """A pass of one row follows."""
        self._slot_number[0] = len(self._ids)

    def add(self, token: int) -> bool:
        """The row of the last pass was committed with this token; whether there is no room for another."""
        self._ids.append(token)
        return len(self._ids) == _ROUNDS

    def take(self) -> list[int]:
        """The tokens that wait, oldest first; their rows are put where those of one pass would lie.

        Of a pass that is not committed yet the row becomes the first one that waits.
        """
        ids, self._ids = self._ids, []
        for rows, kept in self._kept if ids else ():
            rows[: len(ids)] = kept[: len(ids)]
            kept[0] = kept[len(ids)]
        return ids
