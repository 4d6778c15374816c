# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which committed positions still wait for their entry in the MTP head's cache.

The entry of position p needs the hidden row of p and the token at p + 1. So the last committed position always
waits; a draft writes its entry with the anchor, which holds if that anchor is then committed.

Rounds that nothing drafted for would make the head compute entries that nobody reads. Once as many wait as
there is room for, its sequence starts anew with the newest ones: rotary positions count differences alone, and
what a head proposes never decides the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ROWS_KEPT = 64  # of a sequence that starts anew


@dataclass(slots=True)
class MtpQueue:
    """Bookkeeping alone; the hidden rows lie in a buffer of the backend, waiting ones first.

    written: entries in the cache. begun: how often it started anew. waiting: hidden rows without an entry.
    following: the tokens behind all waiting rows but the last. paired_with: the anchor that the last entry was
    written with, when nothing waits.
    """

    active: bool
    written: int = 0
    begun: int = 0
    waiting: int = 0
    following: list[int] = field(default_factory=list)
    paired_with: int | None = None

    @property
    def positions(self) -> int:
        """Positions of the head's sequence: those with an entry and those that wait."""
        return self.written + self.waiting

    def add(self, ids: Sequence[int]) -> None:
        """Hidden rows of newly committed tokens join the end of the buffer."""
        if self.waiting:
            self.following.append(ids[0])
        self.following.extend(ids[1:])
        self.waiting += len(ids)
        self.paired_with = None

    def write(self, rows: int) -> None:
        """The first `rows` waiting rows got their entries."""
        self.written += rows
        self.waiting -= rows
        del self.following[:rows]

    def start_anew(self) -> int:
        """Only the newest rows go on waiting; the first of them in the buffer, which is to become its front."""
        first = max(0, self.waiting - ROWS_KEPT)
        del self.following[:first]
        self.waiting -= first
        self.written = 0
        self.begun += 1
        return first

    def pair_last(self, anchor: int) -> None:
        """Every waiting row got its entry, the last one with `anchor`."""
        self.write(self.waiting)
        self.following.clear()
        self.paired_with = anchor

    def go_back(self, written: int) -> None:
        """To `written` entries and the one row behind them that waits."""
        self.written, self.waiting = written, 1
        self.following.clear()
        self.paired_with = None

    def unpair(self) -> None:
        """The last entry was written with a token that did not come: its row waits again."""
        self.written -= 1
        self.waiting = 1
        self.paired_with = None
