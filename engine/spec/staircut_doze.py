# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where nothing pays, even deciding costs: rounds the router lets pass."""

from __future__ import annotations

_OWN_SHARE = 0.01  # of a plain round that the router may take where nothing pays
_LONGEST = 20  # rounds


class Doze:
    """Counts the rounds that are dozed through behind one in which nothing paid."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """A new text: awake."""
        self._ahead = 0
        self.asleep = False  # in the present round
        self.rounds = 0  # since the last one that was awake

    def start(self) -> bool:
        """A round starts; whether it is dozed through."""
        self.asleep = self._ahead > 0
        if self.asleep:
            self._ahead -= 1
            self.rounds += 1
        return self.asleep

    def wake(self) -> None:
        """The round that has just started decides anew."""
        self.asleep, self._ahead = False, 0
        self.rounds -= 1

    def end(self, *, paid: bool, own_share: float, longest: int = _LONGEST) -> bool:
        """An awake round ended; whether a doze follows.

        `own_share`: what deciding takes of a plain round. A doze is so long that it takes 1 % of the time, and
        no longer than `longest`.
        """
        if not paid:
            self._ahead = min(_LONGEST, longest, int(own_share / _OWN_SHARE))
        return self._ahead > 0
