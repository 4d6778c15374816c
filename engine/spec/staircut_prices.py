# SPDX-License-Identifier: MIT OR Apache-2.0
"""A price table in use: held to the rounds that run, so that prices and other times stay in one unit."""

from __future__ import annotations

from collections import deque

from engine.spec.prices import CHAIN, KINDS, TREE, Curve, PriceTable
from engine.spec.tree import MAX_NODES

_LEVEL_SHARE = 0.05  # of a new round in the level
_ROWS_SHARE = 0.1  # of a new round in the ratio of its row count, once there are ten
_NEW, _EVERY = 4, 8  # curves are made anew while a row count is new, then every so many rounds
_RECORDINGS = 2  # first rounds of a row count, which record their passes and tell nothing
_LATEST = 5  # passes of a row count, of which the middle one counts
_TRUST = 3.0  # rounds that the table stands for
_FORGET = 0.01  # of the way that ratios go back to the table at each new curve: a stale one is tried again
# A round counts as at most so many times its price: a recording or a hiccup is no price.
_FARTHEST = 2.0


class LivePrices:
    """Prices of a table, times a level that follows the rounds.

    The level takes what changes all prices alike: another load or clock. With `learns_rows` the table is a
    first guess: each row count that runs gets a ratio of its own, which row counts between and beyond share.
    With `relative` it is good for its proportions only, and the first round sets the level.
    """

    def __init__(
        self,
        table: PriceTable,
        *,
        learns_rows: bool = False,
        relative: bool = False,
        draft_ms: tuple[float, float] | None = None,
        block_ms: float | None = None,
    ) -> None:
        """What drafts take, None where not timed: (fixed part, each step) of the MTP head's, a block's."""
        self.draft_ms, self.block_ms = draft_ms, block_ms
        self._table = table
        self._learns_rows = learns_rows
        self._relative = relative
        self._observed = 0
        self.level = 1.0  # measured ms for one ms of `curves`
        self._latest: dict[tuple[str, int], deque[float]] = {}
        self._ratios: dict[str, dict[int, tuple[int, float]]] = {kind: {} for kind in KINDS}
        self._corrections: dict[str, list[float]] = {}
        self._last: tuple[tuple[Curve, Curve], tuple[Curve, Curve]] | None = None
        self.source = table.source  # where the prices come from, in words

    def curves(self, context_tokens: int) -> tuple[Curve, Curve]:
        """(chain, tree) prices by rows at a context; times `level` they are ms."""
        curves = self._table.curves(context_tokens)
        if not self._corrections:
            return curves
        if self._last is None or self._last[0] is not curves:
            self._last = (curves, self._corrected_curves(curves))
        return self._last[1]

    def observe(self, kind: str, rows: int, context_tokens: int, verify_ms: float) -> None:
        """Learn from one verify pass."""
        if verify_ms <= 0.0:
            return
        took = verify_ms / self._table.curves(context_tokens)[kind == TREE][rows]
        self._observed += 1
        if self._relative and self._observed == 1:
            self.level = took
            return
        took = self._usual(kind, rows, took)
        count, ratio = self._ratios[kind].get(rows, (-_RECORDINGS, self._correction(kind, rows)))
        seen = took / (ratio * self.level)
        seen = max(1.0 / _FARTHEST, min(seen, _FARTHEST))
        if not self._learns_rows:
            self.level *= 1.0 + _LEVEL_SHARE * (seen - 1.0)
            return
        if count >= 0:
            self.level *= 1.0 + _LEVEL_SHARE * (seen - 1.0)
            ratio *= 1.0 + max(_ROWS_SHARE, 1.0 / (count + _TRUST)) * (seen - 1.0)
        self._ratios[kind][rows] = (count + 1, ratio)
        if 0 <= count < _NEW or self._observed % _EVERY == 0:
            self._correct()

    def _usual(self, kind: str, rows: int, took: float) -> float:
        """The lower middle one of the latest passes of a row count: an interrupted one tells nothing."""
        latest = self._latest.setdefault((kind, rows), deque(maxlen=_LATEST))
        latest.append(took)
        return sorted(latest)[(len(latest) - 1) // 2]

    def _correct(self) -> None:
        """Make the curves anew from the ratios."""
        for ratios in self._ratios.values():
            for row, (times, old) in ratios.items():
                ratios[row] = (times, old + _FORGET * (1.0 - old))
        self._corrections = {kind: self._spread(kind) for kind in KINDS}
        self._last = None
        self.source = f"{self._table.source}; learned from {self._observed} rounds"

    def _correction(self, kind: str, rows: int) -> float:
        return self._corrections[kind][rows] if self._corrections else 1.0

    def _corrected_curves(self, curves: tuple[Curve, Curve]) -> tuple[Curve, Curve]:
        chain, tree = (
            tuple(ms * ratio for ms, ratio in zip(curve, self._corrections[kind], strict=True))
            for kind, curve in zip(KINDS, curves, strict=True)
        )
        return chain, tree

    def _spread(self, kind: str) -> list[float]:
        """The ratio of every row count, linear between those that ran; one kind may stand for the other."""
        ran = self._ratios[kind] or self._ratios[TREE if kind == CHAIN else CHAIN]
        knots = sorted(ran)
        if not knots:
            return [1.0] * (MAX_NODES + 1)
        spread = [ran[knots[0]][1]] * knots[0]
        for below, above in zip(knots[:-1], knots[1:], strict=True):
            first = ran[below][1]
            step = (ran[above][1] - first) / (above - below)
            spread += [first + step * more for more in range(above - below)]
        return spread + [ran[knots[-1]][1]] * (MAX_NODES + 1 - knots[-1])
