# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where nothing pays, even deciding costs: rounds the router lets pass."""

from __future__ import annotations

from engine.spec.staircut_learn import Mean, middle_of

_OWN_SHARE = 0.002  # of a plain round that the router may take where nothing pays
_LONGEST = 128  # rounds
_AS_ONE = 8  # rounds that count as one pass


class Doze:
    """Counts the rounds that are dozed through behind one in which nothing paid, and what they take."""

    def __init__(self) -> None:
        self.rest = Mean()  # ms of such a round beside its pass, all in all
        self.begin()

    def begin(self) -> None:
        """A new text: awake."""
        self._ahead = 0
        self.rounds = 0  # since `priced` was asked
        self._ended_s: float | None = None  # when the latest one ended
        self._verify_ms: list[float] = []
        self._rest_ms: list[float] = []

    @property
    def on(self) -> bool:
        """Whether the next round is dozed through."""
        return self._ahead > 0

    def took(self, verify_ms: float, now_s: float) -> None:
        """A round that was dozed through ended; its pass took so long."""
        self._ahead = max(0, self._ahead - 1)
        self.rounds += 1
        if self._ended_s is not None:
            self._rest_ms.append((now_s - self._ended_s) * 1e3 - verify_ms)
        self._ended_s = now_s
        self._verify_ms.append(verify_ms)

    def priced(self, *, learn: bool) -> tuple[int, float, int]:
        """(1 row, ms of a usual pass since the last call, how often it counts); `learn` what came on top."""
        self.rounds, self._ended_s = 0, None
        if learn and self._rest_ms:
            self.rest.learn(max(0.0, middle_of(self._rest_ms)))
        self._rest_ms.clear()
        times = 1 + len(self._verify_ms) // _AS_ONE
        return 1, middle_of(self._verify_ms), times

    def wake(self) -> None:
        """The next round decides anew."""
        self._ahead = 0

    def end(self, *, own_share: float, longest: int = _LONGEST) -> bool:
        """An awake round ended, and nothing paid; whether a doze follows.

        `own_share`: what deciding takes of a plain round. A doze is so long that it takes 0.2 % of the time,
        and no longer than `longest`.
        """
        self._ahead = min(_LONGEST, longest, int(own_share / _OWN_SHARE))
        return self._ahead > 0
