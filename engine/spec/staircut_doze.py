# SPDX-License-Identifier: MIT OR Apache-2.0
"""When nothing pays, even looking costs: rounds the router lets pass, and what it catches up on afterwards."""

from __future__ import annotations

from collections.abc import Sequence

_IDLE_ROUNDS = 3  # in a row in which nothing paid, before a doze
_AWAKE_ROUNDS = 1  # at the start of a text
_OWN_SHARE = 0.01  # of a plain round that the router may take where nothing pays
_LONGEST = 20  # rounds


class Doze:
    """Counts idle rounds, and keeps the tokens of those that are dozed through."""

    def __init__(self) -> None:
        self._idle = 0
        self.begin()

    def begin(self) -> None:
        """A new text: awake, for fewer rounds where nothing paid at the end of the last one."""
        self._idle = min(self._idle, _IDLE_ROUNDS - _AWAKE_ROUNDS)
        self._ahead = 0
        self.asleep = False  # in the present round
        self.anchor = -1  # of the first round that was dozed through
        self.tokens: list[int] = []  # written since
        self.rounds = 0  # since the last one that was awake

    def start(self, anchor: int) -> bool:
        """A round starts; whether it is dozed through."""
        self.asleep = self._ahead > 0
        if self.asleep:
            self._ahead -= 1
            if not self.tokens:
                self.anchor = anchor
        return self.asleep

    def add(self, tokens: Sequence[int]) -> None:
        """What a round wrote that was dozed through."""
        self.tokens += tokens
        self.rounds += 1

    def woken(self) -> None:
        """All that was missed is caught up on."""
        self.tokens.clear()
        self.rounds = 0

    def end(self, *, paid: bool, own_share: float) -> bool:
        """An awake round ended; whether a doze follows.

        `own_share`: what looking takes of a plain round. A doze is so long that it takes 1 % of the time.
        """
        self._idle = 0 if paid else self._idle + 1
        if self._idle >= _IDLE_ROUNDS:
            self._ahead = min(_LONGEST, int(own_share / _OWN_SHARE))
        return self._ahead > 0
