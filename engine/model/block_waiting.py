# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which committed rows a block drafter knows, and which of them wait for keys and values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from engine.model.block_config import BlockConfig
from engine.model.block_forward import block_room
from engine.model.mtp_queue import ROWS_KEPT
from engine.model.run_pass import RunPass

CONTEXT, DRAFT = "block context", "block"  # kinds of passes


class WaitingRows(ABC):
    """The counting of committed rows; where a row's streams lie, and how they move, is the backend's.

    A trunk pass leaves the streams of its rows. Those of committed rows wait in a second buffer of `most` rows
    until a draft needs their keys and values, or it is full. Where rounds that nothing drafted for filled it,
    the sequence starts anew with the newest at the next round: else they would compute what nobody reads.
    """

    def __init__(self, config: BlockConfig, *, capacity: int, most: int) -> None:
        self.config = config
        self._capacity, self._most = capacity, most
        # Nothing is drafted behind the last position, but a block may begin at it.
        self._positions = min(capacity, config.context_tokens) + config.block_size
        self.reset(active=False)

    def reset(self, *, active: bool, length: int = 0) -> None:
        """Forget everything; what is committed from position `length` on is kept if `active`."""
        self.active, self.first, self.length = active, length, length
        self._waits = 0  # of the committed rows, those without keys and values
        self._undrafted = 0  # of those, the ones of rounds

    def add(self, run: RunPass, path: Sequence[int], *, in_round: bool = False) -> None:
        """The rows `path` of the last trunk pass were committed, in order."""
        if not self.active:
            return
        path = path[: max(0, self._positions - self.length)]
        if not len(path):
            return
        if self._waits + len(path) > self._most:
            if in_round and 2 * self._undrafted > self._most:
                self._start_anew()
            else:
                self._extend(run, in_round=in_round)
        self._undrafted += len(path) * in_round
        self._copy(path, self._waits, in_order=path[-1] == len(path) - 1)
        self._waits += len(path)
        self.length += len(path)

    def room(self) -> int:
        """See `Backend.block_room`."""
        return block_room(self.config, self.length, self._capacity) if self.active else 0

    @property
    def _seen(self) -> int:
        """Committed positions that a draft reads."""
        return min(self.length - self.first, self.config.window)

    def _extend(self, run: RunPass, *, in_round: bool) -> None:
        """Compute the keys and values of all rows that wait, if there are any.

        Over a power of two rows where there is room, so that few passes are recorded: what is written behind
        the committed positions is written again before it is read.
        """
        if not self._waits:
            return
        start = self.length - self._waits
        rows = 1 << (self._waits - 1).bit_length()
        if rows > self._most or start + rows > self._positions:
            rows = self._waits
        self._start_context(start)
        run(CONTEXT, rows, in_round=in_round)
        self._waits = self._undrafted = 0

    def _start_anew(self) -> None:
        """Only the newest rows go on waiting, as if the sequence began with them."""
        kept = min(ROWS_KEPT, self._most // 4)
        self._keep_from(self._waits - kept, kept)
        self._waits = self._undrafted = kept
        self.first = self.length - kept

    @abstractmethod
    def _copy(self, path: Sequence[int], at: int, *, in_order: bool) -> None:
        """Streams of the rows `path` into the waiting rows from `at` on; `in_order`: they are 0, 1, ..."""

    @abstractmethod
    def _keep_from(self, at: int, count: int) -> None:
        """Streams of the waiting rows `at`, `at` + 1, ... to the front; the two places do not overlap."""

    @abstractmethod
    def _start_context(self, position: int) -> None:
        """The next pass of the kind CONTEXT starts at `position`."""
