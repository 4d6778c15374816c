# SPDX-License-Identifier: MIT OR Apache-2.0
"""The safety layer: what rounds with a draft really brought lately, against what plain rounds would have."""

from __future__ import annotations

_KEEP = 0.85  # of what was known, for every new round
_LEAST_ROUNDS = 4  # with a draft, before anything is concluded
_CLEAR = 0.97  # of what plain rounds would have brought: less is a loss
_PAUSE = 10  # rounds without a draft, after which one more try is granted; twice as many after each


class Yield:
    """Tokens and milliseconds of the latest rounds with a draft, of one text."""

    def __init__(self) -> None:
        self._plain_ms = self._rest_ms = 0.0
        self.begin()

    def begin(self) -> None:
        """A new text."""
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
        self._tokens = self._tokens * _KEEP + tokens
        self._ms = self._ms * _KEEP + ms + self._rest_ms
        lost = self._tokens * self._plain_ms < _CLEAR * self._ms
        self.loses = lost and self._rounds >= _LEAST_ROUNDS

    def pause(self, rounds: int) -> None:
        """So many rounds went by without a draft."""
        if self.loses:
            self._paused += rounds
            if self._paused >= self._pause:
                self._pause *= 2
                self._clear()
