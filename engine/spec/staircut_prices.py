# SPDX-License-Identifier: MIT OR Apache-2.0
"""A price table in use: held to the rounds that run, so that prices and other times stay in one unit."""

from __future__ import annotations

from engine.spec.prices import CHAIN, KINDS, TREE, Curve, PriceTable
from engine.spec.tree import MAX_NODES

_LEVEL_SHARE = 0.05  # of a new round in the level
_ROWS_SHARE = 0.1  # of a new round in the ratio of its row count, once there are ten
_NEW, _EVERY = 4, 16  # curves are made anew while a row count is new, then every so many rounds
_FARTHEST = (
    2.0  # a round counts as at most so many times its price: a recording or a hiccup is no price
)


class LivePrices:
    """Prices of a table, times a level that follows the rounds.

    The level takes what changes all prices alike: another load or clock. With `learns_rows` the table is good
    for its proportions only: the first round sets the level, and each row count that runs gets a ratio of its
    own, which row counts between and beyond share.
    """

    def __init__(self, table: PriceTable, *, learns_rows: bool = False) -> None:
        self._table = table
        self._learns_rows = learns_rows
        self._observed = 0
        self.level = 1.0  # measured ms for one ms of `curves`
        self._ratios: dict[str, dict[int, tuple[int, float]]] = {kind: {} for kind in KINDS}
        self._corrections: dict[str, list[float]] = {}
        self._corrected: dict[tuple[str, Curve], Curve] = {}

    @property
    def source(self) -> str:
        """Where the prices come from, in words."""
        if not self._learns_rows:
            return self._table.source
        return f"{self._table.source}; learned from {self._observed} rounds"

    def curves(self, context_tokens: int) -> tuple[Curve, Curve]:
        """(chain, tree) prices by rows at a context; times `level` they are ms."""
        curves = self._table.curves(context_tokens)
        if not self._corrections:
            return curves
        return self._corrected_curve(CHAIN, curves[0]), self._corrected_curve(TREE, curves[1])

    def observe(self, kind: str, rows: int, context_tokens: int, verify_ms: float) -> None:
        """Learn from one verify pass."""
        if verify_ms <= 0.0:
            return
        price = self.curves(context_tokens)[kind == TREE][rows]
        self._observed += 1
        if self._learns_rows and self._observed == 1:
            self.level = verify_ms / price
            return
        seen = verify_ms / (price * self.level)
        seen = max(1.0 / _FARTHEST, min(seen, _FARTHEST))
        self.level *= 1.0 + _LEVEL_SHARE * (seen - 1.0)
        if self._learns_rows:
            count, ratio = self._ratios[kind].get(rows, (0, self._correction(kind, rows)))
            share = max(_ROWS_SHARE, 1.0 / (count + 1))
            self._ratios[kind][rows] = (count + 1, ratio * (1.0 + share * (seen - 1.0)))
            if count < _NEW or self._observed % _EVERY == 0:
                self._corrections = {kind: self._spread(kind) for kind in KINDS}
                self._corrected.clear()

    def _correction(self, kind: str, rows: int) -> float:
        return self._corrections[kind][rows] if self._corrections else 1.0

    def _corrected_curve(self, kind: str, curve: Curve) -> Curve:
        found = self._corrected.get((kind, curve))
        if found is None:
            ratios = self._corrections[kind]
            found = tuple(ms * ratio for ms, ratio in zip(curve, ratios, strict=True))
            self._corrected[kind, curve] = found
        return found

    def _spread(self, kind: str) -> list[float]:
        """The ratio of every row count, linear between those that ran; one kind may stand for the other."""
        ran = self._ratios[kind] or self._ratios[TREE if kind == CHAIN else CHAIN]
        knots = sorted(ran)
        spread = []
        for rows in range(MAX_NODES + 1):
            below = max((knot for knot in knots if knot <= rows), default=knots[0])
            above = min((knot for knot in knots if knot >= rows), default=knots[-1])
            share = (rows - below) / (above - below) if above > below else 0.0
            spread.append(ran[below][1] + share * (ran[above][1] - ran[below][1]))
        return spread
