# SPDX-License-Identifier: MIT OR Apache-2.0
"""The MTP head and the block drafter of a native backend, in step with what it commits."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from engine.model.arena import Arena
from engine.model.backend import DraftStep, Mark
from engine.model.block_forward import BlockRows
from engine.model.block_native import NativeBlock
from engine.model.mtp_entries import MtpMark
from engine.model.native_mtp import NativeMtp
from engine.model.rows_aside import RowsAside
from engine.model.run_pass import RunPass
from kernels.tape import Tape


class NativeDrafters:
    """Tells both of committed rows and has them draft.

    Passes run through `run`, which is handed in with every call, so that the backend and this do not hold each
    other.
    """

    def __init__(self, arena: Arena, capacity: int, tokens: int) -> None:
        """`tokens`: ids that exist, no fewer than the candidates of a step can be."""
        self._mtp = NativeMtp(arena, capacity, tokens)
        self.block: NativeBlock | None = None
        self._hidden = () if arena.mtp_kv is None else (arena.hidden,)
        self._aside = RowsAside(*self._hidden)
        self._active = False

    def attach(self, block: NativeBlock) -> None:
        """Keep a block drafter in step too, from the next reset on; recordings must be made anew."""
        self.block = block
        self._aside = RowsAside(*self._hidden, block.streams)

    def reset(self, *, active: bool) -> None:
        """An empty sequence; `active`: somebody may draft in it."""
        self._active = active
        self._mtp.reset(active=active)
        if self.block is not None:
            self.block.reset(active=active)
        self._aside.reset(active=active)

    def mark(self, run: RunPass) -> MtpMark | None:
        """The place of the MTP head behind what is committed."""
        self.catch_up(run)
        return self._mtp.mark(run)

    def resume(self, run: RunPass, mark: Mark | None, *, active: bool, length: int) -> None:
        """See `Backend.resume`; of the mark's state the last part is that of `mark` here."""
        live = mark is None and active == self._active
        if live:
            self.catch_up(run)
        else:
            self._active = active
            self._mtp.resume(mark and mark.state[-1], active=active)
            self._aside.reset(active=active)
        if self.block is not None and not (live and self.block.active == active):
            self.block.reset(active=active, length=length)

    def tap(self, stream: int) -> Tensor | None:
        """See `NativeBlock.tap`."""
        return None if self.block is None else self.block.tap(stream)

    def record_plain(self, tape: Tape) -> None:
        """The end of a verify pass of one row."""
        self._aside.record(tape)

    def catch_up(self, run: RunPass) -> None:
        """Tell of the plain rounds that nobody drafted behind so far; a pass of several rows needs that."""
        if ids := self._aside.take():
            self._add(run, range(len(ids)), ids)

    def begin(self, run: RunPass, rows: int) -> None:
        """A verify pass of `rows` rows follows."""
        if rows == 1:
            self._aside.begin()
        else:
            self.catch_up(run)

    def prefilled(self, run: RunPass, ids: Sequence[int]) -> None:
        """The rows of a prompt chunk were committed."""
        self._add(run, range(len(ids)), ids, in_round=False)

    def committed(
        self, run: RunPass, path: Sequence[int], ids: Sequence[int], *, verified: int
    ) -> None:
        """Of the `verified` rows of the last pass the rows `path` were committed, with tokens `ids`."""
        if not self._aside.active:
            return
        if verified > 1:
            self._add(run, path, ids)
        elif self._aside.add(ids[0]):
            self.catch_up(run)

    def steps(self, run: RunPass, anchor: int, depth: int, width: int) -> list[DraftStep]:
        """See `Backend.draft_steps`."""
        self.catch_up(run)
        return self._mtp.draft(run, anchor, depth, width)

    def room(self, run: RunPass) -> int:
        """See `Backend.block_room`."""
        if self.block is None:
            return 0
        self.catch_up(run)
        return self.block.room()

    def draft_block(self, run: RunPass, anchor: int, width: int) -> BlockRows:
        """See `Backend.draft_block`."""
        if self.block is None:
            raise ValueError("no block drafter is attached")
        self.catch_up(run)
        return self.block.draft(run, anchor, width)

    def block_bytes(self) -> int:
        """See `Backend.block_bytes`."""
        return 0 if self.block is None else self.block.draft_bytes()

    def mtp_entries(self, run: RunPass) -> tuple[Tensor, Tensor] | None:
        """Keys and values of all positions but the last, written by then; see `MtpEntries.read`."""
        self.catch_up(run)
        self._mtp.flush(run)
        return self._mtp.read()

    def _add(
        self, run: RunPass, path: Sequence[int], ids: Sequence[int], *, in_round: bool = True
    ) -> None:
        self._mtp.add(run, path, ids, in_round=in_round)
        if self.block is not None:
            self.block.add(run, path, in_round=in_round)
