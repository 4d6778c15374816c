# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pairs of an A/B as dots: how much slower or faster side B was, pair by pair."""

from __future__ import annotations

import math

import pyqtgraph as pg
from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QLabel, QSizePolicy, QVBoxLayout, QWidget

from app.axes import style_axes
from app.chat.message import icon_button
from app.format import grouped
from app.icons import icon
from app.theme import Theme
from engine.api import ComparePair

_AXIS_PX = 52
_LEAST_SPAN_PCT = 1.0
_SYMBOLS = {"AB": "o", "BA": "s"}
_LOOKS = tuple((order, outlier) for order in _SYMBOLS for outlier in (False, True))


def difference_pct(pair: ComparePair) -> float:
    """How much more side B took than side A, in percent of A; negative is faster."""
    return 100.0 * (math.exp(pair.log_ratio) - 1.0)


def tick_text(value_pct: float) -> str:
    """Two digits at least and no exponent: +0.87, -12, +1 300."""
    if not value_pct:
        return "0"
    size = abs(value_pct)
    decimals = 2 if size < 1 else 1 if size < 10 else 0
    return ("+" if value_pct > 0 else "-") + grouped(size, decimals)


class PairPlot(QWidget):
    """A dot a pair against a zero line; the interval of the median and the noise floor as lines once known."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._pairs: tuple[ComparePair, ...] = ()
        self._drawn: object = None
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(1)
        row = QHBoxLayout()
        name = QLabel("B against A, % of A, pair by pair (below zero: B is faster)")
        name.setProperty("role", "small")
        name.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        row.addWidget(name, 1)
        self.copy_button = icon_button(theme, "copy", "Copy the pairs")
        self.copy_button.clicked.connect(self.copy_data)
        row.addWidget(self.copy_button)
        column.addLayout(row)
        self.plot = pg.PlotWidget()
        self.plot.setAccessibleName("Difference of every pair")
        self.plot.setMinimumHeight(130)
        self.plot.setMenuEnabled(False)
        self.plot.setMouseEnabled(x=False, y=False)
        self.plot.hideButtons()
        self.plot.setFocusPolicy(Qt.FocusPolicy.NoFocus)
        item = self.plot.getPlotItem()
        item.setContentsMargins(0, 4, 12, 0)
        self._left, self._bottom = item.getAxis("left"), item.getAxis("bottom")
        for axis in (self._left, self._bottom):
            axis.enableAutoSIPrefix(False)
        self._left.setWidth(_AXIS_PX)
        self._left.setStyle(hideOverlappingLabels=False)
        self._zero = pg.InfiniteLine(0, angle=0, movable=False)
        self._median = pg.InfiniteLine(angle=0, movable=False)
        self._low = pg.InfiniteLine(angle=0, movable=False)
        self._high = pg.InfiniteLine(angle=0, movable=False)
        self._floor = tuple(pg.InfiniteLine(angle=0, movable=False) for _ in range(2))
        self._lines = (self._median, self._low, self._high, *self._floor)
        for line in (self._zero, *self._lines):
            item.addItem(line, ignoreBounds=True)
        # One item for each look: with a look for every dot, a redraw costs milliseconds.
        self._dots = {look: pg.ScatterPlotItem(size=8, symbol=_SYMBOLS[look[0]]) for look in _LOOKS}
        for dots in self._dots.values():
            item.addItem(dots)
        column.addWidget(self.plot, 1)
        self.reading = QLabel(" ")
        self.reading.setProperty("role", "small")
        self.reading.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.reading.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Preferred)
        column.addWidget(self.reading)
        self.set_pairs((), planned=1)
        self.restyle()

    def set_pairs(self, pairs: tuple[ComparePair, ...], *, planned: int) -> None:
        """Show the pairs so far of `planned`; a verdict's lines are taken away."""
        if (pairs, planned) == self._drawn:
            return
        self._pairs = pairs
        self._drawn = (pairs, planned)
        for line in self._lines:
            line.hide()
        self._draw(planned)
        self.reading.setText(f"{len(pairs)} of {planned} pairs" if pairs else " ")

    def set_verdict(
        self,
        median_pct: float | None,
        low_pct: float | None,
        high_pct: float | None,
        floor_pct: float | None,
    ) -> None:
        """Lines at the median, at the ends of its interval and at the noise floor on both sides of zero."""
        values = (
            (self._median, median_pct),
            (self._low, low_pct),
            (self._high, high_pct),
            (self._floor[0], floor_pct),
            (self._floor[1], None if floor_pct is None else -floor_pct),
        )
        for line, value in values:
            line.setVisible(value is not None)
            if value is not None:
                line.setValue(value)
        self._fit([value for _, value in values if value is not None])
        if median_pct is not None:
            self.reading.setText(
                "● A first   ■ B first   ○ outlier   — median   ··· 95 % interval   - - noise floor"
            )

    @Slot()
    def copy_data(self) -> None:
        """Tab-separated text: one line a pair, full precision."""
        lines = ["pair\torder\tbase_ms\tcandidate_ms\tlog_ratio\toutlier"]
        lines += [
            f"{p.index}\t{p.order}\t{p.base_ms!r}\t{p.candidate_ms!r}\t{p.log_ratio!r}\t{p.outlier}"
            for p in self._pairs
        ]
        QGuiApplication.clipboard().setText("\n".join(lines) + "\n")

    @Slot()
    def restyle(self) -> None:
        """Take the colours of the palette in force."""
        theme = self._theme
        self.plot.setBackground(theme.color("panel"))
        style_axes(theme, (self._left, self._bottom))
        self._zero.setPen(pg.mkPen(theme.color("edge"), width=1))
        self._median.setPen(pg.mkPen(theme.color("accent"), width=1))
        for line in (self._low, self._high):
            line.setPen(pg.mkPen(theme.color("accent"), width=1, style=Qt.PenStyle.DotLine))
        for line in self._floor:
            line.setPen(pg.mkPen(theme.color("warn"), width=1, style=Qt.PenStyle.DashLine))
        self.copy_button.setIcon(icon("copy", theme.color("dim")))
        ink = theme.qcolor("accent")
        for (_, outlier), dots in self._dots.items():  # an outlier is hollow; it is marked and kept
            dots.setPen(pg.mkPen(ink, width=1.5))
            dots.setBrush(pg.mkBrush(None if outlier else ink))

    def _draw(self, planned: int) -> None:
        self.plot.setXRange(0.5, max(planned, len(self._pairs), 1) + 0.5, padding=0)
        last = max(planned, len(self._pairs), 1)
        step = 1 if last <= 12 else 5 if last <= 60 else 20
        marks = sorted({1, *range(step, last + 1, step)})
        self._bottom.setTicks([[(float(n), str(n)) for n in marks]])
        self._put_dots()
        self._fit([])

    def dots(self) -> list[tuple[float, float]]:
        """(pair, difference in percent) of every dot, in order of the pairs."""
        places = [
            tuple(map(float, place))
            for dots in self._dots.values()
            for place in zip(*dots.getData(), strict=True)
        ]
        return sorted(places)

    def _put_dots(self) -> None:
        found: dict[tuple[str, bool], list[tuple[int, float]]] = {look: [] for look in _LOOKS}
        for number, pair in enumerate(self._pairs, 1):
            look = (pair.order if pair.order in _SYMBOLS else "AB", bool(pair.outlier))
            found[look].append((number, difference_pct(pair)))
        for look, places in found.items():
            self._dots[look].setData([x for x, _ in places], [y for _, y in places])

    def _fit(self, more_pct: list[float]) -> None:
        """A symmetric range that holds every dot and line."""
        values = [difference_pct(pair) for pair in self._pairs] + more_pct
        span = max([_LEAST_SPAN_PCT, *(abs(value) * 1.15 for value in values)])
        self.plot.setYRange(-span, span, padding=0)
        ends = (-span / 1.15, span / 1.15) if values else ()
        self._left.setTicks([[(v, tick_text(v)) for v in (0.0, *ends)]])
