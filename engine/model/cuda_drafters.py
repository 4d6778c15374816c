# SPDX-License-Identifier: MIT OR Apache-2.0
"""The MTP head and the block drafter of a GPU backend, in step with what it commits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.load.drafter import BlockCheckpoint
from engine.model.backend import Mark
from engine.model.block_forward import BlockRows
from engine.model.cuda_block import CudaBlock
from engine.model.cuda_forward import CudaForward, keep_nothing
from engine.model.cuda_mtp import CudaMtp
from engine.model.mtp_entries import MtpMark
from engine.model.run_pass import RunPass


class CudaDrafters:
    """Tells both of committed rows and has them draft.

    Passes run through `run`, which is handed in with every call, so that the backend and this do not hold each
    other.
    """

    def __init__(self, mtp: CudaMtp) -> None:
        self.mtp = mtp
        self.block: CudaBlock | None = None
        self._active = False

    def attach(
        self, run: RunPass, block: BlockCheckpoint, forward: CudaForward, capacity: int
    ) -> None:
        """Keep a block drafter in step too, from the next reset on, if its first passes go well."""
        made = CudaBlock(block.config, block.weights, forward, capacity=capacity)
        self.block, forward.keep = made, made.keep
        try:
            made.try_out(run)
        except BaseException:
            self.block, forward.keep = None, keep_nothing
            raise

    def reset(self, *, active: bool) -> None:
        """An empty sequence; `active`: somebody may draft in it."""
        self._active = active
        self.mtp.reset(active=active)
        if self.block is not None:
            self.block.reset(active=active)

    def mark(self, run: RunPass) -> MtpMark | None:
        """The place of the MTP head behind what is committed."""
        return self.mtp.mark(run)

    def resume(self, mark: Mark | None, *, active: bool, length: int) -> None:
        """See `Backend.resume`; of the mark's state the last part is that of `mark` here."""
        live = mark is None and active == self._active
        if not live:
            self._active = active
            self.mtp.resume(mark and mark.state[-1], active=active)
        if self.block is not None and not (live and self.block.active == active):
            self.block.reset(active=active, length=length)

    def mtp_entries(self, run: RunPass) -> tuple[Tensor, Tensor] | None:
        """Keys and values of all positions but the last, written by then; None without an MTP head."""
        self.mtp.flush(run)
        return self.mtp.read()

    def add(
        self, run: RunPass, path: Sequence[int], ids: Sequence[int], *, in_round: bool = False
    ) -> None:
        """The rows `path` of the last trunk pass were committed, with tokens `ids`."""
        self.mtp.add(run, path, ids, in_round=in_round)
        if self.block is not None:
            self.block.add(run, path, in_round=in_round)

    def room(self) -> int:
        """See `Backend.block_room`."""
        return 0 if self.block is None else self.block.room()

    def draft_block(self, run: RunPass, anchor: int, width: int) -> BlockRows:
        """See `Backend.draft_block`."""
        if self.block is None:
            raise ValueError("no block drafter is attached")
        return self.block.draft(run, anchor, width)

    def block_bytes(self) -> int:
        """See `Backend.block_bytes`."""
        return 0 if self.block is None else self.block.draft_bytes()
