# SPDX-License-Identifier: MIT OR Apache-2.0
"""The safety layer: what rounds with a draft really brought lately, against what plain rounds would have."""

from __future__ import annotations

_KEEP = 0.85
_LEAST_ROUNDS = 4  # with a draft, before anything is concluded
_CLEAR = 0.97
_PAUSE = 10  # rounds without a draft, after which one more try is granted; twice as many after each
_LONGEST_PAUSE = 1280
_KEEP_WAKES, _CLEAR_WAKES = 0.95, 1.03  # of rounds that woke for a match


class Yield:
    """Tokens and milliseconds of the latest rounds with a draft.

    keep: of what was known, for every new round. clear: of what plain rounds bring; less is a loss.
    """

    def __init__(self, *, keep: float = _KEEP, clear: float = _CLEAR) -> None:
        self._keep, self._clear_share = keep, clear
        self._plain_ms = self._rest_ms = 0.0
        self.begin()

    def begin(self) -> None:
        """Nothing is known, as in a new text."""
        self._pause = _PAUSE
        self._clear()

    def _clear(self) -> None:
        self._tokens = self._ms = 0.0
        self._rounds = self._paused = 0
        self.loses = False  # against plain rounds

    def plain(self, round_ms: float, rest_ms: float) -> None:
        """What a plain round takes, and what a round with a draft takes beside draft and pass."""
        self._plain_ms, self._rest_ms = round_ms, rest_ms

    def add(self, tokens: int, ms: float) -> None:
        """A round with a draft: what it wrote, and what its draft and pass took."""
        self._rounds += 1
        self._tokens = self._tokens * self._keep + tokens
        self._ms = self._ms * self._keep + ms + self._rest_ms
        lost = self._tokens * self._plain_ms < self._clear_share * self._ms
        if self._rounds >= _LEAST_ROUNDS:
            self.loses = lost
            if not lost:
                self._pause = _PAUSE

    def pause(self, rounds: int) -> None:
        """So many rounds went by without a draft."""
        if self.loses:
            self._paused += rounds
            if self._paused >= self._pause:
                self._pause = min(2 * self._pause, _LONGEST_PAUSE)
                self._clear()


class WakeYields:
    """What rounds brought that ended a doze for a match, apart for matches that are sure.

    Three tokens stand twice by chance, a long match may be a copy. What is known outlasts a text.
    """

    def __init__(self) -> None:
        self._yields = [Yield(keep=_KEEP_WAKES, clear=_CLEAR_WAKES) for _ in range(2)]
        self._present: Yield | None = None

    def begin(self) -> None:
        """A new text, or a doze: nothing woke so far."""
        self._present = None

    def plain(self, round_ms: float, rest_ms: float) -> None:
        """See `Yield.plain`."""
        for each in self._yields:
            each.plain(round_ms, rest_ms)

    def worth(self, *, sure: bool) -> bool:
        """Whether to wake for a match; what the coming rounds bring then counts for its kind."""
        found = self._yields[sure]
        if found.loses:
            return False
        self._present = found
        return True

    def add(self, tokens: int, ms: float) -> None:
        """A round that was decided without a head: what it wrote, and what its draft and pass took."""
        if self._present is not None:
            self._present.add(tokens, ms)

    def pause(self, rounds: int) -> None:
        """So many rounds were dozed through."""
        for each in self._yields:
            each.pause(rounds)
