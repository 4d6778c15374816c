# SPDX-License-Identifier: MIT OR Apache-2.0
"""Where nothing pays, even deciding costs: rounds the router lets pass."""

from __future__ import annotations

from engine.spec.staircut_learn import Mean, middle_of

_OWN_SHARE = 0.002  # of a plain round that the router may take where nothing pays
_LONGEST = 128  # rounds
_AS_ONE = 8  # rounds that count as one pass
# What Python does behind a pass finds nothing of its own in the caches: short rounds share that.
_TOGETHER_MS = 4.0
_MOST_TOGETHER = 16  # rounds


class Doze:
    """Counts the rounds that are dozed through behind one in which nothing paid, and what they take.

    Their tokens wait until several can be taken in together, or until the doze ends.
    """

    def __init__(self) -> None:
        self.rest = Mean()  # ms of such a round beside its pass, all in all
        self.begin()

    def begin(self) -> None:
        """A new text: awake."""
        self._ahead = 0
        self._together = 1  # rounds
        self.rounds = 0  # since `priced` was asked
        self.anchor = -1  # of the first round whose token waits
        self._waiting: list[int] = []
        self._ended_s: float | None = None  # when the latest one that was taken in ended
        self._verify_ms: list[float] = []
        self._rest_ms: list[float] = []

    @property
    def on(self) -> bool:
        """Whether the next round is dozed through."""
        return self._ahead > 0

    def took(self, anchor: int, token: int, verify_ms: float) -> bool:
        """A round ended that was dozed through; whether what waits should be taken in now."""
        waiting = self._waiting
        if not waiting:
            self.anchor = anchor
        waiting.append(token)
        self._verify_ms.append(verify_ms)
        self.rounds += 1
        self._ahead -= 1
        return len(waiting) >= self._together or self._ahead <= 0

    def taken(self, now_s: float) -> list[int]:
        """The tokens that wait, written behind `anchor`; they are taken in where the latest round ends."""
        tokens, self._waiting = self._waiting, []
        rounds = len(tokens)
        if self._ended_s is not None:
            all_ms = (now_s - self._ended_s) * 1e3
            self._rest_ms.append((all_ms - sum(self._verify_ms[-rounds:])) / rounds)
        self._ended_s = now_s
        return tokens

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

    def end(self, *, own_ms: float, plain_ms: float, longest: int = _LONGEST) -> bool:
        """An awake round ended, and nothing paid; whether a doze follows.

        `own_ms`: what deciding takes, `plain_ms` a plain round. A doze is so long that deciding takes 0.2 % of
        the time, and no longer than `longest`.
        """
        self._ahead = min(_LONGEST, longest, int(own_ms / plain_ms / _OWN_SHARE))
        self._together = min(_MOST_TOGETHER, max(1, int(_TOGETHER_MS / plain_ms)))
        return self._ahead > 0
