# SPDX-License-Identifier: MIT OR Apache-2.0
"""The pairs of an A/B as dots: how much slower or faster side B was, pair by pair."""

from __future__ import annotations

import math

import pyqtgraph as pg
from PySide6.QtCore import Qt, Slot
from PySide6.QtGui import QFont, QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QLabel, QVBoxLayout, QWidget

from app.chat.message import icon_button
from app.icons import icon
from app.theme import Theme
from engine.api import ComparePair

_AXIS_PX = 52
_LEAST_SPAN_PCT = 1.0


def difference_pct(pair: ComparePair) -> float:
    """How much more side B took than side A, in percent of A; negative is faster."""
    return 100.0 * (math.exp(pair.log_ratio) - 1.0)


class PairPlot(QWidget):
    """A dot a pair against a zero line; the interval of the median and the noise floor as lines once known."""

    def __init__(self, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._theme = theme
        self._pairs: tuple[ComparePair, ...] = ()
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(1)
        row = QHBoxLayout()
        name = QLabel("B against A, % of A (below zero: B is faster)")
        name.setProperty("role", "small")
        row.addWidget(name)
        self.reading = QLabel()
        self.reading.setProperty("role", "small")
        self.reading.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        row.addWidget(self.reading, 1)
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
        self._zero = pg.InfiniteLine(0, angle=0, movable=False)
        self._median = pg.InfiniteLine(angle=0, movable=False)
        self._low = pg.InfiniteLine(angle=0, movable=False)
        self._high = pg.InfiniteLine(angle=0, movable=False)
        self._floor = tuple(pg.InfiniteLine(angle=0, movable=False) for _ in range(2))
        self._lines = (self._median, self._low, self._high, *self._floor)
        for line in (self._zero, *self._lines):
            item.addItem(line, ignoreBounds=True)
        self._dots = pg.ScatterPlotItem(size=8)
        item.addItem(self._dots)
        column.addWidget(self.plot, 1)
        self.set_pairs((), planned=1)
        self.restyle()

    def set_pairs(self, pairs: tuple[ComparePair, ...], *, planned: int) -> None:
        """Show the pairs so far of `planned`; a verdict's lines are taken away."""
        self._pairs = pairs
        for line in self._lines:
            line.hide()
        self._draw(planned)
        self.reading.setText(f"{len(pairs)} of {planned} pairs" if pairs else "")

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
            self.reading.setText("— median   ··· interval   - - noise floor")

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
        font = QFont(theme.ui_font(0.82))
        for axis in (self._left, self._bottom):
            axis.setPen(theme.color("line"))
            axis.setTextPen(theme.color("dim"))
            axis.setTickFont(font)
            axis.setStyle(tickLength=-4)
        self._zero.setPen(pg.mkPen(theme.color("edge"), width=1))
        self._median.setPen(pg.mkPen(theme.color("accent"), width=1))
        for line in (self._low, self._high):
            line.setPen(pg.mkPen(theme.color("accent"), width=1, style=Qt.PenStyle.DotLine))
        for line in self._floor:
            line.setPen(pg.mkPen(theme.color("warn"), width=1, style=Qt.PenStyle.DashLine))
        self.copy_button.setIcon(icon("copy", theme.color("dim")))
        self._paint_dots()

    def _draw(self, planned: int) -> None:
        self.plot.setXRange(0.5, max(planned, len(self._pairs), 1) + 0.5, padding=0)
        last = max(planned, len(self._pairs), 1)
        step = 1 if last <= 12 else 5 if last <= 60 else 20
        marks = sorted({1, *range(step, last + 1, step)})
        self._bottom.setTicks([[(float(n), str(n)) for n in marks]])
        self._paint_dots()
        self._fit([])

    def _paint_dots(self) -> None:
        """An outlier is hollow; it is marked and kept."""
        ink = self._theme.qcolor("accent")
        spots = [
            {
                "pos": (number, difference_pct(pair)),
                "pen": pg.mkPen(ink, width=1.5),
                "brush": pg.mkBrush(None if pair.outlier else ink),
                "symbol": "o" if pair.order == "AB" else "s",
            }
            for number, pair in enumerate(self._pairs, 1)
        ]
        self._dots.setData(spots)

    def _fit(self, more_pct: list[float]) -> None:
        """A symmetric range that holds every dot and line."""
        values = [difference_pct(pair) for pair in self._pairs] + more_pct
        span = max([_LEAST_SPAN_PCT, *(abs(value) * 1.15 for value in values)])
        self.plot.setYRange(-span, span, padding=0)
        self._left.setTicks(
            [[(v, f"{v:+.2g}" if v else "0") for v in (-span / 1.15, 0.0, span / 1.15)]]
        )
